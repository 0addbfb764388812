"""The checks of a request before an engine queues it."""

from __future__ import annotations

from collections.abc import Collection

from outrider.cache.states import RecurrentStates
from outrider.config.combination import is_custom
from outrider.config.sampling import SamplingParams
from outrider.engine.request import Request
from outrider.errors import ConfigError, InvalidRequestError
from outrider.utils.memory import available_memory
from outrider.verify.distribution import check_ids, check_token_ids


def check_request(
    request: Request,
    max_seq_len: int,
    vocab_size: int,
    drafters: Collection[str],
    eos: Collection[int],
    states: RecurrentStates | None = None,
) -> None:
    """Refuse a request that cannot be served.

    Args:
        drafters: names of the loaded draft sources.
        eos: the model's end-of-text ids.
        states: of the model's recurrent layers.

    Raises:
        InvalidRequestError: the prompt is empty or too long, a token id is outside the vocabulary, the options allow
            no first token, or there are fewer states than beams, or no memory for them.
        ConfigError: the draft source is not loaded.
    """
    if not request.prompt:
        raise InvalidRequestError("the prompt is empty: give at least one token", param="prompt")
    if len(request.prompt) >= max_seq_len:
        raise InvalidRequestError(
            f"the prompt has {len(request.prompt)} tokens, but the context holds {max_seq_len} and one must "
            "be left to generate: shorten the prompt",
            param="prompt",
            code="context_length_exceeded",
        )
    check_ids("prompt", request.prompt, vocab_size)
    expected = request.speculation.prediction
    if expected is not None and not isinstance(expected, str):
        check_ids("prediction", tuple(expected), vocab_size)
    check_token_ids(request.params, vocab_size)
    _check_some_token_is_possible(request.params, vocab_size, eos)
    if request.params.structured is not None and request.constraint is None:
        raise InvalidRequestError("a structured output needs its compiled grammar: use LLM", param="structured")
    if states is not None and request.params.beam_width:
        _check_beams(request.params.beam_width, states)
    for name in request.speculation.combination.names:
        if name not in ("none", *drafters):
            hint = " (name your own in extra_sources when the engine is made)" if is_custom(name) else ""
            raise ConfigError(f"draft source {name!r} is not loaded: use one of {', '.join(('none', *drafters))}{hint}")


def _check_beams(width: int, states: RecurrentStates) -> None:
    """Refuse more beams than there can be states, or than there is memory for now."""
    if width > states.branches:
        raise InvalidRequestError(
            f"beam_width={width} needs as many recurrent states, and there is memory for {states.branches}: "
            "use fewer beams",
            param="beam_width",
        )
    needed = states.bytes_of_more(width)
    if needed and (free := available_memory()) < needed:
        raise InvalidRequestError(
            f"beam_width={width} needs {needed / 1e6:,.0f} MB for recurrent states, and {free / 1e6:,.0f} MB of memory "
            "are free: use fewer beams, or free memory",
            param="beam_width",
        )


def _check_some_token_is_possible(params: SamplingParams, vocab_size: int, eos: Collection[int]) -> None:
    """Refuse options with which ``apply_masks_`` would exclude every first token; grammars are not considered."""
    if params.allowed_token_ids is None and not params.banned_token_ids and not params.min_tokens:
        return
    allowed = range(vocab_size) if params.allowed_token_ids is None else params.allowed_token_ids
    possible = set(allowed).difference(params.banned_token_ids)
    if not possible:
        name = "banned_token_ids" if params.allowed_token_ids is None else "allowed_token_ids"
        raise InvalidRequestError("all tokens that are allowed are also banned: allow another", param=name)
    if params.min_tokens and params.structured is None and possible <= {*eos, *params.stop_token_ids}:
        raise InvalidRequestError(
            f"min_tokens={params.min_tokens} is impossible, as every token that is allowed ends the output: "
            "use min_tokens=0, or allow a token that does not",
            param="min_tokens",
        )
