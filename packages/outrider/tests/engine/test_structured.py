"""A constraint in the engine: how it goes with every other option, and errors that stay with their request."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.config.structured import StructuredOutput
from outrider.engine.request import Request
from outrider.errors import GrammarError, InvalidRequestError, NumericalError
from outrider.models.toy import TableModel
from outrider.verify.draft import EMPTY, Draft
from tests.arrays import log_softmax
from tests.small_engines import Scripted, engine, request, run

VOCAB, EOS = 8, 7
TARGET = TableModel.random(VOCAB, seed=3, max_seq_len=64)
GREEDY = SamplingParams(max_tokens=20)
SAMPLED = SamplingParams(max_tokens=20, temperature=1.0, seed=5)
DRAFTS = ("none", "ngram", "lookup", "model", "grammar")


class Stairs:
    """0 1 0 1 ... up to a 2 after at least ``least`` tokens, then two 3s, then the end."""

    def __init__(self, least: int = 4) -> None:
        self.least = least

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        for n, token in enumerate(output):
            if token not in self._next(output[:n]):
                return None
        following = self._next(output)
        return np.isin(np.arange(VOCAB), following) if following else None

    def _next(self, output: Sequence[int]) -> list[int]:
        if EOS in output:
            return []
        if 2 in output:
            return [EOS] if output[-2:] == [3, 3] else [3]
        return [len(output) % 2, *([2] if len(output) >= self.least else [])]


class Breaks(Stairs):
    """Fails after five tokens."""

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        if len(output) > 5:
            raise GrammarError("too complex")
        return super().mask(output)


def constrained(params: SamplingParams, least: int = 4, id: str = "r", **options: Any) -> Request:
    r = request([4, 5, 6, 4, 5], params, id=id, stop_ids=[EOS], **options)
    r.constraint = Stairs(least)
    return r


def served(params: SamplingParams, least: int = 4, **options: Any) -> Request:
    r = constrained(params, least, **options)
    run(engine(TARGET, eos=[EOS]), r)
    return r


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", DRAFTS)
def test_the_output_has_the_form_and_is_that_without_drafts(draft: str, params: SamplingParams) -> None:
    for least in (1, 4, 7, 12):
        r = served(params, least, draft=draft)
        assert list(r.output) == list(served(params, least, draft="none").output)
        stairs = len(r.output) - 4
        assert list(r.output) == [i % 2 for i in range(stairs)] + [2, 3, 3, EOS]
        assert stairs >= least
        assert r.finish_reason == "stop"
        assert r.stats.draft_error is None


def test_forced_tokens_cost_no_run_of_their_own() -> None:
    r = served(GREEDY, 9, draft="grammar", verifier="matching")
    assert r.stats.num_draft_tokens == r.stats.num_accepted_draft_tokens
    assert r.stats.target_runs < len(r.output) / 2


@pytest.mark.parametrize("verifier", ["matching", "rejection"])
def test_certain_tokens_come_first_whatever_the_source(verifier: str) -> None:
    wrong = Scripted(lambda view, budget: Draft.chain([6] * min(budget, 2), source="wrong"))
    silent = Scripted(lambda view, budget: EMPTY)
    half = Scripted(lambda view, budget: Draft.chain([len(view.tokens) % 2 ^ 1, 6][:budget], source="half"))
    for source, name in ((wrong, "grammar"), (silent, "grammar"), (half, "half")):
        r = constrained(GREEDY, 9, draft="source", verifier=verifier)
        (outputs,) = run(engine(TARGET, eos=[EOS], more={"source": source}), r).values()
        assert list(r.output) == list(served(GREEDY, 9).output)
        assert r.stats.target_runs < len(r.output) * 0.8
        assert (outputs[0].source, outputs[0].origin) == (name, "accepted")


def test_a_draft_model_is_held_to_the_form_too() -> None:
    free = replace(SAMPLED, max_tokens=16)
    r = served(free, 12, draft="model", verifier="rejection")
    assert r.stats.num_accepted_draft_tokens == r.stats.num_draft_tokens  # most tokens are forced, to both


def test_max_tokens_cuts() -> None:
    for n in (1, 3, 5):
        r = served(replace(GREEDY, max_tokens=n), 20, draft="grammar")
        assert (list(r.output), r.finish_reason) == ([0, 1, 0, 1, 0][:n], "length")


def test_the_minimum_length_gives_way_to_a_form_that_is_complete() -> None:
    shortest = SamplingParams(max_tokens=20, min_tokens=19, logit_bias={2: 100.0})
    for draft in DRAFTS:
        r = served(shortest, 2, draft=draft)
        assert (list(r.output), r.finish_reason) == ([0, 1, 2, 3, 3, EOS], "stop")
    ends = served(SamplingParams(max_tokens=20, min_tokens=9, stop_token_ids=[2]), 2)
    assert ends.output[:9] == [i % 2 for i in range(9)]  # where there is a choice, it counts
    assert (ends.output[-1], ends.finish_reason) in ((2, "stop"), (1, "length"))


def test_stop_strings_and_stop_tokens_end_inside_a_form() -> None:
    r = request([4, 5], replace(GREEDY, stop="ba"), stop_ids=[EOS], letters=True, draft="grammar", spec_length=8)
    r.constraint = Stairs(9)
    run(engine(TARGET, eos=[EOS]), r)
    assert (r.text, r.finish_reason) == ("a", "stop")
    assert list(served(replace(GREEDY, stop_token_ids=[1]), 9, draft="grammar").output) == [0, 1]


@pytest.mark.parametrize("draft", DRAFTS)
def test_options_that_leave_nothing_of_the_form_end_only_their_request(draft: str) -> None:
    shared = engine(TARGET, slots=2, eos=[EOS])
    bad = constrained(replace(GREEDY, allowed_token_ids=[0, 5]), id="bad", draft=draft)
    good = constrained(SAMPLED, id="good", draft=draft)
    run(shared, bad, good)
    assert isinstance(bad.error, NumericalError)
    assert "allowed_token_ids" in str(bad.error)
    assert list(bad.output) == [0]
    assert list(good.output) == list(served(SAMPLED).output)
    assert shared.cache.free_tokens() == 2 * shared.max_seq_len


@pytest.mark.parametrize("draft", DRAFTS)
def test_a_grammar_that_breaks_off_ends_only_its_request(draft: str) -> None:
    shared = engine(TARGET, slots=2, eos=[EOS])
    bad, good = constrained(GREEDY, 12, id="bad", draft=draft), constrained(SAMPLED, 12, id="good", draft=draft)
    bad.constraint = Breaks(12)
    run(shared, bad, good)
    assert isinstance(bad.error, GrammarError)
    assert list(bad.output) == [0, 1, 0, 1, 0, 1]
    assert list(good.output) == list(served(SAMPLED, 12).output)
    assert good.stats.draft_error is None
    assert shared.cache.free_tokens() == 2 * shared.max_seq_len


def test_log_probabilities_are_those_before_the_form() -> None:
    r = constrained(replace(GREEDY, logprobs=0))
    (outputs,) = run(engine(TARGET, eos=[EOS]), r).values()
    assert outputs[0].logprobs is not None
    assert outputs[0].logprobs.keys() == {0}
    assert outputs[0].logprobs[0] == pytest.approx(float(log_softmax(TARGET.table[4, 5])[0]))


def test_preempted_requests_resume_inside_their_form() -> None:
    params = [replace(SAMPLED, seed=seed) for seed in range(8)]
    alone = [list(served(p, 10, draft="grammar").output) for p in params]
    tight = engine(TARGET, slots=8, eos=[EOS], kind="paged", tokens=96, block_size=4)
    together = [constrained(p, 10, id=str(i), draft="grammar") for i, p in enumerate(params)]
    run(tight, *together)
    assert [list(r.output) for r in together] == alone
    assert tight.stats.preemptions > 0


def test_a_form_without_its_grammar_is_refused() -> None:
    r = request([0], SamplingParams(structured=StructuredOutput(regex="a")))
    with pytest.raises(InvalidRequestError, match="use LLM"):
        engine(TARGET).add(r)
