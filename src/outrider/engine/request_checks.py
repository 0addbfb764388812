"""What an engine refuses before it queues a request."""

from __future__ import annotations

from collections.abc import Collection

from outrider.config.combination import is_custom
from outrider.core.distribution import check_token_ids
from outrider.engine.request import Request
from outrider.errors import ConfigError, InvalidRequestError


def check_request(request: Request, max_seq_len: int, vocab_size: int, drafters: Collection[str]) -> None:
    """Refuse what cannot be served.

    Args:
        drafters: names of the loaded draft sources.

    Raises:
        InvalidRequestError: its prompt is empty or too long, or it names tokens the model does not have.
        ConfigError: its draft source is not loaded.
    """
    if not request.prompt:
        raise InvalidRequestError("the prompt is empty: give at least one token", param="prompt")
    if len(request.prompt) >= max_seq_len:
        raise InvalidRequestError(
            f"the prompt has {len(request.prompt)} tokens, but the context holds {max_seq_len} and one must "
            "be left to generate: shorten the prompt",
            param="prompt",
        )
    for token in request.prompt:
        if not 0 <= token < vocab_size:
            raise InvalidRequestError(
                f"the prompt names token {token}, but the vocabulary ends at {vocab_size - 1}", param="prompt"
            )
    check_token_ids(request.params, vocab_size)
    if request.params.structured is not None and request.constraint is None:
        raise InvalidRequestError("a structured output needs its compiled grammar: use LLM", param="structured")
    for name in request.speculation.combination.names:
        if name not in ("none", *drafters):
            hint = " (name your own in extra_sources when the engine is made)" if is_custom(name) else ""
            raise ConfigError(f"draft source {name!r} is not loaded: use one of {', '.join(('none', *drafters))}{hint}")
