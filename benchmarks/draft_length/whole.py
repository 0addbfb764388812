"""Whole requests on recorded machines: the engine's drafting with its real sources, on recorded texts, without a clock.

``Drafting``, the adaptive length and the source ``suffix`` are the engine's own. Tokens are those of a recording
(``texts``), and a pass takes what it takes on a ``Machine``: so ratios have no noise. The requests of a wave come at
once, are read one after another, and decode together. Each cell begins as a new process does: nothing is learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from benchmarks.draft_length.machines import Machine
from benchmarks.draft_length.texts import Text
from benchmarks.replay import walk
from outrider.config import SamplingParams, SpeculationParams
from outrider.drafters.api import Drafter, Outcome, RequestView
from outrider.drafters.datastore import Datastore
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.drafting.rounds import Drafting
from outrider.engine.request import Request
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft, Verdict

PROPOSAL_S, NODE_S = 4e-5, 1e-6
"""Seconds of a proposal of ``suffix``, and of each of its nodes, on the processor of benchmarks/README.md."""
RESTING_S, ASKING_S = 3e-6, 3e-5
"""Seconds that the adaptive length takes for a request in a step, more than plain decoding; more where it is asked."""
NOTHING = TargetRows(np.zeros((1, 1), np.float32), SamplingParams(), Context((), ()), EMPTY)

MakeSource = Callable[[], Drafter]


@dataclass
class Clock:
    """Simulated seconds."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(Drafter):
    """A source whose proposals take recorded time."""

    def __init__(self, inner: Drafter, clock: Clock) -> None:
        self._inner, self._clock = inner, clock

    def start(self, request: RequestView) -> None:
        self._inner.start(request)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        drafts = self._inner.propose(requests, budgets)
        self._clock.now += sum(PROPOSAL_S + NODE_S * len(draft) for draft in drafts)
        return drafts

    def finish(self, request_id: str) -> None:
        self._inner.finish(request_id)


class Liar(Drafter):
    """Proposes tokens that no text has, and says that it is sure; after ``honest`` proposals of another source."""

    def __init__(self, inner: Drafter, honest: int) -> None:
        self._inner, self._left = inner, honest

    def start(self, request: RequestView) -> None:
        self._inner.start(request)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        self._left -= len(requests)
        if self._left >= 0:
            return self._inner.propose(requests, budgets)
        return [Draft.chain([0] * n, source="suffix", scores=[0.98] * n) if n else EMPTY for n in budgets]

    def finish(self, request_id: str) -> None:
        self._inner.finish(request_id)


@dataclass
class Replayed:
    """One request: its seconds, and the same without drafts."""

    kind: str
    read: float  # seconds until its first token; the same without drafts
    plain: float  # seconds of decoding without drafts
    seconds: float = 0.0  # of decoding
    lost: float = 0.0  # seconds, more than its steps without drafts take
    plain_so_far: float = 0.0  # seconds of those steps
    most_over: float = -math.inf  # the most that it has lost beyond 2 % of its time, reading included, in plain steps

    @property
    def whole(self) -> float:
        return (self.read + self.plain) / (self.read + self.seconds)

    @property
    def decoding(self) -> float:
        return self.plain / self.seconds if self.seconds else 1.0

    def step(self, seconds: float, tokens: int, plain_s: float, read_s: float) -> None:
        """Count a step that took ``seconds``, and without drafts ``plain_s`` for each of its tokens."""
        self.plain_so_far += tokens * plain_s
        self.lost += seconds - tokens * plain_s
        self.most_over = max(self.most_over, (self.lost - 0.02 * (read_s + self.plain_so_far)) / plain_s)


