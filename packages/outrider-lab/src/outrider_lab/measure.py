"""Measures the parameters of the theory: T(n), the cost of drafts, and acceptance."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from outrider.cache import CacheSpec, extend_unread
from outrider.config import SamplingParams, SpeculationParams
from outrider.llm import LLM
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.arrays import host
from outrider_lab.cost import LatencyCurve

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)

Tick = Callable[[str], None]
"""Is called by long work with the name of each finished piece."""

Expect = Callable[[int], None]
"""Is called with the number of calls of ``Tick`` to come in all, as soon as it is known."""

Round = tuple[int, int]
"""Drafted and accepted tokens of one target run."""


class PassTimer:
    """Times forward passes over some rows of one sequence behind ``context`` tokens, which no pass has computed."""

    def __init__(self, model: Model, context: int, most: int) -> None:
        """``most``: rows of the largest pass."""
        self._model, self._context = model, context
        self._cache = model.new_cache(CacheSpec(max_seq_len=context + most))
        self._slot = self._cache.allocate()

    def seconds(self, rows: int, *, last_logits: bool = False) -> float:
        """Seconds of one pass. ``last_logits``: compute the logits of the last row only, as for a prompt."""
        ids = [i % self._model.config.vocab_size for i in range(rows)]
        span = Span(self._slot, self._context, rows)
        positions = range(self._context, self._context + rows)
        batch = ForwardBatch(ids, positions, (span,), (rows - 1,) if last_logits else None)
        extend_unread(self._cache, self._slot, self._context, rows)
        began = time.perf_counter()
        host(self._model.forward(batch, self._cache).logits[-1:])  # waits until a GPU is done
        return time.perf_counter() - began


def measure_latency_curve(
    model: Model, *, context: int, rows: Sequence[int] = ROWS, repeat: int = 20, last_logits: bool = False
) -> LatencyCurve:
    """T(n): median seconds of a forward pass over n rows of one sequence behind ``context`` tokens.

    Row counts take turns, so that a busy moment of the machine affects all of them. ``last_logits``: compute the logits
    of the last row only, as for a prompt.
    """
    most = max(rows)
    timer = PassTimer(model, max(1, min(context, model.config.max_seq_len - most)), most)
    times: dict[int, list[float]] = {n: [] for n in rows}
    for turn in range(repeat + 2):
        for n in rows:
            seconds = timer.seconds(n, last_logits=last_logits)
            if turn >= 2:  # the first two warm up
                times[n].append(seconds)
    return LatencyCurve({n: statistics.median(t) for n, t in times.items()})


@dataclass
class Measurements:
    """One setting's requests: for each, the tokens after its first step, their seconds, and every round."""

    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    rounds: list[list[Round]] = field(default_factory=list)  # of each request
    outputs: list[list[int]] = field(default_factory=list)
    draft_s: float = 0.0
    score_s: float = 0.0
    busy_s: float = 0.0
    steps: int = 0
    draft_error: str | None = None

    def add(self, more: Measurements) -> None:
        """Add the counts of other requests."""
        for name in ("tokens", "seconds", "rounds", "outputs", "draft_s", "score_s", "busy_s", "steps"):
            setattr(self, name, getattr(self, name) + getattr(more, name))
        self.draft_error = self.draft_error or more.draft_error

    @property
    def s_per_token(self) -> float:
        return sum(self.seconds) / max(1, sum(self.tokens))

    @property
    def all_rounds(self) -> list[Round]:
        return [pair for request in self.rounds for pair in request]

    @property
    def alpha(self) -> float | None:
        """The theory's α, the share of decided draft tokens that were accepted: accepted ÷ (accepted + refused).

        Engines report "accepted ÷ drafted", which also counts tokens behind a refused one.
        """
        return alpha(self.all_rounds)

    @property
    def draft_s_per_token(self) -> float:
        drafted = sum(d for d, _ in self.all_rounds)
        return self.draft_s / drafted if drafted else 0.0

    @property
    def overhead_s(self) -> float:
        """Seconds per step beside drafting and the target's forward pass."""
        return (self.busy_s - self.draft_s - self.score_s) / max(1, self.steps)


