"""Checks that two models have the same vocabulary."""

from __future__ import annotations

from outrider.errors import IncompatibleDraftError
from outrider.tokenizer.tokenizer import Tokenizer


def check_same_vocabulary(target: Tokenizer, draft: Tokenizer) -> None:
    """Raise ``IncompatibleDraftError`` unless every id means the same token to both models.

    The models' embeddings may be padded to different sizes. They must also agree on at least one end-of-text id,
    if both name any: a draft that never ends where the target ends was made for something else.
    """
    facts = (
        f"target {target.name}: {target.vocab_size} tokens, end-of-text {list(target.eos_token_ids)}; "
        f"draft {draft.name}: {draft.vocab_size} tokens, end-of-text {list(draft.eos_token_ids)}"
    )
    if target.vocabulary != draft.vocabulary:
        ours = {i: token for token, i in target.vocabulary.items()}
        theirs = {i: token for token, i in draft.vocabulary.items()}
        first = min(i for i in ours.keys() | theirs.keys() if ours.get(i) != theirs.get(i))
        raise IncompatibleDraftError(
            f"the draft has another vocabulary, first at id {first}: {ours.get(first)!r} and {theirs.get(first)!r} "
            f"({facts}): use a draft of the target's own family, or draft='universal', which drafts by way of text"
        )
    if target.eos_token_ids and draft.eos_token_ids and not set(target.eos_token_ids) & set(draft.eos_token_ids):
        raise IncompatibleDraftError(f"target and draft end texts differently ({facts}): use a draft that shares one")
