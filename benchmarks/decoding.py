"""What drafts came to in real decoding, question by question, with intervals over questions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.errors import ConfigError
from outrider_lab.measure import Round, acceptance_by_position

DRAWS = 500  # of the bootstrap


@dataclass(frozen=True)
class Answer:
    """One question under one setting."""

    category: str
    rounds: tuple[Round, ...]  # drafted levels and accepted tokens of each run of the target
    tokens: int
    seconds: float  # from the first token to the last
    draft_s: float
    proposals: int
    same: bool = True  # as plain decoding of the same seed

    @property
    def levels(self) -> int:
        """Levels drafted: positions that a chain has, and the depth of a tree."""
        return sum(depth for depth, _ in self.rounds)


Statistic = Callable[[Sequence[Answer]], float]


def decode(
    llm: LLM, prompt: list[int], params: SamplingParams, speculation: SpeculationParams, salt: str, category: str = ""
) -> tuple[Answer, list[int]]:
    """Decode one prompt; the answer's counts, and its tokens. Sources learn nothing across ``salt``.

    Raises:
        ConfigError: the draft source failed on the way, so that the counts say nothing of it.
    """
    output = llm.generate([prompt], params, speculation=speculation, cache_salt=salt)[0]
    stats = output.stats
    if stats.draft_error is not None:
        raise ConfigError(f"draft={speculation.draft!r} failed: {stats.draft_error}")
    deepest = len(stats.drafted_at)
    rounds = tuple((min(drafted, deepest), accepted) for drafted, accepted in stats.rounds)
    made = Answer(category, rounds, len(output.token_ids), stats.decode_s, stats.draft_s, stats.num_drafts)
    return made, output.token_ids


def tau(answers: Sequence[Answer]) -> float:
    """Tokens per run of the target."""
    return sum(a.tokens for a in answers) / max(1, sum(len(a.rounds) for a in answers))


def alphas(answers: Sequence[Answer]) -> list[float]:
    """For each position: how often its token was accepted where all before it were."""
    rounds = [pair for answer in answers for pair in answer.rounds]
    return acceptance_by_position(rounds, max((depth for depth, _ in rounds), default=0))


def alpha_at(position: int) -> Statistic:
    """``alphas`` at one position, counted from 0; nothing (nan) where no draft is so long."""

    def statistic(answers: Sequence[Answer]) -> float:
        found = alphas(answers)
        return found[position] if position < len(found) else float("nan")

    return statistic


def speedup(pairs: Sequence[tuple[Answer, Answer]]) -> float:
    """Times as fast as plain decoding: geometric mean over questions of (plain, own) seconds a token."""
    logs = [np.log(p.seconds / max(1, p.tokens - 1)) - np.log(o.seconds / max(1, o.tokens - 1)) for p, o in pairs]
    return float(np.exp(np.mean(logs)))


def interval(items: Sequence[Any], statistic: Callable[[Any], float], seed: int = 0) -> tuple[float, float]:
    """95% interval of a statistic over questions: percentiles of a bootstrap."""
    rng = np.random.default_rng(seed)
    found = [statistic([items[i] for i in rng.integers(0, len(items), len(items))]) for _ in range(DRAWS)]
    low, high = np.nanquantile(found, [0.025, 0.975]) if not np.all(np.isnan(found)) else (np.nan, np.nan)
    return float(low), float(high)


def with_interval(items: Sequence[Any], statistic: Callable[[Any], float]) -> dict[str, float]:
    """A statistic and its interval, for JSON."""
    low, high = interval(items, statistic)
    return {"value": round(statistic(items), 4), "low": round(low, 4), "high": round(high, 4)}


def median_ms(answers: Sequence[Answer]) -> dict[str, float | None]:
    """Milliseconds of a proposal and of one of its levels: medians over questions."""
    own = [a for a in answers if a.proposals and a.levels]
    if not own:
        return {"proposal_ms": None, "level_ms": None}
    return {
        "proposal_ms": round(1e3 * statistics.median(a.draft_s / a.proposals for a in own), 3),
        "level_ms": round(1e3 * statistics.median(a.draft_s / a.levels for a in own), 3),
    }


def load(
    model: str,
    draft: str,
    heads: Sequence[str],
    drafts: Sequence[str],
    device: str,
    dtype: str,
    datastore: str = "auto",
) -> LLM:
    """An engine for one request at a time; nothing is kept of a question for the next."""
    return LLM(
        model,
        draft=draft,
        heads=tuple(heads),
        draft_model=tuple(drafts) or None,
        device=device,
        dtype=dtype,  # type: ignore[arg-type]
        datastore=datastore,
        max_batch_size=1,
        prefix_reuse=False,
    )


def speed(model: str, device: str, count: int, tokens: int, *, graphs: bool) -> dict[str, Any]:
    """Plain greedy decoding of ``count`` sequences at once: tokens a second, once shapes are captured."""
    llm = LLM(
        model, draft="none", device=device, cuda_graphs=graphs, max_batch_size=count, kv_cache="paged",
        kv_tokens=max(2, count) * 512, max_seq_len=512, prefix_reuse=False,
    )  # fmt: skip
    prompts = [[(7 * i + j) % 200 for j in range(32)] for i in range(count)]
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        found = llm.generate(prompts, SamplingParams(max_tokens=tokens, ignore_eos=True))
        seconds.append(time.perf_counter() - began)
    made = sum(len(output.token_ids) for output in found)
    share = llm.engine.stats.overhead_s / llm.engine.stats.busy_s
    llm.close()
    return {
        "sequences": count,
        "graphs": graphs,
        "tokens_per_s": round(made / min(seconds), 1),
        "outside_the_forward_pass": round(share, 3),
    }
