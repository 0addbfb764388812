"""Runs the real engine on toy models whose sequences can all be enumerated: checks frequencies and tokens."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outrider.cache import CacheSpec
from outrider.config import SamplingParams, SpeculationParams
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.toy import TableModel, sequence_probs
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY
from outrider.verify.noise import Noise
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider_lab.certify.allowance import Allowance
from outrider_lab.certify.pairs import exact_pairs
from outrider_lab.certify.report import Check
from outrider_lab.certify.statistics import POWER, chi_square

VOCAB = 4
PROMPT = (0, 1, 2, 0, 1, 3, 0, 1)  # repeats, so that every source proposes drafts
LENGTH = 3  # 64 sequences
TARGET = TableModel.random(VOCAB, order=2, seed=1)
DRAFT = TableModel.random(VOCAB, order=2, seed=4)  # far enough from the target to show mistakes
LEAST = 100  # samples of a setting, even with no time left
PILOT_SEED = 1 << 40  # above the seeds of all counted samples
_CACHE = CacheSpec(slots=25, max_seq_len=64)

OPTIONS: dict[str, SamplingParams] = {
    "temperature 1": SamplingParams(temperature=1.0),
    "temperature 1.3, top-p": SamplingParams(temperature=1.3, top_p=0.7),
    "penalties and bias": SamplingParams(temperature=1.0, presence_penalty=0.6, logit_bias={2: 1.0}),
}


@dataclass(frozen=True)
class ToySetting:
    """A verifier, a source and the name of sampling options."""

    verifier: str
    source: str
    options: str

    @property
    def name(self) -> str:
        return f"{self.source} with {self.verifier}, {self.options}"


def all_settings(
    verifiers: Sequence[str], sources: Sequence[str] | None = None, *, in_turn: bool = False
) -> list[ToySetting]:
    """Every source of ``sources`` (None: all) that the toy model can have, with every exact verifier and option.

    ``in_turn``: each pair has one of the options, in turn.
    """
    known = [s for s in _sources() if sources is None or s in sources]
    every = [ToySetting(v, s, o) for (s, v), o in itertools.product(exact_pairs(known, verifiers), OPTIONS)]
    count = len(OPTIONS)
    return [every[at + at // count % count] for at in range(0, len(every), count)] if in_turn else every


def count(verifiers: Sequence[str], *, in_turn: bool = False, sources: Sequence[str] | None = None) -> int:
    """The number of values that ``check`` yields."""
    plan = all_settings(verifiers, sources, in_turn=in_turn)
    return len(plan) + 3 if plan else 0


def check(
    verifiers: Sequence[str],
    *,
    samples: int,
    in_turn: bool = False,
    sources: Sequence[str] | None = None,
    allowance: Allowance | None = None,
) -> Iterator[Check | str]:
    """Yields progress by name, then two checks: sequence frequencies, and tokens equal to plain decoding's.

    Each setting has ``samples`` samples, or fewer if ``allowance`` ends first.
    """
    plan = all_settings(verifiers, sources, in_turn=in_turn)
    if not plan:
        return
    samples = _affordable(plan, samples, allowance or Allowance())
    yield f"{samples} samples of each setting"
    counts: dict[ToySetting, NDArray[np.float64]] = {}
    different: list[str] = []
    broken: list[str] = []
    first_seed = 0
    for setting in plan:
        seeds = range(first_seed, first_seed + _samples_of(setting, samples))
        first_seed = seeds.stop  # different seeds, so that settings can be counted together
        requests = _serve(setting, seeds)
        errors = (r.error or r.stats.draft_error for r in requests)
        broken += {f"{setting.name}: {error}" for error in errors if error is not None}
        index = [int("".join(map(str, r.output)), VOCAB) for r in requests if len(r.output) == LENGTH]
        counts[setting] = np.bincount(index, minlength=VOCAB**LENGTH).astype(np.float64)
        if VERIFIERS[setting.verifier].shares_noise:
            params = replace(OPTIONS[setting.options], max_tokens=LENGTH)
            wrong = [r for r in requests if tuple(r.output) != plain(replace(params, seed=r.seed))]
            different += [f"{setting.name}: {len(wrong)} of {len(seeds)} differ"] if wrong else []
        yield setting.name
    yield _frequencies(counts, broken)
    yield _tokens(counts, different)


def _samples_of(setting: ToySetting, samples: int) -> int:
    """The samples of a setting: a quarter if its tokens are compared too, to which frequencies add little."""
    shares_noise = VERIFIERS[setting.verifier].shares_noise
    return min(samples, max(LEAST, samples // 4)) if shares_noise else samples


def _affordable(plan: Sequence[ToySetting], samples: int, allowance: Allowance) -> int:
    """The samples of a setting that the time allows, estimated with pilot samples that are not counted."""

    def pilot() -> int:
        tried = plan[:: max(1, len(plan) // 16)]
        for setting in tried:
            _serve(setting, range(PILOT_SEED, PILOT_SEED + _CACHE.slots))
        return len(tried) * _CACHE.slots

    share = sum(_samples_of(setting, samples) for setting in plan) / samples
    return allowance.times(round(share), least=min(LEAST, samples), most=samples, pilot=pilot)


def _frequencies(counts: dict[ToySetting, NDArray[np.float64]], broken: list[str]) -> Check:
    """Test each setting, and the joined settings of each verifier and of each source, which show smaller deviations.

    A fault of a verifier or of a source is in all of its settings.
    """
    groups: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for setting, seen in counts.items():
        for name in (setting.verifier, setting.source):
            groups.setdefault((name, setting.options), []).append(seen)
    expected = {
        name: sequence_probs(TARGET.table, replace(params, max_tokens=LENGTH), PROMPT, LENGTH)
        for name, params in OPTIONS.items()
    }
    single = {setting.name: chi_square(seen, expected[setting.options]) for setting, seen in counts.items()}
    together = {
        f"{name}, {option}": chi_square(np.sum(group, axis=0), expected[option])
        for (name, option), group in groups.items()
        if len(group) > 1
    }
    fits = single | together
    failed = [name for name, fit in fits.items() if fit.fails(len(fits))]
    least, least_together = (
        max((f.detectable(len(fits)) for f in each.values()), default=1.0) for each in (single, together)
    )
    fewest = min(fit.samples for fit in single.values())
    summary = (
        f"{len(failed)} of {len(fits)} tests miss the enumerated distribution of {VOCAB**LENGTH} sequences; with "
        f"probability {POWER:g} a total variation would be seen of {least:.2f} in any of {len(single)} combinations of "
        f"source, verifier and options ({fewest} samples and more)"
    )
    if together:
        fewest = min(fit.samples for fit in together.values())
        summary += f" and {least_together:.2f} in a source or verifier by itself ({fewest} and more)"
    wrong = [line for line in broken if ": TimeoutError: " not in line]  # a slow source is no fault, but tests less
    return Check(
        "enumerable sequences",
        "fail" if failed or wrong else "note" if broken else "pass",
        summary,
        [f"{n}: p-value {fits[n].p_value:.1e}, total variation {fits[n].total_variation:.3f}" for n in failed] + broken,
        {
            "p_values": {name: fit.p_value for name, fit in fits.items()},
            "samples": {name: fit.samples for name, fit in fits.items()},
            "detectable_total_variation": least,
            "detectable_total_variation_together": least_together,
        },
    )


def _tokens(counts: dict[ToySetting, NDArray[np.float64]], different: list[str]) -> Check:
    compared = int(sum(seen.sum() for c, seen in counts.items() if VERIFIERS[c.verifier].shares_noise))
    return Check(
        "same tokens on enumerable sequences",
        "fail" if different else "pass",
        "matching gives other tokens than plain decoding"
        if different
        else f"matching gives plain decoding's tokens, in {compared} of {compared} sequences",
        different,
        {"compared": compared},
    )


def plain(params: SamplingParams) -> tuple[int, ...]:
    """The target's own output, without engine, cache and draft. ``params`` must have a seed."""
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


def _serve(setting: ToySetting, seeds: range) -> list[Request]:
    """Run a request for each seed, in batches as large as the cache holds."""
    drafters = _registry()
    engine = Engine(
        TARGET, drafters={setting.source: drafters[setting.source]}, eos_token_ids=(), vocab_size=VOCAB, cache=_CACHE
    )
    speculation = SpeculationParams(draft=setting.source, verifier=setting.verifier, spec_length=2)  # type: ignore[arg-type]
    params = replace(OPTIONS[setting.options], max_tokens=LENGTH, ignore_eos=True)
    requests = [Request(str(seed), PROMPT, replace(params, seed=seed), speculation, frozenset()) for seed in seeds]
    for request in requests:
        engine.add(request)
    while engine.busy:
        engine.step()
        engine.cache.check()
    return requests
