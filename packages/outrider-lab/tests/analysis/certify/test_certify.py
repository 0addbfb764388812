"""A sound build passes; three seeded bugs, each in another part, do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from outrider import LLM, SamplingParams
from outrider.cache import KVCache
from outrider.drafters import draft_cache
from outrider.drafters.trees.builders import StaticTreeBuilder
from outrider.drafters.trees.pending_draft import PendingDraft
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.verify.arrays import Array, Floats
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY
from outrider.verify.verifiers import recursive
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider_lab.agreement import forward_logits
from outrider_lab.certify import batch_invariance, draft_consistency, enumeration, frequencies, identity, session
from outrider_lab.certify.near_ties import explain_divergence
from outrider_lab.certify.pairs import exact_pairs, in_turn
from outrider_lab.certify.report import Certificate, Check
from outrider_lab.data.workloads import Question
from tests.model_folders import model_folder

QUESTIONS = [Question(str(i), "test", text, chat=False) for i, text in enumerate(("hello world", "one two three four"))]
EFFORT = session.Coverage(toy_samples=150, prompts=2, tokens=12, each=2, samples=16)
BRIEF = replace(EFFORT, toy_samples=20, samples=2)  # where neither of these is to find anything


@pytest.fixture
def llm(tmp_path: Path) -> LLM:
    target = model_folder(tmp_path / "target")
    small = model_folder(tmp_path / "draft", num_hidden_layers=1)
    return LLM(str(target), draft_model=str(small), dtype="float32", draft_dtype="float32", max_batch_size=4)


def certify(llm: LLM, verifiers: list[str] | None = None, coverage: session.Coverage = EFFORT) -> Certificate:
    return session.certify(llm, QUESTIONS, coverage, sources=["model"], verifiers=verifiers)


def failed(report: Certificate) -> set[str]:
    return {check.name for check in report.checks if check.status == "fail"}


def test_a_sound_build_passes_and_says_on_what(llm: LLM) -> None:
    said: list[str] = []
    sources = ["model", "suffix"]
    expected: list[int] = []
    report = session.certify(llm, QUESTIONS, BRIEF, sources=sources, tick=said.append, expect=expected.append)
    assert expected == [len(said)]
    assert failed(report) == set()
    assert report.passed
    names = [check.name for check in report.checks]
    assert names == [
        "enumerable sequences", "same tokens on enumerable sequences", "batch invariance",
        "greedy output", "same seed output", "drafts do not depend on what was refused before",
        "samples follow the target",
    ]  # fmt: skip
    assert report.subject["dtype"] == "float32"
    assert json.loads(report.as_json())["passed"] is True
    assert "| pass | greedy output |" in report.markdown()
    assert report.lines()[-1].startswith("CERTIFIED")
    assert len(said) > len(names)


def test_ctrl_c_ends_with_a_report_of_the_checks_made(llm: LLM) -> None:
    def interrupt(what: str) -> None:
        if what == "batch invariance":
            raise KeyboardInterrupt

    report = session.certify(llm, QUESTIONS, BRIEF, sources=["suffix"], tick=interrupt)
    assert [check.name for check in report.checks][-1] == "batch invariance"
    assert (report.complete, report.passed) == (False, False)
    assert report.verdict == "INTERRUPTED, not certified: 0 of the first 3 checks failed"
    assert json.loads(report.as_json())["complete"] is False


@pytest.mark.slow
def test_a_sound_build_passes_with_every_source(llm: LLM) -> None:
    assert failed(session.certify(llm, QUESTIONS, replace(EFFORT, samples=2))) == set()


def test_a_skipped_residual_is_caught(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recovered token comes from p instead of from what q left of it."""
    monkeypatch.setattr(recursive, "residual", lambda p, q: p)
    found = failed(certify(llm, ["rejection"], replace(EFFORT, samples=40, toy_samples=400)))
    assert found >= {"enumerable sequences", "samples follow the target"}


