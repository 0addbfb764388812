"""Rules for a workload described in words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from outrider.config import SOURCES
from outrider.errors import ConfigError
from outrider_lab import theory
from outrider_lab.candidates import RankedSource, SourceCandidate, best_shape, rank_sources
from outrider_lab.cost import DraftCost, LatencyCurve, flat
from outrider_lab.picker import recommend
from outrider_lab.priors import DescribedWorkload, candidates, expected_alpha
from outrider_lab.roofline import HARDWARE, ModelSize


def load(**changes: Any) -> DescribedWorkload:
    options: dict[str, Any] = {"target": ModelSize(8e9), "hardware": HARDWARE["A100"]}
    return DescribedWorkload(**options | changes)


def test_a_free_sure_guess_beats_a_dear_or_unsure_one() -> None:
    sure = SourceCandidate("sure", (0.8,) * 8, DraftCost(), "")
    unsure = SourceCandidate("unsure", (0.3,) * 8, DraftCost(), "")
    dear = SourceCandidate("dear", (0.8,) * 8, DraftCost(per_token=lambda batch: 0.5), "")
    ranked = rank_sources([unsure, dear, sure], flat())
    assert ranked[0].candidate.source == "sure"
    assert [c.speedup for c in ranked] == sorted((c.speedup for c in ranked), reverse=True)
    assert ranked[0].speedup == pytest.approx(float(theory.improvement(0.8, 8)))


def test_a_source_that_is_often_silent_gains_less() -> None:
    always = SourceCandidate("always", (0.8,) * 4, DraftCost(), "")
    gains = {
        c.candidate.drafting_share: c.speedup
        for c in rank_sources([always, replace(always, drafting_share=0.5)], flat())
    }
    assert 1 < gains[0.5] < gains[1.0]
    assert rank_sources([replace(always, drafting_share=0.0)], flat())[0].speedup == 1


def test_repetitive_text_is_for_sources_that_copy_and_novel_text_for_a_model() -> None:
    both = load(draft=ModelSize(0.2e9))
    assert recommend(replace(both, text="novel")).source == "model"
    copying = recommend(load(text="repetitive"))
    assert copying.source in ("lookup", "ngram")
    assert copying.speedup > recommend(load(text="novel")).speedup


def test_large_batches_get_plain_decoding_and_the_reason() -> None:
    advice = recommend(load(batch=512, text="novel"))
    assert advice.source == "none"
    assert any("batch of 512" in reason for reason in advice.reasons)


def test_short_outputs_get_plain_decoding() -> None:
    assert recommend(load(output_tokens=8, text="repetitive")).source == "none"


def test_the_draft_follows_the_request_s_temperature() -> None:
    advice = recommend(load(draft=ModelSize(0.2e9), text="novel", temperature=0.8))
    assert advice.draft_temperature == 0.8
    assert recommend(load(draft=ModelSize(0.2e9), text="novel")).draft_temperature is None


def test_where_rows_are_free_and_drafts_dear_a_tree_beats_the_chain() -> None:
    draft = SourceCandidate("model", (0.6,) * 12, DraftCost(per_token=lambda batch: 0.1), "", siblings=(0.6, 0.2, 0.1))
    best = rank_sources([draft], flat())[0]
    tree, speedup = best_shape(best, flat())
    assert tree is not None
    assert speedup > best.speedup
    paying = LatencyCurve({1: 1.0, 2: 1.9})
    assert best_shape(RankedSource(draft, 1, 1.2, None), paying)[0] is None


def test_only_sources_of_this_version_are_recommended() -> None:
    everything = load(draft=ModelSize(0.2e9), can_train=True)
    assert {c.source for c in candidates(everything, everything.hardware)} <= set(SOURCES)


def test_priors_follow_the_size_of_the_draft() -> None:
    alphas = [expected_alpha(ModelSize(70e9), ModelSize(d)) for d in (8e9, 1e9, 0.1e9)]
    assert alphas == sorted(alphas, reverse=True)
    assert alphas[0] == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize("bad", [{"text": "poetry"}, {"batch": 0}, {"temperature": -1.0}])
def test_impossible_loads_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        load(**bad)
