"""The real engine on toy models so small that every sequence can be enumerated: frequencies and tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from outrider.analysis.certify.pairs import exact_pairs
from outrider.analysis.certify.report import Check
from outrider.analysis.certify.statistics import Fit, chi_square
from outrider.cache import CacheSpec
from outrider.config import SamplingParams, SpeculationParams
from outrider.core.distribution import Context, TargetRows
from outrider.core.draft import EMPTY
from outrider.core.noise import Noise
from outrider.core.verify import VERIFIERS
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.toy import TableModel, sequence_probs

VOCAB = 4
PROMPT = (0, 1, 2, 0, 1, 3, 0, 1)  # repeats, so that every source has something to say
LENGTH = 3  # 64 sequences
TARGET = TableModel.random(VOCAB, order=2, seed=1)
DRAFT = TableModel.random(VOCAB, order=2, seed=4)  # far enough from the target for mistakes to show
_CACHE = CacheSpec(slots=25, max_seq_len=64)

OPTIONS: dict[str, SamplingParams] = {
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 1.3, top-p": SamplingParams(temperature=1.3, top_p=0.7),
    "penalties and bias": SamplingParams(temperature=1.0, presence_penalty=0.6, logit_bias={2: 1.0}),
}


@dataclass(frozen=True)
class ToySetting:
    verifier: str
    source: str
    options: str

    @property
    def name(self) -> str:
        return f"{self.source} with {self.verifier}, {self.options}"


def all_settings(
    verifiers: Sequence[str], sources: Sequence[str] | None = None, *, in_turn: bool = False
) -> list[ToySetting]:
    """Every source asked for (None: all) that a model like this can have, with every exact verifier and option.

    ``in_turn``: with one of the options each, in turn.
    """
    known = [s for s in _sources() if sources is None or s in sources]
    every = [ToySetting(v, s, o) for (s, v), o in itertools.product(exact_pairs(known, verifiers), OPTIONS)]
    count = len(OPTIONS)
    return [every[at + at // count % count] for at in range(0, len(every), count)] if in_turn else every


def count(verifiers: Sequence[str], *, in_turn: bool = False, sources: Sequence[str] | None = None) -> int:
    """How much ``check`` yields."""
    plan = all_settings(verifiers, sources, in_turn=in_turn)
    return len(plan) + 2 if plan else 0


def check(
    verifiers: Sequence[str], *, samples: int, in_turn: bool = False, sources: Sequence[str] | None = None
) -> Iterator[Check | str]:
    """Yields progress by name, then two checks: sequence frequencies, and tokens equal to plain decoding's."""
    plan = all_settings(verifiers, sources, in_turn=in_turn)
    if not plan:
        return
    fits: dict[ToySetting, Fit] = {}
    different: list[str] = []
    broken: list[str] = []
    for setting in plan:
        requests = _serve(setting, samples)
        outputs = [tuple(r.output) for r in requests]
        broken += {
            f"{setting.name}: {r.stats.draft_error or r.error}" for r in requests if r.stats.draft_error or r.error
        }
        params = replace(OPTIONS[setting.options], max_tokens=LENGTH)
        expected = sequence_probs(TARGET.table, params, PROMPT, LENGTH).numpy()
        index = [int("".join(map(str, tokens)), VOCAB) for tokens in outputs if len(tokens) == LENGTH]
        fits[setting] = chi_square(np.bincount(index, minlength=len(expected)).astype(np.float64), expected)
        if VERIFIERS[setting.verifier].shares_noise:
            wrong = [r for r in requests if tuple(r.output) != plain(replace(params, seed=r.seed))]
            different += [f"{setting.name}: {len(wrong)} of {samples} differ"] if wrong else []
        yield setting.name
    failed = [setting for setting in plan if fits[setting].fails(len(plan))]
    least = max(fit.detectable(len(plan)) for fit in fits.values())
    yield Check(
        "enumerable sequences",
        "fail" if failed or broken else "pass",
        f"{len(failed)} of {len(plan)} combinations of source, verifier and options miss the enumerated distribution "
        f"of {VOCAB**LENGTH} sequences ({samples} samples each; a total variation of {least:.2f} would be seen in 9 of "
        "10 sessions)",
        [f"{c.name}: p-value {fits[c].p_value:.1e}, total variation {fits[c].total_variation:.3f}" for c in failed]
        + broken,
        {"p_values": {c.name: fits[c].p_value for c in plan}, "detectable_total_variation": least},
    )
    yield Check(
        "same tokens on enumerable sequences",
        "fail" if different else "pass",
        "matching gives other tokens than plain decoding" if different else "matching gives plain decoding's tokens",
        different,
    )


def plain(params: SamplingParams) -> tuple[int, ...]:
    """What the target says by itself: no engine, no cache, no draft. ``params`` name a seed."""
    assert params.seed is not None
    output: list[int] = []
    noise = Noise(params.seed)
    while len(output) < params.max_tokens:
        text = (*PROMPT, *output)
        logits = TARGET.table[text[-2], text[-1]][None]
        output.append(TargetRows(logits, params, Context(PROMPT, output), EMPTY).draw(0, noise, len(text)))
    return tuple(output)


def _sources() -> list[str]:
    return list(_registry())


def _registry() -> DrafterRegistry:
    return DrafterRegistry(DrafterContext(vocab_size=VOCAB, cache=_CACHE, draft_models=(DRAFT,)))


def _serve(setting: ToySetting, samples: int) -> list[Request]:
    """``samples`` requests with seeds of their own, in batches as large as the cache holds."""
    drafters = _registry()
    engine = Engine(
        TARGET, drafters={setting.source: drafters[setting.source]}, eos_token_ids=(), vocab_size=VOCAB, cache=_CACHE
    )
    speculation = SpeculationParams(draft=setting.source, verifier=setting.verifier, spec_length=2)  # type: ignore[arg-type]
    params = replace(OPTIONS[setting.options], max_tokens=LENGTH, ignore_eos=True)
    requests = [
        Request(str(seed), PROMPT, replace(params, seed=seed), speculation, frozenset()) for seed in range(samples)
    ]
    for request in requests:
        engine.add(request)
    while engine.busy:
        engine.step()
        engine.cache.check()
    return requests
