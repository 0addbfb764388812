"""The running requests of a simulated replica and their use of its cache, in counters that a step updates fast."""

from __future__ import annotations

import numpy as np

from outrider_lab.fleet_planning.costs.machine import Machine
from outrider_lab.fleet_planning.simulation.prefix_cache import PrefixCache
from outrider_lab.fleet_planning.simulation.running import Mask, RequestProgress, Running
from outrider_lab.fleet_planning.workload import Floats, Ints


class RunningBatch:
    """The running requests of a replica, and its cache."""

    def __init__(self, machine: Machine, progress: RequestProgress) -> None:
        self._machine, self._progress = machine, progress
        self.running = Running(machine.max_batch_size)
        self.clear()

    def clear(self) -> None:
        """Remove all requests and cached tokens."""
        machine = self._machine
        self.cache = PrefixCache(machine.kv_tokens, machine.block_size, reuse=machine.prefix_reuse)
        self.running.count = 0
        self.reading = 0  # requests whose prompt is being read
        self.silent = 0  # requests without a token yet
        self.context = 0  # cached tokens of all running requests

    def check(self) -> None:
        """Raise AssertionError unless cache and counts agree with requests and segments."""
        self.cache.check()
        running = self.running
        held = int((running.context - running.shared).sum())
        if self.cache.own != held or self.context != running.context.sum():
            raise AssertionError(f"{self.cache.own} own tokens, {self.context} of context; requests hold {held}")
        if self.reading != (running.pending > 1).sum():
            raise AssertionError(f"{self.reading} reading: {running.pending}")

    def enter(self, request: int, *, received: bool, taken: int) -> tuple[int, int] | None:
        """Start a request after ``taken`` tokens of the step: its chunk, and tokens found in the cache.

        None if memory is short. ``received``: another replica sent the cache of all its tokens but the last.
        """
        workload = self._progress.workload
        left = int(workload.outputs[request]) - int(self._progress.produced[request])
        total = int(workload.prompts[request]) + int(workload.outputs[request])
        length, segments, block = total - left, workload.segments[request], self._machine.block_size
        here = length - 1 if received else 0
        shared = 0 if received else min(self.cache.match(segments), (length - 1) // block * block)
        pending = length - here - shared
        chunk = min(pending, self._machine.max_batched_tokens - taken)
        self.cache.pin(segments)
        if not self.cache.make_room(taken + here + chunk):
            self.cache.unpin(segments)
            return None
        self.running.add(request, total, left, pending, shared)
        self.cache.own += here
        self.context += length - pending
        self.reading += pending > 1
        self.silent += bool(np.isnan(self._progress.first[request]))
        return chunk, shared

    def push_out(self) -> int:
        """Remove the request of the last rank, and return it."""
        place = self.running.count - 1
        request = int(self.running.id[place])
        self.reading -= int(self.running.pending[place] > 1)
        self.silent -= int(np.isnan(self._progress.first[request]))
        self._release(place)
        self.running.count -= 1
        return request

    def grow(self, tokens: int) -> None:
        """Add ``tokens`` unshared tokens of the running requests to the cache."""
        self.context += tokens
        self.cache.own += tokens

    def read(self, tokens: Ints, emits: Mask) -> tuple[int, int]:
        """Advance the prompts, and publish those that end.

        Returns the tokens read, and the same without the last token of prompts that end.
        """
        running = self.running
        reads = running.pending > 1
        moved = np.where(reads, tokens - emits, 0)
        running.pending[:] -= moved
        self.reading = int(np.count_nonzero(running.pending > 1))
        for place in np.flatnonzero(reads & emits).tolist():
            running.shared[place] += self.cache.publish(self._progress.workload.segments[running.id[place]])
        return int(tokens[reads].sum()), int(moved.sum())

    def speak(self, emits: Mask, seen: Floats) -> None:
        """Record the times of first tokens. ``seen``: the time of each request that emits."""
        if self.silent:
            spoken = self.running.id[emits]
            new = np.isnan(self._progress.first[spoken])
            self._progress.first[spoken[new]] = seen[new]
            self.silent -= int(new.sum())

    def leave(self, gone: Mask) -> None:
        """Remove the requests of ``gone``."""
        for place in np.flatnonzero(gone).tolist():
            self._release(place)
        self.running.keep(~gone)

    def _release(self, place: int) -> None:
        """Release a request's cache; its last segment, grown by the answer, can be found by later requests."""
        running, workload = self.running, self._progress.workload
        request, prompt = int(running.id[place]), int(workload.prompts[running.id[place]])
        context = int(running.total[place] - running.left[place] - running.pending[place])
        self._progress.produced[request] = workload.outputs[request] - running.left[place]
        segments, shared = workload.segments[request], int(running.shared[place])
        if workload.grows and context >= prompt:
            name, tokens = segments[-1]
            shared += self.cache.publish([(name, context - prompt + tokens)])
        self.cache.unpin(segments)
        self.cache.own -= context - shared
        self.context -= context
