"""One simulated engine. A step is planned as ``engine.scheduler`` plans it for the requests of one tenant.

Decoding requests come first, then their drafts, then prompts chunk by chunk, then waiting requests, then drafts behind
prompts that end in the step. A step costs a few operations on arrays, however many requests it has.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

from outrider.analysis.fleet.machine import Machine
from outrider.analysis.fleet.prefix_cache import PrefixCache
from outrider.analysis.fleet.running import Mask, Progress, Running, share_budget
from outrider.analysis.fleet.workload import Ints


@dataclass
class Counts:
    """What a replica did."""

    steps: int = 0
    busy: float = 0.0  # seconds of work, on a machine of its own
    read: int = 0  # prompt tokens computed
    reused: int = 0  # prompt tokens found in the cache
    drafted: int = 0
    accepted: int = 0
    sequences: int = 0  # over all steps
    preemptions: int = 0


@dataclass(frozen=True)
class Step:
    """One step's plan; arrays are [running requests]."""

    work: float  # seconds, on a machine of its own
    tokens: Ints  # pending ones that are computed
    drafts: Ints
    emits: Mask


@dataclass(frozen=True)
class Ended:
    """What became of a step's requests."""

    done: list[int]  # answered
    handed_on: list[int]  # read here, to be decoded elsewhere
    drafting: list[int]  # that wait for drafts from elsewhere now


