"""Speculative decoding samples sequences from the target's exact distribution, whatever drafts it is given.

Every case compares a histogram of whole sequences with an enumeration, over several steps each. Seeds are fixed,
so p-values are the same on every run: a case below ``LEVEL`` is a defect. The same test has to fail for two
samplers that are wrong on purpose.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.config import SamplingParams
from outrider.core.noise import Noise, Purpose
from outrider.core.verify import VERIFIERS, Verifier, rejection

from . import toy

LEVEL = 1e-3
LENGTH = 4

SOURCES: dict[str, toy.Source] = {
    "none": toy.plain,
    "model, K=1": toy.model(1),
    "model, K=3": toy.model(3),
    "cold model, K=3": toy.model(3, 0.3),
    "model without q, K=3": toy.model(3, with_q=False),
    "best, K=1": toy.best(1),
    "best, K=3": toy.best(3),
    "worst, K=3": toy.worst(3),
    "best with one-hot q, K=3": toy.chosen(3, torch.argmax, toy.one_hot),
    "best denied by q, K=3": toy.chosen(3, torch.argmax, toy.denies),
    "best with broken q, K=1": toy.chosen(1, torch.argmax, toy.broken),
    "moody": toy.moody,
}
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


@pytest.mark.parametrize("verifier", VERIFIERS)
def test_fifty_thousand_tokens(verifier: str) -> None:
    samples = sample(WARM, VERIFIERS[verifier], toy.model(3), 50_000 // LENGTH)
    assert toy.p_value(toy.exact(WARM, LENGTH), samples) > 0.05


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_every_source(verifier: str, source: str) -> None:
    samples = sample(WARM, VERIFIERS[verifier], SOURCES[source], 1500)
    assert toy.p_value(toy.exact(WARM, LENGTH), samples) > LEVEL


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_every_sampling_option(verifier: str, options: str) -> None:
    params = OPTIONS[options]
    samples = sample(params, VERIFIERS[verifier], toy.model(2), 1500)
    assert toy.p_value(toy.exact(params, LENGTH), samples) > LEVEL


def test_trees_under_matching() -> None:
    samples = sample(WARM, VERIFIERS["matching"], toy.tree, 1500)
    assert toy.p_value(toy.exact(WARM, LENGTH), samples) > LEVEL


def test_a_sampler_that_skips_the_residual_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_p(p: Tensor, q: Tensor) -> Tensor:
        return p.log().float()

    monkeypatch.setattr(rejection, "_residual", from_p)
    samples = sample(WARM, VERIFIERS["rejection"], toy.model(3), 1500)
    assert toy.p_value(toy.exact(WARM, LENGTH), samples) < 1e-6


class ReusedNoise(Noise):
    """Draws the recovered token with the noise that drew the refused one."""

    def draw(self, log_weights: Tensor, position: int, purpose: Purpose = Purpose.MATCH, node: int = 0) -> int:
        return super().draw(log_weights, position, Purpose.DRAFT if purpose is Purpose.RECOVER else purpose, node)


def test_noise_reused_after_a_refusal_is_caught() -> None:
    samples = sample(WARM, VERIFIERS["rejection"], toy.model(3), 50_000 // LENGTH, ReusedNoise)
    assert toy.p_value(toy.exact(WARM, LENGTH), samples) < 1e-6
