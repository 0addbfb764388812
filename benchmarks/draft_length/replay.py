"""Recorded requests on recorded machines: the seconds that a length policy takes for them, and fixed lengths do.

Simulated time: what passes and proposals take is looked up, and a policy is told of it with noise. Nothing depends on
the clock, and so one seed gives the same result on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.draft_length.machines import ROWS, Machine, Noise
from benchmarks.draft_length.record import DEPTH, RIGHT, WRONG, Recording
from outrider.config import SamplingParams, SpeculationParams
from outrider.engine.draft_length.policy import DraftLength, ProposalCost
from outrider.engine.request import Request
from outrider.models.experts import ExpertReads
from outrider.verify.draft import EMPTY, Draft

FIXED = (0, 1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True)
class Played:
    """What became of one request."""

    recording: Recording
    seconds: float  # of its decoding
    plain: float  # the same without drafts
    best: float  # the same with the best of the fixed lengths

    @property
    def speed(self) -> float:
        return self.plain / self.seconds

    @property
    def regret(self) -> float:
        """The share of speed that is lost to the best fixed length."""
        return 1.0 - self.best / self.seconds


def begin(recording: Recording, number: int, machine: Machine) -> Request:
    """A request like the recorded one, with its first token."""
    params = SamplingParams(max_tokens=len(recording) + 1, temperature=0.0 if recording.greedy else 1.0, seed=0)
    speculation = SpeculationParams(draft=recording.source, spec_length="auto")
    request = Request(str(number), (0,) * recording.prompt_tokens, params, speculation, frozenset())
    request.max_seq_len = 1 << 20
    request.num_computed_tokens = machine.context
    request.stats.completion_tokens = 1
    return request


def accepted(draft: Draft) -> list[int]:
    """The nodes on the path of the output, root to leaf."""
    return [node for node, token in enumerate(draft.tokens) if token == RIGHT]


class Machinery:
    """One engine's worth of simulated steps under one policy."""

    def __init__(self, machine: Machine, policy: DraftLength, seed: int) -> None:
        self._machine, self._policy, self._noise = machine, policy, Noise(seed)
        self._random = random.Random(seed)

    def decode(self, recordings: Sequence[Recording], first: int = 0) -> list[float]:
        """Decode these together; seconds until each of them was done."""
        requests = [begin(recording, first + i, self._machine) for i, recording in enumerate(recordings)]
        running, clock, done = list(range(len(requests))), 0.0, [0.0] * len(requests)
        if len(requests) == 1 and recordings[0].prompt_tokens >= ROWS[-1] and self._machine.experts is not None:
            self._policy.observe_prompt(ExpertReads(0, {n: self._union(n) for n in ROWS}))
        while running:
            clock += self._step([requests[i] for i in running], [recordings[i] for i in running])
            for i in running:
                if requests[i].stats.completion_tokens > len(recordings[i]):
                    done[i] = clock
                    self._policy.finish(requests[i].id)
            running = [i for i in running if not done[i]]
        return done

    def _union(self, rows: int) -> float:
        """Experts of a pass, or of windows of a prompt; those of one row are no more and no fewer."""
        return self._machine.union(rows) * (1.0 if rows == 1 else self._random.lognormvariate(0.0, 0.06))

    def _step(self, requests: Sequence[Request], recordings: Sequence[Recording]) -> float:
        policy, machine = self._policy, self._machine
        budgets = policy.budget(requests, [DEPTH if request.depth_limit else 0 for request in requests])
        drafts, proposing = [], 0.0
        for request, recording, budget in zip(requests, recordings, budgets, strict=True):
            draft, seconds = self._propose(request, recording, budget)
            drafts.append(draft)
            proposing += seconds
        kept = policy.select(requests, drafts, [1] * len(requests), budgets)
        rows, contexts = [1 + len(draft) for draft in kept], [request.num_computed_tokens for request in requests]
        scoring, outside = machine.step(rows, contexts, [draft.branches for draft in kept])
        experts = round(self._union(sum(rows)))
        if machine.experts is not None:
            scoring += machine.experts.seconds * (experts - machine.union(sum(rows)))
        policy.observe_forward_pass(requests, kept, self._noise(scoring), experts)
        for request, recording, draft in zip(requests, recordings, kept, strict=True):
            self._commit(request, recording, draft)
        policy.observe_step(len(requests), self._noise(outside) + proposing)
        return scoring + outside + proposing

    def _propose(self, request: Request, recording: Recording, budget: int) -> tuple[Draft, float]:
        """The recorded proposal, as far as the policy lets it grow, and what it took."""
        source, policy = recording.source, self._policy
        if not budget or not policy.asks(request, source, ()):
            return EMPTY, 0.0
        whole = recording.drafts[request.stats.completion_tokens - 1]
        base, level = recording.seconds
        if source == "eagle":  # a chain of passes of a layer, whose time goes with that of the target
            scale, depth = self._machine.seconds[0] / recording.pass_seconds, min(1, len(whole))
            while 0 < depth < len(whole) and policy.should_continue(request, source, [(whole.scores or ())[:depth]]):
                depth += 1
            whole = whole.only(range(depth)) if depth else EMPTY
            seconds = scale * level * depth
        else:
            seconds = base + level * (1 + max(whole.depths) if whole else 0)
        seconds = self._noise(seconds)
        policy.observe_proposals(request, {source: ProposalCost(seconds, 1 + max(whole.depths) if whole else 0)})
        return whole, seconds

    def _commit(self, request: Request, recording: Recording, draft: Draft) -> None:
        path, position = accepted(draft), request.stats.completion_tokens
        whole = recording.drafts[position - 1] if position <= len(recording) else EMPTY
        right = len(accepted(whole)) > len(path)  # whether the next token would have been in the proposal
        committed = [RIGHT] * len(path) + [RIGHT if right else WRONG - 1]
        request.num_computed_tokens += len(committed)
        request.stats.completion_tokens += len(committed)
        self._policy.observe(request, committed, draft, path)


def fixed_seconds(recording: Recording, machine: Machine, length: int) -> float:
    """Seconds of a request with a fixed number of draft nodes, the first of each proposal."""
    at, seconds, context = 0, 0.0, machine.context
    base, level = recording.seconds
    if recording.source == "eagle":
        base, level = 0.0, level * machine.seconds[0] / recording.pass_seconds
    while at < len(recording):
        whole = recording.drafts[at]
        draft = whole.only(range(min(length, len(whole)))) if length and whole else EMPTY
        scoring, outside = machine.step([1 + len(draft)], [context], [draft.branches])
        proposing = base + level * (1 + max(draft.depths) if draft else 0) if length else 0.0
        seconds += scoring + outside + proposing
        at += 1 + len(accepted(draft))
        context += 1 + len(accepted(draft))
    return seconds