class Replica:
    """Requests waiting and running on one machine. ``begin`` and ``end`` enclose a step; the caller has the clock."""

    def __init__(self, number: int, machine: Machine, progress: Progress, rng: np.random.Generator) -> None:
        self.number, self.machine = number, machine
        self.alive = True
        self.only_reads = False  # prompts, for other replicas that decode
        self.remote_drafts = False
        self.counts = Counts()
        self.step: Step | None = None
        self.running = Running(machine.max_batch_size)
        self._progress, self._rng = progress, rng
        self._received: set[int] = set()  # waiting requests whose cache came from elsewhere
        self._reset()

    def _reset(self) -> None:
        machine = self.machine
        self._cache = PrefixCache(machine.kv_tokens, machine.block_size, reuse=machine.prefix_reuse)
        self._waiting: deque[int] = deque()
        self.waiting_tokens = 0  # of their prompts
        self._reading = 0  # running requests that read a prompt
        self.running.count = 0
        self._received.clear()
        self.step = None

    @property
    def load(self) -> int:
        """Requests running and waiting."""
        return len(self.running) + len(self._waiting)

    def cached(self, request: int) -> int:
        """Tokens of a request's prompt that are here."""
        return self._cache.match(self._progress.workload.segments[request])

    def add(self, request: int, *, received: bool = False) -> None:
        """Queue a request; ``received``: with the cache of all its tokens but the last."""
        self._waiting.append(request)
        self.waiting_tokens += 0 if received else int(self._progress.workload.prompts[request])
        if received:
            self._received.add(request)

    def lose_all(self) -> list[int]:
        """The machine dies with all that it held; the requests that were here, in order of rank."""
        lost = [*self.running.id.tolist(), *self._waiting]
        self._reset()
        return lost

    def check(self) -> None:
        """Raise AssertionError unless the cache holds what requests and segments do."""
        self._cache.check()
        if self._cache.own != self.running.own.sum():
            raise AssertionError(f"{self._cache.own} own tokens, but requests hold {self.running.own.sum()}")

    def begin(self, now: float) -> Step | None:
        """Plan a step; None if there is nothing to do before ``next_ready``."""
        if not len(self.running) and not self._waiting:
            return None
        taking = self._decoding(now)
        while not self._cache.make_room(int(taking.sum())):
            self._preempt()
            taking = self._decoding(now)
        tokens = taking.astype(np.int64)
        drafts = self._drafts(taking, tokens, np.zeros_like(tokens))
        if self._reading:
            self._read(tokens, int(drafts.sum()))
        if self._waiting:
            added = self._admit(int(tokens.sum() + drafts.sum()))
            tokens, drafts = np.append(tokens, added), np.append(drafts, np.zeros_like(added))
        emits = tokens == self.running.pending
        if self._reading:
            drafts = drafts + self._drafts(emits & (self.running.pending > 1), tokens, drafts)
        if not tokens.any():
            if self._reading and len(self.running) > 1:  # prompts half read fill the memory
                self._preempt()
                return self.begin(now)
            return None
        self.step = Step(self._work(tokens, drafts), tokens, drafts, emits)
        return self.step

    def end(self, now: float) -> Ended:
        """Commit the step."""
        step, self.step = self.step, None
        assert step is not None
        running, progress, counts = self.running, self._progress, self.counts
        gained = np.where(step.emits, 1 + self._accepted(step.drafts), 0)
        kept = step.tokens - step.emits + gained
        reads = running.pending > 1
        for array in (running.context, running.own):
            array += kept
        self._cache.own += int(kept.sum())
        running.left[:] -= gained
        progress.produced[running.id] += gained
        counts.steps += 1
        counts.busy += step.work
        counts.drafted += int(step.drafts.sum())
        counts.accepted += int(gained.sum() - step.emits.sum())
        counts.sequences += int((step.tokens > 0).sum())
        if self._reading:
            counts.read += int(step.tokens[reads].sum())
            running.pending[reads] -= (step.tokens - step.emits)[reads]
            for place in np.flatnonzero(step.emits & reads).tolist():
                self._reading -= 1
                running.own[place] -= self._cache.publish(progress.workload.segments[running.id[place]])
        new = running.id[step.emits]
        progress.first[new[np.isnan(progress.first[new])]] = now
        return self._leave(step, now)

    def next_ready(self) -> float:
        """Seconds at which the next draft from elsewhere is there."""
        return float(self.running.ready.min(initial=np.inf))

    def drafted(self, requests: list[int], now: float) -> None:
        """Drafts for requests have come."""
        self.running.ready[np.isin(self.running.id, requests)] = now

    def _decoding(self, now: float) -> Mask:
        """Which running requests decode in this step.

        Of those that get drafts from elsewhere, half at most, so that the drafts of the others come meanwhile.
        """
        decoding: Mask = self.running.pending == 1
        if not self.remote_drafts:
            return decoding
        ready = np.flatnonzero(decoding & (self.running.ready <= now))
        half = (int(decoding.sum()) + 1) // 2
        oldest = ready[np.argsort(self.running.ready[ready], kind="stable")[:half]]
        chosen = np.zeros_like(decoding)
        chosen[oldest] = True
        return chosen

    def _drafts(self, asking: Mask, tokens: Ints, drafts: Ints) -> Ints:
        """Draft tokens of the requests that are ``asking``, as far as budget and memory go."""
        draft, count = self.machine.draft, int(asking.sum())
        length = self.machine.draft_lengths[count]
        if draft is None or not length:
            return np.zeros_like(tokens)
        wanted = np.where(asking, np.minimum(length, self.running.left - 1), 0)
        if draft.share < 1:
            wanted[self._rng.random(len(wanted)) >= draft.share] = 0
        taken = int(tokens.sum() + drafts.sum())
        self._cache.make_room(taken + int(wanted.sum()))
        return share_budget(wanted, min(self.machine.max_batched_tokens, self._cache.free) - taken)

    def _read(self, tokens: Ints, drafted: int) -> None:
        """Give prompts that are being read their chunks, in order of rank."""
        taken = int(tokens.sum()) + drafted
        for place in np.flatnonzero(self.running.pending > 1).tolist():
            chunk = min(int(self.running.pending[place]), self.machine.max_batched_tokens - taken)
            if not self._cache.make_room(taken + chunk):
                chunk = max(0, self._cache.free - taken)
            tokens[place] = chunk
            taken += chunk

    def _admit(self, taken: int) -> Ints:
        """Start waiting requests in order while places, memory and budget last; their chunks."""
        chunks: list[int] = []
        workload, block = self._progress.workload, self.machine.block_size
        while self._waiting and taken < self.machine.max_batched_tokens:
            if len(self.running) == self.machine.max_batch_size:
                break
            request = self._waiting[0]
            produced = int(self._progress.produced[request])
            length, segments = int(workload.prompts[request]) + produced, workload.segments[request]
            received = length - 1 if request in self._received else 0
            here = received or min(self._cache.match(segments), (length - 1) // block * block)
            chunk = min(length - here, self.machine.max_batched_tokens - taken)
            self._cache.pin(segments)
            if not self._cache.make_room(taken + received + chunk):
                self._cache.unpin(segments)
                break
            self._waiting.popleft()
            self._received.discard(request)
            self.waiting_tokens -= 0 if received else int(workload.prompts[request])
            self.counts.reused += 0 if received else here
            self.running.add(request, length - here, int(workload.outputs[request]) - produced, here, received)
            self._cache.own += received
            self._reading += length - here > 1
            chunks.append(chunk)
            taken += chunk
        return np.array(chunks, dtype=np.int64)

    def _preempt(self) -> None:
        """The last in rank gives up its place, and waits before all others."""
        request = int(self.running.id[-1])
        self._reading -= int(self.running.pending[-1] > 1)
        self._release(len(self.running) - 1)
        self.running.count -= 1
        self._waiting.appendleft(request)
        self.waiting_tokens += int(self._progress.workload.prompts[request])
        self.counts.preemptions += 1

    def _work(self, tokens: Ints, drafts: Ints) -> float:
        """Seconds of a step."""
        active = tokens > 0
        drafted = int(drafts.sum())
        rows, context = int(tokens.sum()) + drafted, float(self.running.context[active].sum())
        work = self.machine.step_seconds(rows, int(active.sum()), context)
        if drafted and not self.remote_drafts and self.machine.draft is not None:
            drafting = int((drafts > 0).sum())
            work += drafted / drafting * self.machine.draft.seconds(drafting)
        return work

    def _accepted(self, drafts: Ints) -> Ints:
        """Accepted tokens of each draft."""
        if self.machine.draft is None or not drafts.any():
            return np.zeros_like(drafts)
        depth = np.searchsorted(-self.machine.draft.survival, -self._rng.random(len(drafts)))
        return np.minimum(depth, drafts)

    def _leave(self, step: Step, now: float) -> Ended:
        """Take out the requests that end here."""
        answered = self.running.left == 0
        gone = answered | step.emits if self.only_reads else answered
        drafting: list[int] = []
        if self.remote_drafts:
            drafting = self.running.id[step.emits & ~gone].tolist()
            self.running.ready[step.emits] = np.inf
        if not gone.any():
            return Ended([], [], drafting)
        for place in np.flatnonzero(gone).tolist():
            self._release(place)
        done, handed_on = self.running.id[answered], self.running.id[gone & ~answered]
        self._progress.finished[done] = now
        ended = Ended(done.tolist(), handed_on.tolist(), drafting)
        self.running.keep(~gone)
        return ended

    def _release(self, place: int) -> None:
        """Give back what a request holds; its last segment, grown by the answer, stays findable."""
        running, workload = self.running, self._progress.workload
        request, context = int(running.id[place]), int(running.context[place])
        segments, prompt = workload.segments[request], int(workload.prompts[request])
        if workload.grows and context >= prompt:
            name, tokens = segments[-1]
            running.own[place] -= self._cache.publish([(name, context - prompt + tokens)])
        self._cache.unpin(segments)
        self._cache.own -= int(running.own[place])
