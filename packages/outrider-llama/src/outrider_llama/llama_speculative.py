"""Draft models of llama-cpp-python, as the sources that draft here."""

from __future__ import annotations

from typing import Any

from outrider.errors import ConfigError


class LlamaPromptLookupDecoding:
    """Drafts the continuation of an earlier n-gram (Saxena 2023): the source ``lookup``.

    Drafts change the speed alone. ``max_ngram_size`` is accepted; ``lookup`` matches the longest n-gram it finds.
    """

    def __init__(self, max_ngram_size: int = 2, num_pred_tokens: int = 10) -> None:
        self.max_ngram_size, self.num_pred_tokens = max_ngram_size, num_pred_tokens


def draft_options(draft_model: object) -> dict[str, Any]:
    """``draft_model`` as options of ``LLM``: nothing, a name or file of a draft model, or an object that looks up.

    Raises ``ConfigError`` for other objects.
    """
    if draft_model is None:
        return {}
    if isinstance(draft_model, str):
        return {"draft_model": draft_model}
    count = getattr(draft_model, "num_pred_tokens", None)
    if not isinstance(count, int):
        raise ConfigError(
            f"draft_model={draft_model!r} cannot be used: give LlamaPromptLookupDecoding, the name of a draft model, "
            "or leave it out (drafts are on by default)"
        )
    return {"draft": "lookup", "spec_length": count}
