"""Parameters of a request, given as objects, as dicts, or as keywords."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any, Literal, TypedDict, TypeVar

from outrider.config import aliases
from outrider.config.adapters import LoRARequest
from outrider.config.fields import accept
from outrider.config.options import ENGINE_OPTIONS
from outrider.config.sampling import SamplingParams
from outrider.config.speculation import SpeculationParams
from outrider.config.structured import StructuredOutput
from outrider.errors import InvalidRequestError
from outrider.utils.json_files import shown

T = TypeVar("T", SamplingParams, SpeculationParams)

Params = SamplingParams | Mapping[str, Any] | None
Speculation = SpeculationParams | Mapping[str, Any] | None


class SamplingOptions(TypedDict, total=False):
    """The fields of ``SamplingParams`` as keywords, with its defaults and documentation, and their aliases."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Iterable[int] | None
    banned_token_ids: Iterable[int]
    seed: int | None
    stop: str | Iterable[str]
    stop_token_ids: Iterable[int]
    ignore_eos: bool
    n: int
    beam_width: int
    length_penalty: float
    early_stopping: bool | Literal["never"]
    num_beam_groups: int
    diversity_penalty: float
    prompt_logprobs: int | None
    logprobs: int | None
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"]
    skip_special_tokens: bool
    structured: StructuredOutput | None

    max_new_tokens: int
    num_beams: int
    num_return_sequences: int


class Scheduling(TypedDict, total=False):
    """Priority, tenant and prefix sharing of a request, and its reports besides tokens."""

    priority: int  # lower runs first; default 0
    cache_salt: str  # only requests with the same one share cached prefixes and what is learned; default ""
    tenant: str  # tenants share the machine fairly, whatever each asks for; default ""
    lora_request: LoRARequest | None  # the adapter that is added to the model; default none
    reports_drafts: bool  # each step's last ``StepOutput`` has the step's draft; default False
    reports_logits: bool  # each ``StepOutput`` has a digest of its logits, and the likeliest tokens; default False


class RequestOptions(SamplingOptions, Scheduling, total=False):
    """Keywords of ``LLM.generate`` and its like."""


_SAMPLING = frozenset(SamplingOptions.__annotations__)
_SCHEDULING = frozenset(Scheduling.__annotations__)
_DRAFTING = frozenset(field.name for field in fields(SpeculationParams))
_ELSEWHERE = {
    "use_tqdm": "progress=True shows a bar here",
    "stream": "LLM.stream yields tokens as they come",
    "prompt_token_ids": "give the token ids in place of a text",
    "guided_decoding": "write structured=StructuredOutput(...)",
    "structured_outputs": "write structured=StructuredOutput(...)",
    "do_sample": "a temperature above 0 samples, 0 does not",
}
"""Keywords of vLLM and transformers that are something else here."""


def request_options(
    params: Params, speculation: Speculation, options: Mapping[str, Any]
) -> tuple[SamplingParams, SpeculationParams | None, Scheduling]:
    """One request's parameters, given as objects, dicts or keywords, and the rest of its ``options``.

    Raises:
        InvalidRequestError: an option is unknown, has a wrong type, or is given twice; the message has the remedy.
        ConfigError: the same for an option of ``SpeculationParams``.
    """
    scheduling = {name: value for name, value in options.items() if name in _SCHEDULING}
    own = {name: value for name, value in options.items() if name not in _SCHEDULING}
    for name, value in own.items():
        if name not in _SAMPLING:
            raise InvalidRequestError(_not_here(name, value), param=name)
    if own and params is not None:
        name = next(iter(own))
        raise InvalidRequestError(f"params and {name} are both given: put everything into one of them", param=name)
    made = SamplingParams(**own) if params is None else _made(SamplingParams, params, "params")
    drafting = None if speculation is None else _made(SpeculationParams, speculation, "speculation")
    return made, drafting, scheduling  # type: ignore[return-value]  # its keys are those of Scheduling


def _made(kind: type[T], value: object, name: str) -> T:
    if isinstance(value, kind):
        return value
    if isinstance(value, Mapping):
        return kind(**value)
    example = f"draft={value!r}" if isinstance(value, str) and kind is SpeculationParams else "..."
    raise InvalidRequestError(
        f"{name}={shown(value)} is no {kind.__name__}: write {name}={kind.__name__}({example})", param=name
    )


def _not_here(name: str, value: object) -> str:
    """The hint for an unknown option ``name``: where it belongs, or a similar name."""
    if name in _ELSEWHERE:
        return f"{name} is no option of a request: {_ELSEWHERE[name]}"
    if name in _DRAFTING:
        return (
            f"{name} is an option of SpeculationParams: write speculation=SpeculationParams({name}={shown(value)}), or "
            "give it to LLM for all requests"
        )
    if name in ENGINE_OPTIONS:
        return f"{name} is an option of the engine: give it to LLM"
    try:
        accept(
            "a request",
            {name: value},
            [*SamplingParams.__dataclass_fields__, *_SCHEDULING],
            aliases.SAMPLING,
            InvalidRequestError,
        )
    except InvalidRequestError as error:
        return str(error)
    raise AssertionError(f"{name} is known after all")
