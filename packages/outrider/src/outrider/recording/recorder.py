"""Writes the requests of an ``LLM`` or a server to a record."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from outrider.config import SamplingParams
from outrider.engine.request import Request, StepOutput
from outrider.models.base import LoadedModel
from outrider.models.inputs import TEXT
from outrider.recording.model_files import model_digest, precision_name
from outrider.recording.records import Recorded
from outrider.utils.system import private_file
from outrider.utils.whole_files import check_place

__all__ = ["Recorder"]

ORIGINS = {"target": "t", "accepted": "a", "recovered": "r", "bonus": "b"}

_DEFAULTS = SamplingParams()
logger = logging.getLogger(__name__)


class Recorder:
    """Appends sequences to a file. In ``with``, it ends there."""

    def __init__(self, path: Path, model: str, loaded: LoadedModel, *, logits: bool = False) -> None:
        """Args:
            path: made if it is not there.
            model: as it was named to load it; its files are read for their digest.
            logits: whether requests should have ``reports_logits``, which are kept.

        Raises:
            ConfigError: nothing can be written there.
        """  # fmt: skip
        check_place(path)
        self.path, self.model, self.logits, self.active = path, model, logits, True
        self.dtype = precision_name(loaded)
        self._digests = {"": model_digest(model)}  # by the weights that have replaced those of the files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Record no more."""
        self.active = False

    def add(
        self, requests: Sequence[Request], steps: Sequence[Sequence[StepOutput]], name: str = "", model: str = ""
    ) -> None:
        """Write a line for each sequence. A file that cannot be written costs a line in the log, and no answer.

        Args:
            name: of the requests together; "": each has its own.
            model: a name for the model other than the recorder's.
        """
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
                model=model or self.model,
                model_digest=self._digest(request.weights),
                dtype=self.dtype,
                id=f"{name}-{index}" if name else f"request-{request.id}",
                time=now,
                logprobs=_logprobs(request, own),
                logits=[step.logits.digest for step in own if step.logits] if request.reports_logits else None,
            )
            lines += json.dumps(asdict(recorded), ensure_ascii=False) + "\n"
        try:
            file = private_file(self.path, "a")
            try:
                os.write(file, lines.encode())
            finally:
                os.close(file)
        except OSError as error:
            logger.warning("cannot record to %s: %s", self.path, error.strerror)

    def _digest(self, weights: str) -> str:
        if weights not in self._digests:
            self._digests[weights] = model_digest(self.model, weights)
        return self._digests[weights]

    def follow(self, request: Request, steps: Generator[StepOutput]) -> Iterator[StepOutput]:
        """The tokens of a stream, which is written when it ends, or is left."""
        given: list[StepOutput] = []
        try:
            with closing(steps):
                for step in steps:
                    given.append(step)
                    yield step
        finally:
            if self.active:
                self.add([request], [given])


def _given(request: Request) -> dict[str, Any]:
    params = asdict(replace(request.params, n=1, seed=request.seed, prompt_logprobs=None))
    return {name: value for name, value in params.items() if value != getattr(_DEFAULTS, name)}


def _logprobs(request: Request, steps: Sequence[StepOutput]) -> list[dict[str, float]] | None:
    if request.params.logprobs is not None:
        found = [step.logprobs or {} for step in steps]
    elif request.reports_logits:
        found = [step.logits.logprobs if step.logits else {} for step in steps]
    else:
        return None
    return [{str(token): value for token, value in each.items()} for each in found]


def _left_out(request: Request, steps: Sequence[StepOutput]) -> str | None:
    if request.input is not TEXT:
        return "it has input other than text, or an adapter"
    if request.params.beam_width or request.method is not None:
        return "it is no sampling"
    if not request.verifier.shares_noise:
        return f"the verifier {request.speculation.verifier} does not keep tokens"
    return None if steps else "it has no tokens"
