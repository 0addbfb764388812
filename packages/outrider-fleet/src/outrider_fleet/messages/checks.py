"""Checks of replicas' answers before they are used: a replica with a malformed answer is lost."""

from __future__ import annotations

from typing import Annotated, Any, get_type_hints

from pydantic import BaseModel, Field, ValidationError, create_model

from outrider.engine.request import Origin
from outrider.engine.request_state import FinishReason
from outrider.engine.stats import RequestStats
from outrider.verify.draft import DraftReport
from outrider_fleet.messages.replica import ReplicaLostError
from outrider_fleet.messages.wire import Message

_Count = Annotated[int, Field(ge=0)]
_Pairs = list[tuple[int, float | None]]
_COUNTS: dict[str, Any] = {
    name: (hint, ...) for name, hint in get_type_hints(RequestStats).items() if name != "by_rank"
}
_End: Any = create_model("_End", **_COUNTS)


class _Error(BaseModel):
    kind: str
    text: str
    param: str | None


class _Report(BaseModel):
    """See ``EngineHost.run``."""

    i: _Count = 0
    steps: list[tuple[_Count, Origin, str, _Pairs | None, DraftReport | None]] = []
    cached: _Count = 0
    row: _Count = 0
    prompt_logprobs: list[_Pairs] = []
    hidden: list[float] = []
    end: _End = _End.model_construct()
    done: bool = False
    found: list[tuple[float | None, float | None, FinishReason | None]] = []
    error: _Error = _Error(kind="", text="", param=None)


class _Status(BaseModel):
    """See ``EngineHost.status``."""

    alive: bool
    running: _Count
    waiting: _Count
    free_kv_tokens: int
    steps: _Count
    tokens: _Count
    preemptions: _Count
    busy_s: float
    draft_s: float
    sources: dict[str, tuple[_Count, _Count, _Count, list[tuple[int, int]]]]
    learned: list[tuple[str, str, list[_Count]]]
    knows: dict[str, int]
    holds: list[str]


class _Config(BaseModel):
    max_batch_size: Annotated[int, Field(ge=1)]


class _Description(BaseModel):
    """See ``EngineHost.description``; the rest of it is read once, when the model's tokenizer is."""

    name: str
    pid: int
    fingerprint: Annotated[str, Field(min_length=1)]
    config: _Config


def check_part(name: str, part: Message, sequences: int, vocab_size: int) -> None:
    """Check an answer of a run of ``sequences`` sequences. Raises ReplicaLostError."""
    _check(name, _Report, part)
    if "error" in part:
        return
    if "done" in part:
        if len(part.get("found", ())) != sequences:
            raise ReplicaLostError(f"{name}: it ended another number of sequences than it was given")
    elif part.get("i", sequences) >= sequences or "steps" not in part:
        raise ReplicaLostError(f"{name}: it answered for a sequence that it was not given")
    elif any(step[0] >= vocab_size for step in part["steps"]):
        raise ReplicaLostError(f"{name}: it answered with a token that there is not")


def check_status(name: str, status: Message) -> None:
    """Raises ReplicaLostError."""
    _check(name, _Status, status)


def check_description(name: str, description: Message) -> None:
    """Raises ReplicaLostError."""
    _check(name, _Description, description)


def _check(name: str, form: type[BaseModel], message: Message) -> None:
    try:
        form.model_validate(message)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False, include_context=False)[0]
        field = ".".join(map(str, first["loc"][:3]))
        raise ReplicaLostError(f"{name}: its answer makes no sense: {field[:80]}: {first['type']}") from None
