"""Matching gives the very tokens of plain decoding; greedy decoding is the same under every verifier."""

from __future__ import annotations

import pytest

from outrider.config import SamplingParams
from outrider.verify.noise import Noise

from . import toy
from .test_sequences import OPTIONS, SOURCES, TREES

LENGTH = 12


@pytest.mark.parametrize("seeds", [range(4), pytest.param(range(4, 12), marks=pytest.mark.slow)], ids=str)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("source", [*SOURCES, *TREES])
def test_matching_gives_the_tokens_of_plain_decoding(source: str, options: str, seeds: range) -> None:
    propose = (SOURCES | TREES)[source]
    params, matching = OPTIONS[options], toy.BY_NAME["matching"]
    assert seeds
    for seed in seeds:
        expected = toy.generate(params, matching, toy.plain, Noise(seed), LENGTH)
        assert toy.generate(params, matching, propose, Noise(seed), LENGTH) == expected


@pytest.mark.parametrize("params", [SamplingParams(), SamplingParams(repetition_penalty=1.8)], ids=["bare", "penalty"])
@pytest.mark.parametrize("verifier", [*toy.EXACT, "typical"])
def test_greedy_decoding_is_unchanged(verifier: str, params: SamplingParams) -> None:
    expected = toy.generate(params, toy.BY_NAME["matching"], toy.plain, Noise(0), LENGTH)
    sources = SOURCES | TREES if toy.BY_NAME[verifier].takes_trees else SOURCES
    assert sources
    for source in sources.values():
        for seed in range(3):
            assert toy.generate(params, toy.BY_NAME[verifier], source, Noise(seed), LENGTH) == expected
