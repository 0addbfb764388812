"""llama.cpp's options as the engine's own; options without support are refused by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from outrider.config import SamplingParams, SpeculationParams
from outrider.config.structured import KINDS, StructuredOutput
from outrider.errors import InvalidRequestError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_server.http.errors import ApiError, invalid
from outrider_server.llama_cpp.schema import LlamaCppRequest
from outrider_server.openai import options

ANY_SEED = (-1, 2**32 - 1)
SAMPLERS = ("penalties", "temperature", "top_k", "top_p", "min_p")
"""Samplers that act on the logits, in their order (``SamplingParams``)."""
UNSUPPORTED_OFF = {
    "typical_p": 1.0, "dynatemp_range": 0.0, "top_n_sigma": -1.0, "xtc_probability": 0.0, "dry_multiplier": 0.0,
    "mirostat": 0, "adaptive_target": -1.0, "min_keep": 0, "repeat_last_n": -1, "n_indent": 0, "t_max_predict_ms": 0,
    "n_cache_reuse": 0, "lora": [], "return_progress": False, "post_sampling_probs": False,
    "backend_sampling": False, "n_min": 0, "p_min": 0.0,
}  # fmt: skip
"""Options that nothing here does, and the value that asks for nothing."""
ALSO_OFF = {"top_n_sigma": (0.0,), "min_keep": (1,), "t_max_predict_ms": (-1,)}
INERT_DEFAULTS: dict[str, Any] = {
    "dynatemp_exponent": 1.0, "xtc_threshold": 0.1, "dry_base": 1.75, "dry_allowed_length": 2,
    "dry_penalty_last_n": -1, "dry_sequence_breakers": ["\n", ":", '"', "*"], "mirostat_tau": 5.0, "mirostat_eta": 0.1,
    "adaptive_decay": 0.9, "n_keep": 0, "n_discard": 0,
}  # fmt: skip
"""Of samplers that are off; any value is as good as another. The defaults are llama.cpp's."""
SAMPLER_OPTIONS: dict[str, tuple[Any, Any, str]] = {
    "temperature": (0.8, 1.0, "temperature"),
    "top_k": (40, 0, "top_k"),
    "top_p": (0.95, 1.0, "top_p"),
    "min_p": (0.05, 0.0, "min_p"),
    "repeat_penalty": (1.0, 1.0, "penalties"),
    "presence_penalty": (0.0, 0.0, "penalties"),
    "frequency_penalty": (0.0, 0.0, "penalties"),
}
"""Option to (llama.cpp's default, the value that turns it off, the sampler it belongs to)."""
IDLE_SAMPLERS = ("dry", "typ_p", "typical_p", "xtc", "top_n_sigma", "adaptive_p")
"""Samplers that do nothing with the values in ``UNSUPPORTED_OFF``."""
_NAMES = {
    "logprobs": "n_probs",
    "n": "n_cmpl",
    "repetition_penalty": "repeat_penalty",
    "banned_token_ids": "logit_bias",
}


def check(body: LlamaCppRequest, max_n: int) -> None:
    """Raises ApiError for options without support, and for options that contradict each other."""
    for field, off in UNSUPPORTED_OFF.items():
        value, name = getattr(body, field), LlamaCppRequest.model_fields[field].alias or field
        if value is not None and value != off and value not in ALSO_OFF.get(field, ()):
            raise invalid(
                f"{name}={str(value)[:40]} is not supported: leave it out, or send {off!r}", name, "unsupported"
            )
    if body.n_predict == 0:
        raise invalid("n_predict=0 gives nothing: use at least 1, or -1 for what the context holds", "n_predict")
    if (body.n_cmpl or 1) > max_n:
        raise invalid(f"n_cmpl={body.n_cmpl} outputs of one prompt: ask for at most {max_n}", "n_cmpl")
    if body.grammar and body.json_schema is not None:
        raise invalid("grammar and json_schema both say what to write: give one", "json_schema")
    if body.ignore_eos and (body.grammar or body.json_schema is not None):
        raise invalid("ignore_eos contradicts a form, which ends where it is complete: leave one out", "ignore_eos")
    if body.samplers is not None:
        _check_samplers(body.samplers, _sampler_values(body)["temperature"])


def _check_samplers(names: Sequence[str], temperature: float) -> None:
    unknown = [name for name in names if name not in (*SAMPLERS, *IDLE_SAMPLERS)]
    if unknown:
        known = ", ".join(SAMPLERS)
        raise invalid(f"samplers names {unknown[0]!r}, which this server lacks: use {known}", "samplers", "unsupported")
    # A temperature of 1 changes nothing wherever it stands, and no filter takes away the likeliest token.
    acting = [name for name in names if name in SAMPLERS and not (name == "temperature" and temperature == 1)]
    in_order = acting == [name for name in SAMPLERS if name in acting]
    if not in_order and (temperature > 0 or "penalties" in acting[1:]):
        order = ", ".join(SAMPLERS)
        raise invalid(f"samplers act in this order here: {order}; keep to it, or leave it out", "samplers")


def _sampler_values(body: LlamaCppRequest) -> dict[str, Any]:
    """The samplers' values: given, llama.cpp's own, or off where ``samplers`` leaves one out."""
    named = SAMPLERS if body.samplers is None else body.samplers
    given = {}
    for name, (default, off, sampler) in SAMPLER_OPTIONS.items():
        value = getattr(body, name)
        given[name] = off if sampler not in named else default if value is None else value
    return given


