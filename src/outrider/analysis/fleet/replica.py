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
    sequences: int
    tokens: Ints | None  # pending ones that are computed; None: each request decodes
    drafts: Ints | None  # None: nobody drafts


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
        self.running = Running(machine.max_batch_size)
        self._progress, self._rng = progress, rng
        self._reset()

    def _reset(self) -> None:
        machine = self.machine
        self._cache = PrefixCache(machine.kv_tokens, machine.block_size, reuse=machine.prefix_reuse)
        self._waiting: deque[int] = deque()
        self._received: set[int] = set()  # waiting requests whose cache came from elsewhere
        self.load = 0  # requests running and waiting
        self.waiting_tokens = 0  # of their prompts
        self.running.count = 0
        self._reading = 0  # running requests that read a prompt
        self._silent = 0  # running requests that have no token yet
        self._context = 0  # tokens in the cache of all running requests
        self.step: Step | None = None

    def cached(self, request: int) -> int:
        """Tokens of a request's prompt that are here."""
        return self._cache.match(self._progress.workload.segments[request])

    def add(self, request: int, *, received: bool = False) -> None:
        """Queue a request; ``received``: with the cache of all its tokens but the last."""
        self._waiting.append(request)
        self.load += 1
        if received:
            self._received.add(request)
        else:
            self.waiting_tokens += int(self._progress.workload.prompts[request])

    def lose_all(self) -> list[int]:
        """The machine dies with all that it held; the requests that were here, in order of rank."""
        running = self.running
        self._progress.produced[running.id] = self._progress.workload.outputs[running.id] - running.left
        lost = [*running.id.tolist(), *self._waiting]
        self._reset()
        return lost

    def check(self) -> None:
        """Raise AssertionError unless cache and counts hold what requests and segments do."""
        self._cache.check()
        running = self.running
        held = int((running.context - running.shared).sum())
        if self._cache.own != held or self._context != running.context.sum():
            raise AssertionError(f"{self._cache.own} own tokens, {self._context} of context; requests hold {held}")
        if self._reading != (running.pending > 1).sum() or self.load != running.count + len(self._waiting):
            raise AssertionError(f"{self._reading} reading, {self.load} in all: {running.pending}, {self._waiting}")

    def begin(self, now: float) -> Step | None:
        """Plan a step; None if there is nothing to do before drafts come from elsewhere."""
        if not self.load:
            return None
        before = self.counts.preemptions
        while not self._cache.make_room(self.running.count - self._reading):
            self._preempt()
        full = not self._waiting or self.running.count == self.machine.max_batch_size
        if full and not self._reading and self.machine.draft is None:
            n = self.running.count
            self.step = Step(self.machine.step_seconds(n, n, self._context), n, None, None)
        else:
            self.step = self._plan(now, before)
        return self.step

    def _plan(self, now: float, preemptions: int) -> Step | None:
        """A step in which requests do different things. ``preemptions``: of all earlier steps."""
        decoding = self._decoding(now)
        tokens: Ints = decoding.astype(np.int64)
        drafts = self._drafts(decoding, int(np.count_nonzero(decoding)))
        again = self._reading > 0
        if self._reading:
            tokens, drafts = self._read(tokens, drafts)
        if self._waiting and self.counts.preemptions == preemptions:  # who was pushed out must not come straight back
            added = self._admit(int(tokens.sum() + drafts.sum()))
            tokens, drafts = np.append(tokens, added), np.append(drafts, np.zeros_like(added))
            again = again or len(added) > 0
        if again and self.machine.draft is not None:
            drafts = drafts + self._drafts(tokens == self.running.pending, int(tokens.sum() + drafts.sum()), drafts)
        if not tokens.any():
            return None
        drafted = drafts if drafts.any() else None
        return Step(self._work(tokens, drafts), int(np.count_nonzero(tokens)), tokens, drafted)

    def end(self, now: float) -> Ended:
        """Commit the step."""
        step, self.step = self.step, None
        assert step is not None
        running, counts = self.running, self.counts
        counts.steps += 1
        counts.busy += step.work
        counts.sequences += step.sequences
        if step.tokens is None and step.drafts is None:
            running.left[:] -= 1
            self._grow(running.count)
            return self._leave(now, None)
        emits = np.ones(running.count, np.bool_) if step.tokens is None else step.tokens == running.pending
        gained = emits.astype(np.int64)
        if step.drafts is not None:
            accepted = self._accepted(step.drafts)
            gained += accepted
            counts.drafted += int(step.drafts.sum())
            counts.accepted += int(accepted.sum())
        running.left[:] -= gained
        read = self._prompts_read(step.tokens, emits) if self._reading and step.tokens is not None else 0
        self._grow(int(gained.sum()) + read)
        if self._silent:
            spoken = running.id[emits]
            new = spoken[np.isnan(self._progress.first[spoken])]
            self._progress.first[new] = now
            self._silent -= len(new)
        return self._leave(now, emits)

    def drafted(self, requests: list[int], now: float) -> None:
        """Drafts for requests have come."""
        self.running.ready[np.isin(self.running.id, requests)] = now

    def _grow(self, tokens: int) -> None:
        """The running requests have so many tokens more in the cache, none of them shared yet."""
        self._context += tokens
        self._cache.own += tokens

    def _prompts_read(self, tokens: Ints, emits: Mask) -> int:
        """Move on in prompts; those that end are offered for reuse. Prompt tokens read, but those that emit."""
        running = self.running
        reads = running.pending > 1
        self.counts.read += int(tokens[reads].sum())
        moved = np.where(reads, tokens - emits, 0)
        running.pending[:] -= moved
        self._reading = int(np.count_nonzero(running.pending > 1))
        for place in np.flatnonzero(reads & emits).tolist():
            running.shared[place] += self._cache.publish(self._progress.workload.segments[running.id[place]])
        return int(moved.sum())

    def _decoding(self, now: float) -> Mask:
        """Which running requests decode in this step.

        Of those that get drafts from elsewhere, half at most, so that the drafts of the others come meanwhile.
        """
        decoding: Mask = self.running.pending == 1
        if not self.remote_drafts:
            return decoding
        ready = np.flatnonzero(decoding & (self.running.ready <= now))
        half = (int(np.count_nonzero(decoding)) + 1) // 2
        chosen = np.zeros_like(decoding)
        chosen[ready[np.argsort(self.running.ready[ready], kind="stable")[:half]]] = True
        return chosen

    def _drafts(self, asking: Mask, taken: int, given: Ints | None = None) -> Ints:
        """Draft tokens beyond those ``given`` before, as far as budget and memory go behind ``taken`` tokens."""
        draft, length = self.machine.draft, self.machine.draft_lengths[int(np.count_nonzero(asking))]
        if draft is None or not length:
            return np.zeros(len(asking), np.int64)
        wanted = np.where(asking, np.minimum(length, self.running.left - 1), 0)
        if draft.share < 1:
            silent = self._rng.random(len(wanted)) >= draft.share
            wanted[silent if given is None else (given == 0) & (silent | (self.running.pending == 1))] = 0
        if given is not None:
            wanted -= np.minimum(given, wanted)
        self._cache.make_room(taken + int(wanted.sum()))
        return share_budget(wanted, self.machine.max_batched_tokens - taken, self._cache.free - taken)

    def _read(self, tokens: Ints, drafts: Ints) -> tuple[Ints, Ints]:
        """Give prompts that are being read their chunks, in order of rank, preempting others where memory is short."""
        budget = self.machine.max_batched_tokens - int(tokens.sum() + drafts.sum())
        for place in np.flatnonzero(self.running.pending > 1).tolist():
            if place >= self.running.count:
                break
            chunk = min(int(self.running.pending[place]), budget)
            while not self._cache.make_room(int(tokens.sum() + drafts.sum()) + chunk) and place < self.running.count:
                self._preempt()
                tokens, drafts = tokens[: self.running.count], drafts[: self.running.count]
            if place < self.running.count:
                tokens[place] = chunk
                budget -= chunk
        return tokens, drafts

    def _admit(self, taken: int) -> Ints:
        """Start waiting requests in order while places, memory and budget last; their chunks."""
        chunks: list[int] = []
        workload, block = self._progress.workload, self.machine.block_size
        while self._waiting and taken < self.machine.max_batched_tokens:
            if self.running.count == self.machine.max_batch_size:
                break
            request = self._waiting[0]
            left = int(workload.outputs[request]) - int(self._progress.produced[request])
            total = int(workload.prompts[request]) + int(workload.outputs[request])
            length, segments = total - left, workload.segments[request]
            received = length - 1 if request in self._received else 0
            shared = 0 if received else min(self._cache.match(segments), (length - 1) // block * block)
            pending = length - received - shared
            chunk = min(pending, self.machine.max_batched_tokens - taken)
            self._cache.pin(segments)
            if not self._cache.make_room(taken + received + chunk):
                self._cache.unpin(segments)
                break
            self._waiting.popleft()
            self._received.discard(request)
            self.waiting_tokens -= 0 if received else int(workload.prompts[request])
            self.counts.reused += shared
            self.running.add(request, total, left, pending, shared)
            self._cache.own += received
            self._context += length - pending
            self._reading += pending > 1
            self._silent += bool(np.isnan(self._progress.first[request]))
            chunks.append(chunk)
            taken += chunk
        return np.array(chunks, dtype=np.int64)

    def _preempt(self) -> None:
        """The last in rank gives up its place, and waits before all others."""
        place = self.running.count - 1
        request = int(self.running.id[place])
        self._reading -= int(self.running.pending[place] > 1)
        self._silent -= int(np.isnan(self._progress.first[request]))
        self._release(place)
        self.running.count -= 1
        self._waiting.appendleft(request)
        self.waiting_tokens += int(self._progress.workload.prompts[request])
        self.counts.preemptions += 1

    def _work(self, tokens: Ints, drafts: Ints) -> float:
        """Seconds of a step."""
        active = tokens > 0
        drafted = int(drafts.sum())
        rows, context = int(tokens.sum()) + drafted, float(self.running.context[active].sum())
        silent = int((tokens - (tokens == self.running.pending))[active].sum())
        work = self.machine.step_seconds(rows, int(np.count_nonzero(active)), context, silent)
        if drafted and not self.remote_drafts and self.machine.draft is not None:
            drafting = int(np.count_nonzero(drafts))
            work += drafted / drafting * self.machine.draft.level_seconds(drafting)
        return work

    def _accepted(self, drafts: Ints) -> Ints:
        """Accepted tokens of each draft."""
        assert self.machine.draft is not None
        depth = np.searchsorted(self.machine.draft.refusal, self._rng.random(len(drafts)))
        return np.minimum(depth, drafts)

    def _leave(self, now: float, emits: Mask | None) -> Ended:
        """Take out the requests that end here. ``emits``: those that the step gave tokens; None: all."""
        running = self.running
        answered = running.left == 0
        gone = answered | emits if self.only_reads and emits is not None else answered
        drafting: list[int] = []
        if self.remote_drafts and emits is not None:
            drafting = running.id[emits & ~gone].tolist()
            running.ready[emits] = np.inf
        if not gone.any():
            return Ended([], [], drafting)
        for place in np.flatnonzero(gone).tolist():
            self._release(place)
        done, handed_on = running.id[answered], running.id[gone & ~answered]
        self._progress.finished[done] = now
        running.keep(~gone)
        self.load -= len(done) + len(handed_on)
        return Ended(done.tolist(), handed_on.tolist(), drafting)

    def _release(self, place: int) -> None:
        """Give back what a request holds; its last segment, grown by the answer, stays findable."""
        running, workload = self.running, self._progress.workload
        request, prompt = int(running.id[place]), int(workload.prompts[running.id[place]])
        context = int(running.total[place] - running.left[place] - running.pending[place])
        self._progress.produced[request] = workload.outputs[request] - running.left[place]
        segments, shared = workload.segments[request], int(running.shared[place])
        if workload.grows and context >= prompt:
            name, tokens = segments[-1]
            shared += self._cache.publish([(name, context - prompt + tokens)])
        self._cache.unpin(segments)
        self._cache.own -= context - shared
        self._context -= context
