"""Requests and their tokens as lines of JSON, which ``outrider replay`` runs again.

The file is the operator's: it holds all callers' prompts (as token ids) and answers, and no keys or addresses. Only its
owner can read it.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from outrider import __version__
from outrider.config import SamplingParams
from outrider.config.structured import StructuredOutput
from outrider.engine.request import Request, StepOutput
from outrider.errors import ConfigError, OutriderError
from outrider.models.inputs import TEXT
from outrider.native.processor import processor_name

__all__ = ["Recorded", "append", "read_record"]

FORMAT = "outrider-record 1"
ORIGINS = {"target": "t", "accepted": "a", "recovered": "r", "bonus": "b"}

_DEFAULTS = SamplingParams()
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Recorded:
    """One sequence: a line of the file."""

    prompt: list[int]
    params: dict[str, Any]
    """Fields of ``SamplingParams`` that are not the default, the seed among them."""
    output: list[int]
    text: str
    origins: str
    """A letter for each token: target, accepted, recovered or bonus; every step ends with one not accepted."""
    finish_reason: Literal["stop", "length"] | None
    """None: the request was given up, and the output is a beginning."""
    left_out: str | None
    """The reason why this sequence cannot be run again."""
    model: str
    model_digest: str
    dtype: str
    id: str = ""
    format: str = FORMAT
    time: str = ""
    version: str = __version__
    processor: str = field(default_factory=processor_name)
    logprobs: list[dict[str, float]] | None = None
    """Of each token, if the request asked: log-probabilities by token id."""

    def step_of(self, token: int) -> int:
        """The step, from 0, that gave the token with this index."""
        return sum(letter != "a" for letter in self.origins[:token])

    def sampling(self) -> SamplingParams:
        """The options to run it again with. Raises ConfigError for options that this version does not have."""
        given = dict(self.params)
        if "structured" in given:
            given["structured"] = StructuredOutput(**given["structured"])
        if "logit_bias" in given:
            given["logit_bias"] = {int(token): value for token, value in given["logit_bias"].items()}
        if self.finish_reason is None:
            given["max_tokens"] = len(self.output)
            given["min_tokens"] = min(given.get("min_tokens", 0), len(self.output))
        try:
            return SamplingParams(**given)
        except (TypeError, OutriderError) as error:
            raise ConfigError(f"the request {self.id} was recorded by another version: {error}") from None


def append(
    path: Path, name: str, model: str, digest: str, dtype: str, requests: Sequence[Request],
    steps: Sequence[Sequence[StepOutput]],
) -> None:  # fmt: skip
    """Write a line for each sequence. A file that cannot be written costs a line in the log, and no answer."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    lines = ""
    for index, (request, own) in enumerate(zip(requests, steps, strict=True)):
        recorded = Recorded(
            prompt=list(request.prompt),
            params=_given(request),
            output=[step.token_id for step in own],
            text=request.text,
            origins="".join(ORIGINS[step.origin] for step in own),
            finish_reason=request.finish_reason,
            left_out=_left_out(request, own),
            model=model,
            model_digest=digest,
            dtype=dtype,
            id=f"{name}-{index}",
            time=now,
            logprobs=None if request.params.logprobs is None else [_named(step.logprobs or {}) for step in own],
        )
        lines += json.dumps(asdict(recorded), ensure_ascii=False) + "\n"
    try:
        file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(file, lines.encode())
        finally:
            os.close(file)
    except OSError as error:
        logger.warning("cannot record to %s: %s", path, error.strerror)


def _given(request: Request) -> dict[str, Any]:
    params = asdict(replace(request.params, n=1, seed=request.seed, prompt_logprobs=None))
    return {name: value for name, value in params.items() if value != getattr(_DEFAULTS, name)}


def _named(logprobs: Mapping[int, float]) -> dict[str, float]:
    return {str(token): value for token, value in logprobs.items()}


def _left_out(request: Request, steps: Sequence[StepOutput]) -> str | None:
    if request.input is not TEXT:
        return "it has input other than text, or an adapter"
    if request.params.beam_width or request.method is not None:
        return "it is no sampling"
    if not request.verifier.shares_noise:
        return f"the verifier {request.speculation.verifier} does not keep tokens"
    return None if steps else "it has no tokens"


def read_record(path: Path) -> Iterator[Recorded]:
    """The lines of a file. Raises ConfigError for a file that is no record."""
    names = {own.name for own in fields(Recorded)}
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                found = json.loads(line)
                if not isinstance(found, dict) or found.get("format") != FORMAT or set(found) != names:
                    raise ConfigError(f"{path}, line {number}: it is no record of this version")
                yield Recorded(**found)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{path} is no record of outrider serve --record") from None