@dataclass
class Process:
    """An engine's drafting on one machine, with one domain."""

    machine: Machine
    source: MakeSource
    vocab_size: int
    make: Callable[[Callable[[], StepCost]], AdaptiveLength] = AdaptiveLength
    clock: Clock = field(default_factory=Clock)
    requests: int = 0

    def __post_init__(self) -> None:
        machine = self.machine
        self.policy = self.make(lambda: StepCost(machine.seconds, machine.slope))
        self.drafting = Drafting(
            {"suffix": Timed(self.source(), self.clock)}, self.vocab_size, self.policy, clock=self.clock
        )

    def answer(self, wave: Sequence[Text], length: int) -> list[Replayed]:
        """Answer a wave's requests together, with at most ``length`` tokens."""
        texts = [replace(text, output=text.output[:length]) for text in wave]
        requests, out = [self._begin(text) for text in texts], list[Replayed]()
        began = self.clock.now
        for request, text in zip(requests, texts, strict=True):
            read = self.machine.reading(len(text.prompt))
            self.clock.now += read
            request.stats.prefill_s = read
            out.append(Replayed(text.kind, self.clock.now - began, 0.0))
        for each, plain in zip(out, plain_seconds(self.machine, texts), strict=True):
            each.plain = plain
        began, running = self.clock.now, [i for i, text in enumerate(texts) if len(text.output) > 1]
        for i in set(range(len(texts))) - set(running):
            self.drafting.finish(requests[i])
        while running:
            self._step([requests[i] for i in running], [texts[i] for i in running], [out[i] for i in running])
            for i in running:
                if requests[i].stats.completion_tokens >= len(texts[i].output):
                    out[i].seconds = self.clock.now - began
                    self.drafting.finish(requests[i])
            running = [i for i in running if not out[i].seconds]
        return out

    def _begin(self, text: Text) -> Request:
        self.requests += 1
        params = SamplingParams(max_tokens=len(text.output), temperature=0.0 if text.greedy else 1.0, seed=0)
        request = Request(str(self.requests), text.prompt, params, SpeculationParams(draft="suffix"), frozenset())
        request.max_seq_len = 1 << 20
        request.stats.completion_tokens = 1
        self.drafting.start(request)
        request.tokens.append(text.output[0])
        request.num_computed_tokens = len(text.prompt)
        return request

    def _step(self, requests: Sequence[Request], texts: Sequence[Text], told: Sequence[Replayed]) -> None:
        began, machine = self.clock.now, self.machine
        self.clock.now += RESTING_S * len(requests)
        drafts = self.drafting.propose(requests, [request.draft_limit for request in requests], [1] * len(requests))
        asked = ASKING_S * sum(request.drafts.budget > 0 for request in requests)
        proposing = self.clock.now - began - RESTING_S * len(requests)
        self.clock.now += asked
        rows, contexts = [1 + len(draft) for draft in drafts], [request.num_computed_tokens for request in requests]
        scoring, outside = machine.step(rows, contexts, [draft.branches for draft in drafts])
        self.clock.now += scoring + outside
        self.policy.observe_forward_pass(requests, drafts, scoring)
        plain = sum(machine.step([1] * len(requests), contexts, [0] * len(requests)))
        for request, text, draft, each in zip(requests, texts, drafts, told, strict=True):
            path = walk(draft, text.output, request.stats.completion_tokens)
            at = request.stats.completion_tokens
            committed = text.output[at : at + len(path) + 1]
            request.tokens += committed
            request.num_computed_tokens += len(committed)
            request.stats.completion_tokens += len(committed)
            self.drafting.observe(Outcome(request, draft, Verdict(path, committed[-1]), committed, NOTHING), request)
            request.stats.count(draft, path)
            each.step(self.clock.now - began, len(committed), plain, request.stats.prefill_s)
        self.policy.observe_step(len(requests), outside + RESTING_S * len(requests) + asked + proposing)


def plain_seconds(machine: Machine, texts: Sequence[Text]) -> list[float]:
    """Seconds of decoding of each request of a wave without drafts."""
    out, now = [0.0] * len(texts), 0.0
    for step in range(1, max(len(text.output) for text in texts)):
        running = [i for i, text in enumerate(texts) if len(text.output) > step]
        contexts = [len(texts[i].prompt) + step - 1 for i in running]
        now += sum(machine.step([1] * len(running), contexts, [0] * len(running)))
        for i in running:
            if len(texts[i].output) == step + 1:
                out[i] = now
    return out


def suffix(vocab_size: int, datastore: Datastore | None) -> MakeSource:
    return lambda: SuffixDrafter(vocab_size, datastore=datastore)


def waves(texts: Iterable[Text], slots: int, requests: int) -> list[list[Text]]:
    """Waves of ``slots`` requests of a kind each, kinds in turn; at least ``requests`` of each kind, in whole waves."""
    of: dict[str, list[Text]] = {}
    for text in texts:
        of.setdefault(text.kind, []).append(text)
    count = -(-requests // slots) * slots
    chosen = {kind: [own[i % len(own)] for i in range(count)] for kind, own in of.items()}
    return [own[begin : begin + slots] for begin in range(0, count, slots) for own in chosen.values()]
