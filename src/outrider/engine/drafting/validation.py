"""Whether the target can score a draft and the request's verifier can judge it."""

from __future__ import annotations

from outrider.core.draft import Draft
from outrider.engine.request import Request


def check_draft(draft: Draft, budget: int, request: Request, vocab_size: int) -> None:
    """Raise ValueError unless the target can score the draft and the request's verifier can judge it."""
    if len(draft) > budget:
        raise ValueError(f"it proposed {len(draft)} tokens where {budget} were allowed")
    for token in draft.tokens:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(f"it proposed token {token!r}, outside the vocabulary of {vocab_size}")
    q = draft.q_logits
    if q is not None and not (q.dim() == 2 and q.is_floating_point()):
        raise ValueError(f"its q_logits are {q.dtype} {list(q.shape)}, not a float for each node and token")
    verifier = request.verifier
    if not draft.is_chain and not verifier.takes_trees:
        raise ValueError(f"its drafts branch, and verifier={verifier.name!r} takes chains: use verifier='matching'")