@pytest.mark.slow
def test_a_draft_cache_that_is_not_rolled_back_is_caught(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused token's row takes the place of the last kept one: no output changes, but drafts do."""
    truncate = draft_cache.DraftModel.truncate

    def wrong(
        model: draft_cache.DraftModel, sequence: draft_cache.CachedSequence, tokens: Sequence[int], most: int
    ) -> None:
        held = len(sequence.cached)
        cache, layers = model.cache, range(llm.draft_models[0].config.num_layers)
        rows = [[x.copy() for x in cache.read(layer, sequence.slot, held)] for layer in layers] if held else []
        truncate(model, sequence, tokens, most)
        kept = len(sequence.cached)
        if 0 < kept < held:
            for layer, (k, v) in zip(layers, rows, strict=True):
                cache.write(layer, sequence.slot, kept - 1, k[kept : kept + 1], v[kept : kept + 1])

    monkeypatch.setattr(draft_cache.DraftModel, "truncate", wrong)
    assert failed(certify(llm, ["matching", "sequoia"], BRIEF)) == {"drafts do not depend on what was refused before"}


@pytest.mark.slow
def test_top_p_for_the_target_but_not_for_the_draft_s_q_is_caught(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafts are drawn from the truncated distribution, but the verifier is told the one before truncation.

    Leaving top-p out of the draft altogether would be no bug: q may be any distribution, if it is the one drawn from.
    """
    extend = PendingDraft.extend

    def wrong(chain: PendingDraft, logits: Array) -> None:
        extend(chain, logits)
        assert isinstance(chain._tree, StaticTreeBuilder)
        if chain._tree._q:  # not for shares_noise verifiers, which need no q
            row = TargetRows(logits, replace(chain._sampler._params, top_p=1.0), Context((), ()), EMPTY)
            chain._tree._q[-1] = row.log_weights(0)

    monkeypatch.setattr(PendingDraft, "extend", wrong)
    assert failed(certify(llm, verifiers=["rejection"])) >= {"enumerable sequences"}


def test_a_target_cache_that_is_not_rolled_back_is_caught(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of refused tokens stay where the next tokens look."""
    cache = llm.engine.cache
    keep = cache.keep_path

    def wrong(slot: int, base: int, path: Sequence[int]) -> None:
        keep(slot, base, path)
        length = cache.length(slot)
        for layer in range(0 if path else llm.model.config.num_layers):  # a draft was refused: leave another row there
            k, v = cache.read(layer, slot, length)
            cache.write(layer, slot, length - 1, k[:1].copy(), v[:1].copy())

    monkeypatch.setattr(cache, "keep_path", wrong)
    assert failed(certify(llm, verifiers=["matching"])) & {"greedy output", "same seed output"}


def sloppy(model: Model) -> Callable[[ForwardBatch, KVCache], ForwardOutput]:
    """The model's forward pass, with rows of its second layer that depend on how many they are."""
    forward, width = model.forward, model.config.hidden_size

    def wrong(batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        result, off = forward(batch, cache), 1 + 1e-4 * (len(batch.token_ids) % 3)
        features = result.features
        if features is not None:
            features = np.concatenate([features[:, :width], features[:, width:] * np.float32(off)], axis=1)
        return replace(result, logits=result.logits * np.float32(off), features=features)

    return wrong


def test_where_arithmetic_breaks_is_named_and_near_ties_are_told_from_bugs(
    llm: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llm.model, "forward", sloppy(llm.model))
    tokens = list(range(5, 65))
    findings = batch_invariance.examine(llm.model, tokens)
    assert findings.noise > 0
    assert {b.layer for b in findings.mismatches} == {2}
    check = batch_invariance.check(findings, "float32")
    assert check.status == "note"
    assert "layer 2" in check.summary
    report = certify(llm, ["matching", "block"], BRIEF)
    assert report.checks[2].status == "note"
    assert failed(report) == set()  # what differs now is rounding, and called so


def test_a_difference_is_rounding_only_if_the_margin_allows(llm: LLM) -> None:
    prompt, params = [5, 6, 7, 8], SamplingParams(max_tokens=3, ignore_eos=True)
    plain = llm.generate([prompt], params)[0].token_ids
    logits = fresh_logits(llm, prompt)
    second = int(np.argsort(-logits)[1])
    gap = float(logits.max() - logits[second])
    wide = explain_divergence(llm, prompt, params, plain, [second, 1, 1], noise=gap)
    narrow = explain_divergence(llm, prompt, params, plain, [second, 1, 1], noise=gap / 4)
    assert wide.margin == pytest.approx(gap, rel=1e-4)
    assert (wide.is_rounding, narrow.is_rounding) == (True, False)
    assert not explain_divergence(
        llm, prompt, params, plain, plain[:2], noise=10.0
    ).is_rounding  # an early end is no near-tie
    sampled = replace(params, temperature=0.9, seed=4)
    drawn = llm.generate([prompt], sampled)[0].token_ids
    other = explain_divergence(llm, prompt, sampled, drawn, [(drawn[0] + 1) % 200, 1, 1], noise=0.0)
    assert other.margin > 0
    assert not other.is_rounding


def fresh_logits(llm: LLM, prompt: list[int]) -> Floats:
    return forward_logits(llm.model, prompt, len(prompt) - 1)[0, : llm.engine.vocab_size]


def test_a_source_that_fails_is_reported(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("out of ideas")

    monkeypatch.setattr(PendingDraft, "extend", broken)
    found = [c for c in identity.check(llm, [[5, 6]], ["model"], verifiers=["matching"], tokens=6, each=2, noise=0.0)
             if isinstance(c, Check)]  # fmt: skip
    assert {c.status for c in found} == {"note"}
    assert "out of ideas" in found[0].details[0]


@pytest.mark.parametrize("check", [draft_consistency.check, frequencies.check])
def test_checks_that_do_not_apply_are_left_out(llm: LLM, check: Callable[..., object]) -> None:
    options = {"noise": 0.0} if check is draft_consistency.check else {"verifiers": ["matching"], "samples": 1}
    assert list(check(llm, [[5]], ["lookup"], tokens=4, **options)) == []  # type: ignore[call-overload]


def test_toy_settings_cover_every_exact_verifier() -> None:
    assert {c.verifier for c in enumeration.all_settings(list(VERIFIERS))} == {
        v for v in VERIFIERS if VERIFIERS[v].exact
    }


def test_what_takes_turns_meets_every_pair_once_and_every_source_and_verifier_with_each_choice() -> None:
    pairs = exact_pairs(["lookup", "ngram", "suffix"], ["rejection", "block", "traversal"])
    turns = in_turn(pairs, ("a", "b"))
    assert list(turns) == pairs
    for part in range(2):
        assert {(pair[part], choice) for pair, choice in turns.items()} == {
            (name, choice) for name in {pair[part] for pair in pairs} for choice in "ab"
        }


@pytest.mark.slow
def test_a_quick_session_joins_the_modes_of_samples_and_has_one_draft_length_for_greedy_ones(llm: LLM) -> None:
    said: list[str] = []
    expected: list[int] = []
    sources = ["model", "suffix", "lookup"]
    brief = replace(BRIEF, in_turn=True, samples=3)
    report = session.certify(llm, QUESTIONS, brief, sources=sources, tick=said.append, expect=expected.append)
    assert expected == [len(said)]
    assert failed(report) == set()
    checks = {check.name: check for check in report.checks}
    names = list(checks["samples follow the target"].data["p_values"])
    assert names
    assert all(", all options, by " in name for name in names)
    greedy, drawn = (checks[f"{mode} output"].data["planned"] for mode in ("greedy", "same seed"))
    whole = session.certify(llm, QUESTIONS, replace(brief, in_turn=False), sources=sources)
    planned = {check.name: check.data.get("planned") for check in whole.checks}
    assert planned["same seed output"] == drawn
    assert drawn < greedy < planned["greedy output"]


def test_options_in_turn_still_meet_every_source_and_verifier() -> None:
    every, some = (enumeration.all_settings(list(VERIFIERS), in_turn=turns) for turns in (False, True))
    assert len(some) * len(enumeration.OPTIONS) == len(every)
    assert {(c.source, c.verifier) for c in some} == {(c.source, c.verifier) for c in every}
    assert {c.options for c in some} == set(enumeration.OPTIONS)


def test_too_few_samples_are_said_to_be_no_test(llm: LLM) -> None:
    found = list(frequencies.check(llm, [[5]], ["lookup"], verifiers=["rejection"], tokens=4, samples=1))
    assert isinstance(found[-1], Check)
    assert found[-1].status == "note"