def alpha(rounds: Sequence[Round]) -> float | None:
    """Accepted ÷ (accepted + refused), over rounds of chains; None if nothing was drafted."""
    looked_at = sum(accepted + (accepted < drafted) for drafted, accepted in rounds)
    return sum(accepted for _, accepted in rounds) / looked_at if looked_at else None


def acceptance_by_position(rounds: Sequence[Round], depth: int) -> list[float]:
    """For each depth below ``depth``, the rate of acceptance of its token after all earlier tokens were accepted.

    A depth that was never reached has the rate of the depth before.
    """
    rates: list[float] = []
    for i in range(depth):
        seen = [accepted > i for drafted, accepted in rounds if drafted > i and accepted >= i]
        rates.append(sum(seen) / len(seen) if seen else (rates[-1] if rates else 0.0))
    return rates


def truncate_rounds(rounds: Sequence[Round], k: int) -> list[Round]:
    """The rounds with at most ``k`` draft tokens that follow from ``rounds`` with longer drafts.

    The tokens of one long draft take several steps, in each of which the source is assumed to propose the rest of the
    same draft. Sources whose drafts depend on the text alone do so.
    """
    result: list[Round] = []
    for drafted, accepted in rounds:
        left = accepted + 1  # tokens of this round, the target's own at its end included
        while left > 0:
            taken = min(drafted, accepted, k)
            result.append((min(drafted, k), taken))
            drafted, accepted, left = max(0, drafted - taken - 1), max(0, accepted - taken - 1), left - taken - 1
    return result


def measure_settings(
    llm: LLM,
    prompts: Sequence[list[int]],
    params: SamplingParams,
    settings: Mapping[str, SpeculationParams],
    *,
    rounds: int = 1,
    tick: Tick = lambda _: None,
    into: dict[str, Measurements] | None = None,
) -> dict[str, Measurements]:
    """Run every prompt with every setting, one request at a time, taking turns prompt by prompt.

    ``into`` is filled and returned; after an interruption it holds the prompts that all settings have run. With several
    ``rounds``, each prompt keeps its fastest time, as slower ones were disturbed. Sources that learn from earlier
    responses see only those of their own setting and round.
    """
    found = {} if into is None else into
    found |= {name: Measurements() for name in settings}
    for name, speculation in settings.items():  # build sources and warm up
        llm.generate([prompts[0]], SamplingParams(max_tokens=4), speculation=speculation)
        tick(f"warm up {name}")
    for number, prompt in enumerate(prompts):
        order = list(settings)
        order = order[number % len(order) :] + order[: number % len(order)]
        best: dict[str, float] = {}
        fresh = {name: Measurements() for name in settings}
        for turn in range(rounds):
            for name in order:
                salt = f"{name}, round {turn}"
                seconds = _one(llm, prompt, params, settings[name], fresh[name], salt, keep=turn == 0)
                best[name] = min(seconds, best.get(name, seconds))
                tick(name)
        for name, seconds in best.items():
            fresh[name].seconds.append(seconds)
            found[name].add(fresh[name])
    return found


def _one(
    llm: LLM,
    prompt: list[int],
    params: SamplingParams,
    speculation: SpeculationParams,
    into: Measurements,
    salt: str,
    *,
    keep: bool,
) -> float:
    """The seconds of one request after its first step. ``keep``: add its counts to ``into``."""
    stats = llm.engine.stats
    before = (stats.draft_s, stats.score_s, stats.busy_s, stats.steps)
    output = llm.generate([prompt], params, speculation=speculation, cache_salt=salt)[0]
    rounds = output.stats.rounds
    if keep:
        into.rounds.append(rounds)
        into.outputs.append(output.token_ids)
        into.tokens.append(output.stats.completion_tokens - (rounds[0][1] + 1 if rounds else 0))
        into.draft_error = into.draft_error or output.stats.draft_error
    into.draft_s += output.stats.draft_s if keep else 0.0
    into.score_s += (stats.score_s - before[1]) if keep else 0.0
    into.busy_s += (stats.busy_s - before[2]) if keep else 0.0
    into.steps += (stats.steps - before[3]) if keep else 0
    return output.stats.decode_s
