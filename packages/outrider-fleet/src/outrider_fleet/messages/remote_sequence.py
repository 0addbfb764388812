"""A sequence as the ingress has it: the journal of sent tokens, from which another replica goes on.

Output is a pure function of request and seed. So a replica that is given prompt and output so far goes on with the
very tokens that the lost one would have given, as an engine does after a preemption::

    sent to the client     a b c d e f g h i j
    given to the next one  a b c d e f                 it reads them as it reads the prompt: one pass, not ten
    it says                            g h i j k l     the first four are compared, and not sent again

Verifiers whose draws depend on drafts keep the distribution and not the tokens: there nothing is compared, and
the rest is drawn anew after the sent tokens, which has the same distribution.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from outrider.engine.request import Request, StepOutput
from outrider.engine.request_state import Ranked
from outrider.verify.logprobs import TokenLogprobs
from outrider_fleet.messages.wire import Message, draft_report, read_stats

OVERLAP = 4  # tokens at the end of the sent ones that the next replica repeats


class ReplicaDiffersError(Exception):
    """A replica did not repeat another's tokens: it is not the same model, or its arithmetic is broken."""


class RemoteSequence:
    """Follows one request that runs elsewhere."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self._expected: deque[int] = deque()
        self._prompt_rows: list[dict[int, float]] = []

    @property
    def finished(self) -> bool:
        return self.request.finish_reason is not None

    def begin(self) -> Sequence[int]:
        """Output that a replica is given with the prompt, to begin with or to go on; it says the rest again."""
        output = self.request.output
        again = min(OVERLAP, len(output)) if self.request.verifier.shares_noise else 0
        known = output[: len(output) - again]
        self._expected = deque(output[len(known) :])
        return known

    def take(self, burst: Message) -> list[StepOutput]:
        """Commit the tokens of a step; tokens that the client has already are compared and left out.

        Raises ReplicaDiffersError.
        """
        request, steps = self.request, self._commit(burst)
        if "end" in burst:
            if not self.finished:
                raise ReplicaDiffersError("a replica ended a sequence that has not ended")
            read_stats(request.stats, burst["end"])
            if steps:
                steps[-1] = replace(steps[-1], acceptance_rate=request.stats.draft_acceptance_rate)
        return steps

    def take_found(self, bursts: Sequence[Message], found: Sequence[Any]) -> list[StepOutput]:
        """Commit an output of a beam search, whole: its bursts, and its score, log-probability and end."""
        request = self.request
        score, sum_logprobs, reason = found
        request.ranked = Ranked(score, sum_logprobs)
        steps = [step for burst in bursts for step in self._commit(burst)]
        for burst in bursts:
            if "end" in burst:
                read_stats(request.stats, burst["end"])
        if not self.finished:  # the context is full, or the search found fewer outputs
            request.finish_reason = reason
            steps[-1:] = [replace(last, finish_reason=reason) for last in steps[-1:]]
        return steps

    def _commit(self, burst: Message) -> list[StepOutput]:
        request = self.request
        now = time.perf_counter()
        times = request.times
        if times.started is None:
            times.started = times.arrived
        if times.first_token is None:
            times.first_token = now
        if "cached" in burst:
            request.stats.cached_prompt_tokens = burst["cached"]
        if "prompt_logprobs" in burst:
            self._prompt_rows[burst.get("row", 0) :] = [dict(row) for row in burst["prompt_logprobs"]]
            request.prompt_report.logprobs = _RemoteLogprobs(self._prompt_rows)
        steps = [step for entry in burst["steps"] if (step := self._step(entry)) is not None]
        if "hidden" in burst:
            request.prompt_report.hidden_sum = np.array(burst["hidden"], np.float64)
        return steps

    def _step(self, entry: list[object]) -> StepOutput | None:
        token, origin, source, logprobs, draft = entry
        if self._expected:
            if token != (expected := self._expected.popleft()):
                raise ReplicaDiffersError(f"token {token} where {expected} was sent")
            return None
        if self.finished:
            raise ReplicaDiffersError("a replica went on with a sequence that has ended")
        text = self.request.append(token)  # type: ignore[arg-type]
        return StepOutput(
            self.request.id,
            token,  # type: ignore[arg-type]
            text,
            origin,  # type: ignore[arg-type]
            source,  # type: ignore[arg-type]
            None if logprobs is None else {int(key): value for key, value in logprobs},  # type: ignore[attr-defined]
            self.request.finish_reason,
            draft=draft_report(draft),  # type: ignore[arg-type]
        )


class _RemoteLogprobs(TokenLogprobs):
    """Rows that another engine worked out."""

    def __init__(self, rows: list[dict[int, float]]) -> None:
        super().__init__()
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return self._rows[index]
