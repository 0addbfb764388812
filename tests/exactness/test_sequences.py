"""Speculative decoding samples sequences from the target's exact distribution, whatever drafts it is given.

Every case compares a histogram of whole sequences with an enumeration, over several steps each. Seeds are fixed,
so p-values are the same on every run: a case below ``LEVEL`` is a defect. The same test has to fail for
samplers that are wrong on purpose.

What a single step does is worked out exactly in ``test_laws``; samples show that the streams of noise are
independent of each other, from step to step too. With ``N`` sequences and some 80 of them common enough to be told
apart, a case below ``LEVEL`` is found with probability 0.9 where the chi-square distance ``sum((found - p)^2 / p)``
is 0.055: a total variation distance of about 0.1.
"""

from __future__ import annotations

import numpy as np
import pytest

from outrider.config import SamplingParams
from outrider.verify.arrays import Array
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import Draft
from outrider.verify.noise import Noise, Purpose
from outrider.verify.verifiers.base import DraftSampler, Siblings, Verifier
from tests.arrays import floats, log
from tests.pairwise import slow_unless

from . import toy

LEVEL = 1e-3
LENGTH = 4
N = 1000

SOURCES: dict[str, toy.Source] = {
    "none": toy.plain,
    "model, K=1": toy.model(1),
    "model, K=3": toy.model(3),
    "cold model, K=3": toy.model(3, 0.3),
    "model without q, K=3": toy.model(3, with_q=False),
    "best, K=1": toy.best(1),
    "best, K=3": toy.best(3),
    "worst, K=3": toy.worst(3),
    "best with one-hot q, K=3": toy.chosen(3, np.argmax, toy.one_hot),
    "best denied by q, K=3": toy.chosen(3, np.argmax, toy.denies),
    "best with broken q, K=1": toy.chosen(1, np.argmax, toy.broken),
    "moody": toy.moody,
}
TREES: dict[str, toy.Source] = {
    "any": toy.tree,
    "static": toy.static(2, 1),
    "shape follows tokens": toy.grown,
    "best-first": toy.best_first(5),
}
FEW = ("model, K=3", "moody")  # chains to sample with verifiers whose law test_laws works out
CELLS = [
    *(("matching", source) for source in SOURCES),
    *((verifier, source) for verifier in ("rejection", "block") for source in FEW),
    *((verifier, source) for verifier in toy.ON_TREES for source in TREES),
]
OPTIONS: dict[str, SamplingParams] = {
    "T=0.7": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(temperature=1.3, top_k=3),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8),
    "min-p": SamplingParams(temperature=1.0, min_p=0.15),
    "penalties": SamplingParams(
        temperature=1.0, repetition_penalty=1.4, presence_penalty=0.5, frequency_penalty=0.3, logit_bias={2: 0.5}
    ),
    "all": SamplingParams(
        temperature=1.5, top_k=3, top_p=0.95, min_p=0.05, repetition_penalty=1.2, min_tokens=2, stop_token_ids=[3]
    ),
}
WARM = SamplingParams(temperature=1.0)


def sample(
    params: SamplingParams, verify: Verifier, source: toy.Source, n: int, noise: type[Noise] = Noise
) -> list[tuple[int, ...]]:
    return [toy.generate(params, verify, source, noise(seed), LENGTH) for seed in range(n)]


