"""A request's fields as the engine's own options: ``SamplingParams`` and ``SpeculationParams``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from outrider.config import SamplingParams, SpeculationParams
from outrider.config.adapters import LoRARequest
from outrider.config.options import draft_of_method
from outrider.config.structured import StructuredOutput
from outrider.errors import ConfigError
from outrider_server.http.errors import invalid
from outrider_server.openai.schema.base import GenerationRequest, PredictedOutput, SamplingRequest
from outrider_server.openai.schema.speculation import SpeculationOptions
from outrider_server.service import Service

_SAME_NAME = (
    "seed",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "stop",
    "stop_token_ids",
    "allowed_token_ids",
    "min_tokens",
    "length_penalty",
    "early_stopping",
    "ignore_eos",
    "skip_special_tokens",
)


def sampling(
    body: SamplingRequest,
    *,
    max_tokens: int,
    n: int,
    logprobs: int | None,
    prompt_logprobs: int | None = None,
    structured: StructuredOutput | None = None,
) -> SamplingParams:
    """The request's sampling options; temperature is 1 unless given, as with OpenAI.

    Raises InvalidRequestError for what the fields' own checks let pass.
    """
    given = {name: value for name in _SAME_NAME if (value := getattr(body, name)) is not None}
    usual = _beams(body, n) if body.use_beam_search else {"temperature": 1.0}
    return SamplingParams(
        **(usual | given),
        structured=structured,
        max_tokens=max_tokens,
        n=n,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
        logit_bias=_bias(body.logit_bias or {}),
    )


def _beams(body: SamplingRequest, n: int) -> dict[str, Any]:
    """Beam search, which vLLM asks for with as many beams as outputs."""
    return {"beam_width": body.beam_width or max(n, getattr(body, "best_of", None) or 1)}


def _bias(given: dict[str, float]) -> dict[int, float]:
    for key in given:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and key == str(int(key))):  # one spelling of each
            raise invalid(f"logit_bias={key[:40]!r} is not valid: keys are token ids", "logit_bias")
    return {int(key): value for key, value in given.items()}


def speculation(body: GenerationRequest, default: SpeculationParams) -> SpeculationParams:
    """The server's way to draft with the request's changes; a prediction is drafted from unless told otherwise."""
    chosen = default
    requested = body.speculation
    if requested == "off":
        chosen = replace(default, draft="none")
    elif isinstance(requested, SpeculationOptions):
        chosen = _changed(default, requested)
    if body.prediction is not None:
        chosen = _with_prediction(chosen, body.prediction, requested)
    return chosen


def _changed(default: SpeculationParams, requested: SpeculationOptions) -> SpeculationParams:
    given = requested.model_dump(exclude_unset=True)  # null, where it was sent, is a value of its own
    for name in ("draft", "method", "spec_length", "num_speculative_tokens", "verifier"):
        if given.get(name) is None:
            given.pop(name, None)
    length = given.pop("num_speculative_tokens", None)
    if length is not None and given.setdefault("spec_length", length) != length:
        raise invalid("spec_length and num_speculative_tokens differ: give one", "speculation.spec_length")
    method = given.pop("method", None)
    if method is not None:
        source = draft_of_method(method)
        if given.setdefault("draft", source) != source:
            raise invalid(f"method={method!r} is draft={source!r}, and another is given: give one", "speculation.draft")
    try:
        return replace(default, **given)
    except ConfigError as error:
        name = str(error).partition("=")[0]
        raise invalid(str(error), f"speculation.{name}" if name in given else "speculation") from None


def _with_prediction(
    chosen: SpeculationParams, prediction: PredictedOutput, requested: SpeculationOptions | str | None
) -> SpeculationParams:
    """Draft from the text the caller expects. It changes how fast the answer comes, never what it says."""
    content = prediction.content
    text = content if isinstance(content, str) else "".join(part.text for part in content)
    named = requested == "off" or (
        isinstance(requested, SpeculationOptions) and (requested.draft, requested.method) != (None, None)
    )
    return replace(chosen, prediction=text, draft=chosen.draft if named else "prediction")


def scheduling(
    service: Service, body: GenerationRequest, tenant: str, *, cache_salt: str | None = None
) -> dict[str, Any]:
    """When the request runs, and with whom it shares; ``cache_salt`` in place of the request's own.

    Raises ApiError if it sets a priority, and callers here may not.
    """
    check_priority(service, body.priority)
    salt = body.cache_salt or "" if cache_salt is None else cache_salt
    domain = service.callers.domain(tenant, salt)
    adapter = adapter_of(service, body.model)
    return {"priority": body.priority or 0, "cache_salt": domain, "tenant": tenant, "lora_request": adapter}


def adapter_of(service: Service, model: str | None) -> LoRARequest | None:
    """The adapter that a request names as its model, if it is one."""
    return LoRARequest(model) if model is not None and model in service.engine.llm.adapters.names else None


def check_priority(service: Service, priority: int | None) -> None:
    """Raises ApiError for a priority where callers may not set one."""
    if priority and service.settings.scheduling_policy != "priority":
        message = f"priority={priority} is not for callers to set here: leave it out"
        raise invalid(f"{message}, or start the server with --scheduling-policy priority", "priority", "unsupported")


def check_stream_options(body: SamplingRequest) -> None:
    wanted = body.stream_options
    if wanted is not None and not body.stream:
        raise invalid("stream_options are for streams: set stream, or leave them out", "stream_options")
    if wanted is not None and wanted.continuous_usage_stats and not wanted.include_usage:
        raise invalid("continuous_usage_stats needs include_usage: set both", "stream_options")
