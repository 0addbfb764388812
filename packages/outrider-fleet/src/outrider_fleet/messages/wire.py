"""Messages between ingress and replicas about requests: JSON, so that nothing that arrives is ever executed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import Any

from outrider import errors
from outrider.config import SamplingParams, SpeculationParams
from outrider.config.adapters import LoRARequest
from outrider.config.structured import StructuredOutput
from outrider.engine.request import Request, StepOutput
from outrider.engine.stats import RequestStats
from outrider.errors import InvalidRequestError, OutriderError
from outrider.llm import LLM
from outrider.tokenizer.detokenizer import IncrementalDetokenizer
from outrider.verify.draft import DraftReport

Message = dict[str, Any]

_COUNTERS = ("drafted_at", "accepted_at", "drafted_by", "accepted_by")
_STATS = tuple(field.name for field in fields(RequestStats) if field.name != "by_rank")  # which no answer shows
_ERRORS = {
    kind.__name__: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, OutriderError) and kind is not errors.EngineDeadError
}


def encode(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":"), default=list).encode()


def decode(data: bytes) -> Message:
    """Raises ValueError for data that is no JSON object, or is nested too deeply."""
    try:
        value = json.loads(data)
    except RecursionError:
        raise ValueError("a message is nested too deeply") from None
    if not isinstance(value, dict):
        raise ValueError("a message is a JSON object")
    return value


def request_message(request: Request, known: Sequence[int]) -> Message:
    """A request as a replica is given it; ``known`` is output that it has already, and that goes before."""
    detokenizer = request.written.detokenizer
    shown = detokenizer.shown if isinstance(detokenizer, IncrementalDetokenizer) else ()
    return {
        "prompt": request.prompt,
        "params": asdict(request.params) | {"seed": request.seed, "n": 1},
        "speculation": asdict(request.speculation),
        "priority": request.priority,
        "domain": request.cache_salt,
        "tenant": request.tenant,
        "reports_drafts": request.reports_drafts,
        "embeds": request.prompt_report.final_norm is not None,
        "adapter": getattr(request.input, "name", None),
        "shown": sorted(shown),
        "known": list(known),
    }


def request_messages(requests: Sequence[Request], known: Sequence[Sequence[int]]) -> list[Message]:
    """The requests of one prompt: the first one whole, of the others only seed and known tokens."""
    first, *others = zip(requests, known, strict=True)
    rest: list[Message] = [{"seed": request.seed, "known": list(own)} for request, own in others]
    return [request_message(*first), *rest]


def make_requests(llm: LLM, messages: Sequence[Message]) -> list[Request]:
    """The requests of one prompt (``request_messages``), checked. Raises OutriderError as ``LLM.requests`` does."""
    messages = [messages[0], *(_whole(messages[0], own) for own in messages[1:])]
    if messages[0]["params"]["beam_width"]:  # one search finds all of them
        found = _made(llm, messages[0], len(messages))
    else:
        found = [_made(llm, message, 1)[0] for message in messages]
        for request in found[1:]:
            request.prefix_leader = found[0]
    for request, message in zip(found, messages, strict=True):
        if message["embeds"]:
            request.prompt_report.final_norm = llm.model.final_norm
        if isinstance(request.written.detokenizer, IncrementalDetokenizer):
            request.written.detokenizer.show(message["shown"])
        request.max_seq_len = llm.engine.max_seq_len
        for token in message["known"]:
            request.append(token)
    return found


def _whole(first: Message, own: Message) -> Message:
    return {**first, "params": {**first["params"], "seed": own["seed"]}, "known": own["known"]}


def _made(llm: LLM, message: Message, n: int) -> list[Request]:
    adapter = message["adapter"]
    return llm.requests(
        message["prompt"],
        replace(_params(message["params"]), n=n),
        SpeculationParams(**message["speculation"]),
        priority=message["priority"],
        cache_salt=message["domain"],
        tenant=message["tenant"],
        reports_drafts=message["reports_drafts"],
        lora_request=None if adapter is None else LoRARequest(adapter),
    )


def _params(values: Mapping[str, Any]) -> SamplingParams:
    given = dict(values) | {"logit_bias": {int(key): value for key, value in values["logit_bias"].items()}}
    if given["structured"] is not None:
        form = dict(given["structured"])
        form["thinking"] = form["thinking"] and tuple(form["thinking"])
        given["structured"] = StructuredOutput(**form)
    return SamplingParams(**given)


def step_message(step: StepOutput) -> list[Any]:
    logprobs = None if step.logprobs is None else list(step.logprobs.items())
    return [step.token_id, step.origin, step.source, logprobs, None if step.draft is None else asdict(step.draft)]


def draft_report(value: Mapping[str, Any] | None) -> DraftReport | None:
    if value is None:
        return None
    fields_: dict[str, Any] = {key: tuple(e) if isinstance(e, list) else e for key, e in value.items()}
    return DraftReport(**fields_)


def stats_message(stats: RequestStats) -> Message:
    return {name: getattr(stats, name) for name in _STATS}


def read_stats(stats: RequestStats, message: Mapping[str, Any]) -> None:
    """Copy the counts of a replica."""
    for name in _STATS:
        value = message[name]
        if name in _COUNTERS:
            numbered = name.endswith("_at")
            value = Counter({int(key) if numbered else key: count for key, count in value.items()})
        setattr(stats, name, [tuple(pair) for pair in value] if name == "rounds" else value)


def error_message(error: BaseException) -> Message:
    """A request's own failure. Any other failure has an empty kind: another replica may serve the request."""
    kind = type(error).__name__
    param = getattr(error, "param", None)
    return {"kind": kind if kind in _ERRORS else "", "text": str(error), "param": param}


def read_error(message: Mapping[str, Any]) -> OutriderError | None:
    """The error that ends a request; None where another replica may serve it."""
    kind = _ERRORS.get(message["kind"])
    if kind is None:
        return None
    if issubclass(kind, InvalidRequestError):
        return kind(message["text"], param=message["param"])
    return kind(message["text"])
