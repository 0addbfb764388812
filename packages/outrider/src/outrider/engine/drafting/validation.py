"""Validates drafts before the target scores them."""

from __future__ import annotations

import numpy as np

from outrider.engine.request import Request
from outrider.verify.draft import Draft


def check_draft(draft: Draft, budget: int, request: Request, vocab_size: int) -> None:
    """Raise ValueError unless the target can score the draft and the request's verifier takes it."""
    if len(draft) > budget:
        raise ValueError(f"it proposed {len(draft)} tokens where {budget} were allowed")
    for token in draft.tokens:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(f"it proposed token {token!r}, outside the vocabulary of {vocab_size}")
    q = draft.q_logits
    if q is not None and not (isinstance(q, np.ndarray) and q.ndim == 2 and np.issubdtype(q.dtype, np.floating)):
        raise ValueError(f"its q_logits are {_described(q)}, not an array of floats, one for each node and token")
    verifier = request.verifier
    if not draft.is_chain and not verifier.takes_trees:
        raise ValueError(f"its drafts branch, and verifier={verifier.name!r} takes chains: use verifier='matching'")


def _described(q: object) -> str:
    return f"{q.dtype} {list(q.shape)}" if isinstance(q, np.ndarray) else f"a {type(q).__name__}"