@pytest.mark.slow
@pytest.mark.parametrize("verifier", ["matching", "rejection"])
def test_fifty_thousand_tokens(verifier: str) -> None:
    samples = sample(WARM, toy.BY_NAME[verifier], toy.model(3), 50_000 // LENGTH)
    assert toy.p_value(toy.exact(WARM, LENGTH), samples) > 0.05


# Matching gives the very tokens of plain decoding (test_same_tokens), so that one source stands for all; and every
# verifier's samples are compared through the engine too (test_matrix), so that one chain and one tree stand for theirs.
CELLS_FAST = [("matching", "none"), ("rejection", "model, K=3"), ("sequoia", "shape follows tokens")]


@pytest.mark.parametrize(("verifier", "source"), slow_unless(CELLS, CELLS_FAST))
def test_every_source(verifier: str, source: str) -> None:
    samples = sample(WARM, toy.BY_NAME[verifier], (SOURCES | TREES)[source], N)
    assert toy.p_value(toy.exact(WARM, LENGTH), samples) > LEVEL


OPTION_CELLS = [(v, o) for v in ("matching", "rejection") for o in OPTIONS]


@pytest.mark.parametrize(("verifier", "options"), slow_unless(OPTION_CELLS, [("rejection", "penalties")]))
def test_every_sampling_option(verifier: str, options: str) -> None:
    params = OPTIONS[options]
    samples = sample(params, toy.BY_NAME[verifier], toy.model(2), N)
    assert toy.p_value(toy.exact(params, LENGTH), samples) > LEVEL


WRONGS: dict[str, tuple[Verifier, toy.Source]] = {
    "recovered from p": (toy.Redrawn("wrong"), toy.model(3)),
    "residual not updated": (toy.Forgetful("wrong", Siblings.INDEPENDENT), toy.static(3)),
    "replacement ratios in draft order": (toy.ReplacementRatios("wrong"), toy.static(3)),
    "lenient": (toy.BY_NAME["lenient"], toy.static(2, 1)),
    "typical": (toy.BY_NAME["typical"], toy.static(2, 1)),
}


WRONGS_FAST = ("recovered from p",)  # test_matrix has lossy ones


@pytest.mark.parametrize("wrong", slow_unless([(w,) for w in WRONGS], [(w,) for w in WRONGS_FAST]))
def test_a_sampler_that_is_wrong_is_caught(wrong: str) -> None:
    verify, source = WRONGS[wrong]
    n = N if wrong in WRONGS_FAST else 1500
    assert toy.p_value(toy.exact(WARM, LENGTH), sample(WARM, verify, source, n)) < 1e-6


class ReusedNoise(Noise):
    """Draws the recovered token with the noise that drew the refused one."""

    def draw(self, log_weights: Array, position: int, purpose: Purpose = Purpose.MATCH, node: int = 0) -> int:
        return super().draw(log_weights, position, Purpose.DRAFT if purpose is Purpose.RECOVER else purpose, node)


@pytest.mark.slow
def test_noise_reused_after_a_refusal_is_caught() -> None:
    samples = sample(WARM, toy.BY_NAME["rejection"], toy.model(3), 12_500, ReusedNoise)
    assert toy.p_value(toy.exact(WARM, LENGTH), samples) < 1e-6


P, Q = floats([0.25, 0.02, 0.70, 0.03]), floats([0.02, 0.50, 0.40, 0.08])
"""A target and a draft where what is refused (1) and what may follow it (0 or 2) race closely."""


def drafted_and_given(noise: Noise) -> tuple[int, int]:
    """A drafted token, and the token that comes in its place."""
    verify, position = toy.BY_NAME["rejection"], len(toy.PROMPT)
    sampler = DraftSampler(noise, position, verify.shares_noise, verify.siblings)
    drafted = sampler.draw(log(Q), depth=0, node=0)
    draft = Draft.chain([drafted], q_logits=log(Q)[None])
    target = TargetRows(np.stack([log(P)] * 2), WARM, Context(toy.PROMPT, ()), draft)
    verdict = verify(draft, target, noise, position)
    return drafted, drafted if verdict.path else verdict.token


@pytest.mark.parametrize(("noise", "sound"), [(Noise, True), (ReusedNoise, False)])
def test_what_takes_a_refused_token_s_place_is_drawn_afresh(noise: type[Noise], sound: bool) -> None:
    """Reused noise shows beside the refused token long before it shows in sequences."""
    p, q = P.astype(np.float64), Q.astype(np.float64)
    kept = np.minimum(p, q)
    expected = np.diag(kept) + np.outer(q - kept, (p - kept) / (p - kept).sum())
    found = toy.p_value(expected.ravel(), [drafted_and_given(noise(seed)) for seed in range(1500)])
    assert found > LEVEL if sound else found < 1e-6
