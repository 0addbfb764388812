"""Whether a draft can be scored and judged, and tokens that leave no choice."""

from __future__ import annotations

from outrider.core.draft import Draft
from outrider.drafters.text.grammar import forced_tokens
from outrider.engine.request import Request


def check_draft(draft: Draft, budget: int, request: Request, vocab_size: int) -> None:
    """Raise ValueError unless the target can score the draft and the request's verifier can judge it."""
    if len(draft) > budget:
        raise ValueError(f"it proposed {len(draft)} tokens where {budget} were allowed")
    for token in draft.tokens:
        if not isinstance(token, int) or not 0 <= token < vocab_size:
            raise ValueError(f"it proposed token {token!r}, outside the vocabulary of {vocab_size}")
    if draft.q_logits is not None and not (draft.q_logits.dim() == 2 and draft.q_logits.is_floating_point()):
        raise ValueError(
            f"its q_logits are {draft.q_logits.dtype} {list(draft.q_logits.shape)}, not a float for each node and token"
        )
    verifier = request.verifier
    if not draft.is_chain and not verifier.takes_trees:
        raise ValueError(f"its drafts branch, and verifier={verifier.name!r} takes chains: use verifier='matching'")


def certain(request: Request, draft: Draft, room: int) -> Draft:
    """The draft, unless a structured output leaves no choice and it has nothing, or something else, to say.

    Exact under every verifier: the replaced draft could not have been accepted, and the new one, which looks at no
    noise, is accepted with certainty.
    """
    if request.constraint is None or room == 0:
        return draft
    tokens = forced_tokens(request.constraint, request.output, min(room, request.depth_limit))
    roots = (token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent < 0)
    return Draft.chain(tokens, source="grammar") if tokens and tokens[0] not in roots else draft
