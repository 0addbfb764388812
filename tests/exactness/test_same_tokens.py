"""Matching gives the very tokens of plain decoding; greedy decoding is the same under every verifier."""

from __future__ import annotations

import pytest

from outrider.config import SamplingParams
from outrider.core.noise import Noise
from outrider.core.verify import VERIFIERS

from . import toy
from .test_sequences import OPTIONS, SOURCES

LENGTH = 12


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("source", [*SOURCES, "tree"])
def test_matching_gives_the_tokens_of_plain_decoding(source: str, options: str) -> None:
    propose = SOURCES.get(source, toy.tree)
    params, matching = OPTIONS[options], VERIFIERS["matching"]
    for seed in range(12):
        expected = toy.generate(params, matching, toy.plain, Noise(seed), LENGTH)
        assert toy.generate(params, matching, propose, Noise(seed), LENGTH) == expected


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(repetition_penalty=1.8)], ids=["bare", "penalty"])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("verifier", VERIFIERS)
def test_greedy_decoding_is_unchanged(verifier: str, source: str, params: SamplingParams) -> None:
    expected = toy.generate(params, VERIFIERS["matching"], toy.plain, Noise(0), LENGTH)
    for seed in range(5):
        assert toy.generate(params, VERIFIERS[verifier], SOURCES[source], Noise(seed), LENGTH) == expected