def limit(body: LlamaCppRequest, server_limit: int | None) -> int | None:
    """Tokens to generate at most; None: as many as the context holds."""
    requested = None if body.n_predict in (None, -1) else body.n_predict
    return min((most for most in (requested, server_limit) if most is not None), default=None)


def sampling(body: LlamaCppRequest, tokenizer: Tokenizer, max_tokens: int) -> SamplingParams:
    """Raises ApiError, or InvalidRequestError for values that the schema cannot check."""
    given = _sampler_values(body)
    bias, banned = biases(body, tokenizer)
    form: dict[str, Any] = {"grammar": body.grammar or None, "json_schema": body.json_schema}
    return SamplingParams(
        max_tokens=max_tokens,
        n=body.n_cmpl or 1,
        seed=None if body.seed in ANY_SEED else body.seed,
        temperature=max(0.0, given["temperature"]),
        top_k=max(0, given["top_k"]),
        top_p=given["top_p"],
        min_p=given["min_p"],
        repetition_penalty=given["repeat_penalty"],
        presence_penalty=given["presence_penalty"],
        frequency_penalty=given["frequency_penalty"],
        logit_bias=bias,
        banned_token_ids=banned,
        stop=body.stop or (),
        logprobs=body.n_probs or None,
        structured=StructuredOutput(**form) if any(value is not None for value in form.values()) else None,
    )


def biases(body: LlamaCppRequest, tokenizer: Tokenizer) -> tuple[dict[int, float], list[int]]:
    """(numbers to add by token, tokens that never come): those of a text are for each of its tokens, and add up."""
    bias: dict[int, float] = {}
    banned = list(tokenizer.eos_token_ids) if body.ignore_eos else []
    for token, value in _pairs(body.logit_bias or {}):
        ids = [token] if isinstance(token, int) else tokenizer.encode(token, add_special_tokens=False)
        for i in ids:
            if value is False:
                banned.append(i)
            else:
                bias[i] = bias.get(i, 0.0) + value
    return bias, banned


def _pairs(given: Mapping[str, float | bool] | Sequence[Sequence[Any]]) -> list[tuple[int | str, Any]]:
    if isinstance(given, Mapping):
        pairs: list[Any] = [(_key(name), value) for name, value in given.items()]
    else:
        pairs = [tuple(pair) for pair in given]
    for pair in pairs:
        right = len(pair) == 2 and type(pair[0]) in (int, str) and (pair[1] is False or type(pair[1]) in (int, float))
        if not right or (isinstance(pair[0], int) and pair[0] < 0):
            raise invalid("logit_bias is made of pairs: a token id or a text, and a number or false", "logit_bias")
    return pairs


def _key(name: str) -> int | str:
    return int(name) if name.isascii() and name.isdigit() and len(name) < 10 else name


def speculation(body: LlamaCppRequest, default: SpeculationParams) -> SpeculationParams:
    """As elsewhere; ``speculative.n_max`` is the draft length, if ``speculation`` gives none."""
    chosen = options.speculation(body, default)
    if body.n_max is None:
        return chosen
    if body.speculation is not None:
        raise invalid("speculation and speculative.n_max both say how to draft: give one", "speculative.n_max")
    return replace(chosen, draft="none") if body.n_max == 0 else replace(chosen, spec_length=body.n_max)


def renamed(error: InvalidRequestError, body: LlamaCppRequest) -> ApiError:
    """An error of the engine's, under the name of the field that the client gave."""
    param = error.param
    if param in {"structured", *KINDS}:
        param = "grammar" if body.json_schema is None else "json_schema"
    return invalid(str(error), _NAMES.get(param or "", param))


def settings(body: LlamaCppRequest, params: SamplingParams, most: int | None, context: int) -> dict[str, Any]:
    """``generation_settings``: the settings in effect."""
    names = {"n_min": "speculative.n_min", "p_min": "speculative.p_min"}
    fields: dict[str, Any] = {"n_ctx": context} | {names.get(name, name): off for name, off in UNSUPPORTED_OFF.items()}
    fields |= {name: default if (v := getattr(body, name)) is None else v for name, default in INERT_DEFAULTS.items()}
    bias: list[dict[str, Any]] = [{"token": token, "bias": value} for token, value in params.logit_bias.items()]
    bias += [{"token": token, "bias": None} for token in params.banned_token_ids]
    used = [name for name in SAMPLERS if body.samplers is None or name in body.samplers]
    most = -1 if most is None else most
    return fields | {
        "temperature": params.temperature,
        "top_k": params.top_k,
        "top_p": params.top_p,
        "min_p": params.min_p,
        "repeat_penalty": params.repetition_penalty,
        "presence_penalty": params.presence_penalty,
        "frequency_penalty": params.frequency_penalty,
        "stop": list(params.stop),
        "max_tokens": most,
        "n_predict": most,
        "ignore_eos": bool(body.ignore_eos),
        "stream": bool(body.stream),
        "logit_bias": bias,
        "n_probs": body.n_probs or 0,
        "grammar": body.grammar or "",
        "samplers": used,
        "timings_per_token": bool(body.timings_per_token),
    }
