"""Drafts of the tokens that a structured output forces."""

from __future__ import annotations

from outrider.drafters.text.grammar import forced_tokens
from outrider.engine.request import Request
from outrider.verify.draft import Draft


def fill_forced_tokens(request: Request, draft: Draft, room: int) -> Draft:
    """The draft, or the tokens that the request's grammar forces if the draft does not begin with them.

    Exact under every verifier: the replaced draft had no acceptable token, and the forced tokens, which depend on no
    noise, are accepted with certainty.
    """
    if request.constraint is None or room == 0:
        return draft
    tokens = forced_tokens(request.constraint, request.output, min(room, request.depth_limit))
    roots = (token for token, parent in zip(draft.tokens, draft.parents, strict=True) if parent < 0)
    return Draft.chain(tokens, source="grammar") if tokens and tokens[0] not in roots else draft
