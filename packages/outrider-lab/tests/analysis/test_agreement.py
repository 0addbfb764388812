"""α on the target's own text, graded drafts, traces, plans: small models, known answers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.config import SOURCES
from outrider.drafters import registry
from outrider.errors import ConfigError
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider_lab import agreement, draft_quality, trace
from outrider_lab.agreement import Agreement, NgramCounts, TargetText
from outrider_lab.comparison import compare
from outrider_lab.measure import Measurements
from outrider_lab.plan import make_plan, with_seed
from tests.model_folders import model_folder

SAMPLED = SamplingParams(temperature=1.0)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    root = tmp_path_factory.mktemp("models")
    small = model_folder(root / "draft", num_hidden_layers=1)
    return LLM(str(model_folder(root / "target")), draft_model=str(small), dtype="float32", draft_dtype="float32")


def test_counts_leave_out_the_text_they_predict() -> None:
    texts = [TargetText([0], [1, 2, 1]), TargetText([0], [1, 3])]
    counts = NgramCounts(texts, 4)
    assert counts.unigram(texts[0], SAMPLED)[0] == pytest.approx([0, 0.5, 0, 0.5])  # of the other text: 1, 3
    # The other text: 1 after 0, 2 after 1, 1 after 2. Half of each row is what followed, half the unigram (2/3, 1/3).
    assert counts.bigram(texts[1], SAMPLED) == pytest.approx(np.array([[0, 5 / 6, 1 / 6, 0], [0, 1 / 3, 2 / 3, 0]]))
    assert counts.bigram(texts[0], SAMPLED)[2] == pytest.approx([0, 0.5, 0, 0.5])  # 2 was never seen: the unigram
    assert counts.unigram(texts[1], SamplingParams())[0].tolist() == [0, 1, 0, 0]
    assert counts.unigram(texts[0], SAMPLED)[0] == pytest.approx([0, 0.5, 0, 0.5])  # and puts it back


def test_a_model_agrees_with_itself_and_less_with_another(llm: LLM) -> None:
    vocab = llm.engine.vocab_size
    prompt = [5, 6, 7]
    texts = [TargetText(prompt, llm.generate([prompt], SamplingParams(max_tokens=12, ignore_eos=True))[0].token_ids)]
    target = agreement.model_probs(llm.model, vocab)
    drafts = {"itself": target, "other": agreement.model_probs(llm.draft_models[0], vocab)}
    for params in (SamplingParams(), SAMPLED):
        totals = list(agreement.measure_agreement(texts, params, target, drafts))[-1]
        assert totals["itself"].mean(totals["itself"].rejection) == pytest.approx(1)
        assert totals["itself"].mean(totals["itself"].coupled) == pytest.approx(1)
        assert totals["other"].rejection < 12
    lenient = totals["other"].lenient
    assert list(lenient.values()) == sorted(lenient.values())
    assert lenient[1.0] == pytest.approx(totals["other"].rejection)


def test_rows_are_those_the_engine_decodes_with(llm: LLM) -> None:
    output = llm.generate([[5, 6, 7]], SamplingParams(max_tokens=8, ignore_eos=True))[0].token_ids
    rows = agreement.model_probs(llm.model, llm.engine.vocab_size)(TargetText([5, 6, 7], output), SamplingParams())
    assert rows.argmax(axis=-1).tolist() == output


def test_graded_drafts_are_accepted_as_theory_says_and_ever_less() -> None:
    judged = {name: VERIFIERS[name] for name in ("rejection", "matching")}
    found = draft_quality.measure_draft_quality(judged, levels=3, steps=600)
    for grade in found:
        assert grade.accepted["rejection"] == pytest.approx(1 - grade.total_variation, abs=0.06)
        assert grade.accepted["matching"] == pytest.approx(grade.coupled, abs=0.06)
    for values in (
        [g.kl for g in found],
        [g.total_variation for g in found],
        [-g.accepted["rejection"] for g in found],
    ):
        assert values == sorted(values)
    assert found[0].kl == 0
    assert found[0].accepted["matching"] == 1


def test_a_trace_shows_each_run_and_leaves_the_models_as_they_were(llm: LLM) -> None:
    params = SamplingParams(max_tokens=9, ignore_eos=True)
    found = trace.record(llm, [5, 6, 7], params, SpeculationParams(draft="model", spec_length=2), llm.draft_models[0])
    kinds = [e.kind for e in found.events]
    assert kinds.count("draft") > kinds.count("target") > 0
    assert all(a.end <= b.begin for a, b in zip(found.events, found.events[1:], strict=False))
    assert len(found.tokens) == 9
    assert "forward" not in vars(llm.model)
    plain = trace.record(llm, [5, 6, 7], params, SpeculationParams(draft="none"))
    assert [e.kind for e in plain.events] == ["target"] * 8


def test_a_comparison_has_theory_and_measurement(llm: LLM) -> None:
    rows = compare(
        llm,
        [[5, 6, 7], [8, 9], [10, 11], [12]],
        SamplingParams(max_tokens=12, ignore_eos=True),
        {"lookup": SpeculationParams(draft="lookup", spec_length=3)},
    )
    row = rows[0]
    assert len(rows) == 1
    assert row.k == 3
    assert row.measured > 0
    assert row.predicted > 0
    assert row.as_dict()["setting"] == "lookup"


@pytest.mark.slow
def test_a_plan_recommends_what_it_predicts_best_and_tests_it(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {name: SOURCES[name] for name in ("none", "model", "lookup", "ngram")}
    monkeypatch.setattr(registry, "SOURCES", kept)  # the others only take time
    prompts = [[5, 6, 7], [8, 9]]
    made = make_plan(llm, prompts, with_seed(SamplingParams(max_tokens=12, ignore_eos=True)))
    assert set(made.sources) == {"model", "lookup", "ngram"}
    alone = [p for p in made.predictions if p.batch == 1]
    assert all(p.low <= p.speedup * 1.0001 and p.speedup * 0.9999 <= p.high for p in alone)
    if made.best is not None:
        assert made.best.speedup == max(p.speedup for p in alone)
        assert made.settings(llm.config)["draft"] == made.best.source
    assert made.checked
    assert made.reasons
    assert made.as_dict()["median_error"] is not None
    unchecked = make_plan(llm, prompts, SamplingParams(max_tokens=6), verify=False)
    assert unchecked.checked == []


def test_an_interrupted_plan_is_made_of_what_was_measured(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "SOURCES", {name: SOURCES[name] for name in ("none", "lookup")})
    prompts, params = [[5, 6, 7], [8, 9], [5, 6], [8]], SamplingParams(max_tokens=4, ignore_eos=True)
    said: list[str] = []
    expected: list[int] = []

    def interrupt_at(count: int) -> Callable[[str], None]:
        said.clear()

        def tick(what: str) -> None:
            said.append(what)
            if len(said) == count:
                raise KeyboardInterrupt

        return tick

    whole = make_plan(llm, prompts, params, tick=interrupt_at(0), expect=expected.append)
    total = len(said)
    assert whole.complete
    assert expected[-1] == total <= expected[0]
    with pytest.raises(KeyboardInterrupt):  # a forward pass's cost and two warm-ups: no prompt has been run
        make_plan(llm, prompts, params, tick=interrupt_at(3))
    for count, prompts_run in ((6, 1), (total - 1, 2)):  # in the second prompt, and while predictions are tested
        made = make_plan(llm, prompts, params, tick=interrupt_at(count))
        assert not made.complete
        assert made.predictions
        assert made.checked == []
        assert f"interrupted: measured on {prompts_run} of 2 prompts" in made.reasons[-1]


def test_nothing_observed_is_no_division_by_zero() -> None:
    assert Measurements().alpha is None
    assert Measurements().s_per_token == 0
    assert Agreement().mean(0.0) == 0


def test_a_seed_is_given_where_sampling_needs_one() -> None:
    assert with_seed(SamplingParams(temperature=1.0)).seed == 1
    assert with_seed(SamplingParams()).seed is None


def test_missing_matplotlib_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import sys

    from outrider_lab.figures import theory_plots

    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ConfigError, match=r"outrider\[lab\]"):
        theory_plots.expected_tokens(tmp_path)
