"""Edges: the end of the context, the last token allowed, aborted requests, requests that cannot be served."""

from __future__ import annotations

import numpy as np
import pytest

from outrider.config import SamplingParams
from outrider.errors import ConfigError, InvalidRequestError
from outrider.models.base import Model
from outrider.models.inputs import InputSource
from outrider.models.toy import TableModel
from tests.engine.counting import CYCLE, counting, oracle
from tests.small_engines import engine, generate, request, run

SOURCES = ["none", "ngram", "lookup", "model", "oracle"]


@pytest.mark.parametrize("spec_length", [1, 2, 5, 8])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("prompt", [1, 2, 10, 18, 19])
def test_the_context_is_used_to_its_last_token(source: str, spec_length: int, prompt: int) -> None:
    """Twenty positions: prompt and output fill them all, and no draft goes beyond."""
    served = engine(counting(max_seq_len=20), more={"oracle": oracle()})
    tokens = [i % CYCLE for i in range(prompt)]
    r = request(tokens, SamplingParams(max_tokens=100), draft=source, spec_length=spec_length)
    outputs = run(served, r)["r"]
    assert r.tokens == [i % CYCLE for i in range(20)]
    assert r.finish_reason == outputs[-1].finish_reason == "length"
    assert r.stats.draft_error is None
    if source == "oracle" and prompt == 19:
        assert r.stats.num_draft_tokens == 0  # a plain step at the edge


@pytest.mark.parametrize("max_tokens", [1, 2, 3, 7])
@pytest.mark.parametrize("source", SOURCES)
def test_not_a_token_more_than_allowed(source: str, max_tokens: int) -> None:
    served = engine(counting(), more={"oracle": oracle()})
    r = request([0], SamplingParams(max_tokens=max_tokens), draft=source, spec_length=5)
    run(served, r)
    assert list(r.output) == [1, 2, 3, 4, 5, 6, 7][:max_tokens]
    assert r.finish_reason == "length"
    if source == "oracle":
        assert r.stats.target_runs == -(-max_tokens // 6)
        assert r.stats.num_draft_tokens == r.stats.num_accepted_draft_tokens == max_tokens - r.stats.target_runs


def test_abort_frees_what_was_held() -> None:
    source = oracle()
    served = engine(counting(), slots=2, more={"oracle": source})
    first, second, third = (request([0], id=i, draft="oracle", spec_length=2) for i in "abc")
    for r in (first, second, third):
        served.add(r)
    served.step()
    assert source.running == {"a", "b"}
    served.abort("a")
    served.abort("c")  # still waiting
    served.abort("nobody")
    served.cache.check()
    assert first.slot is None
    assert source.running == {"b"}
    while served.busy:
        served.step()
        served.cache.check()
    assert list(second.output) == [(i + 1) % CYCLE for i in range(12)]
    assert list(third.output) == []
    served.abort("b")  # over already
    assert served.cache.free_tokens() == 2 * served.max_seq_len
    assert generate(served, [3], draft="model") == generate(served, [3])


def test_an_idle_step_does_nothing() -> None:
    served = engine(counting())
    assert served.step() == []
    assert not served.busy


def test_impossible_requests_are_refused_before_they_run() -> None:
    served = engine(counting(max_seq_len=20), vocab_size=8)
    for prompt, message in [([], "empty"), ([0] * 20, "20 tokens"), ([8], "token 8"), ([-1], "token -1")]:
        with pytest.raises(InvalidRequestError, match=message):
            served.add(request(prompt))
    with pytest.raises(InvalidRequestError, match="banned_token_ids names token 8"):
        served.add(request([0], SamplingParams(banned_token_ids=[8])))
    with pytest.raises(ConfigError, match=r"'psychic' is not loaded.*none, ngram, lookup, model"):
        served.add(request([0], draft="psychic"))
    assert not served.busy


def test_padding_of_the_vocabulary_is_never_said() -> None:
    """The head has two columns that are no tokens, and they are the likeliest."""
    table = np.zeros((6, 6), np.float32)
    table[:, 4:] = 30.0
    for source in ("none", "model"):
        served = engine(TableModel(table), vocab_size=4)
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=1)
        assert max(generate(served, [0, 1], params, draft=source)) < 4


def test_more_alternatives_than_tokens() -> None:
    r = request([0], SamplingParams(max_tokens=2, logprobs=20))
    outputs = run(engine(counting()), r)["r"]
    assert len(outputs) == 2
    for output in outputs:
        assert output.logprobs is not None
        assert sorted(output.logprobs) == list(range(CYCLE))


def test_end_of_text_ids_the_model_does_not_have() -> None:
    served = engine(counting(), eos=[3, 500])
    assert generate(served, [0], SamplingParams(max_tokens=5, min_tokens=5), stop_ids=[3, 500])[:2] == [1, 2]


def test_a_request_without_a_seed_is_given_one_that_repeats_it() -> None:
    served = engine(TableModel.random(9))
    r = request([0, 1], SamplingParams(max_tokens=20, temperature=1.0), draft="model")
    run(served, r)
    again = SamplingParams(max_tokens=20, temperature=1.0, seed=r.seed)
    assert generate(served, [0, 1], again) == list(r.output)


class CountedChecks(InputSource):
    """Text that counts its checks, and is refused on demand."""

    def __init__(self) -> None:
        self.checks, self.refused = 0, False

    def check(self, model: Model) -> None:
        self.checks += 1
        if self.refused:
            raise InvalidRequestError("refused")


def test_an_engine_checks_a_request_once() -> None:
    served, other = engine(counting()), engine(counting())
    early, late, foreign = (request([0], id=name) for name in ("early", "late", "foreign"))
    sources = [CountedChecks() for _ in range(3)]
    early.input, late.input, foreign.input = sources
    served.check(early)
    other.check(foreign)
    for each in (early, late, foreign):
        served.add(each)
    assert [source.checks for source in sources] == [1, 1, 2]


def test_a_refused_request_is_not_queued_later() -> None:
    served, refused = engine(counting()), request([0])
    refused.input = source = CountedChecks()
    source.refused = True
    for act in (served.check, served.add):
        with pytest.raises(InvalidRequestError, match="refused"):
            act(refused)
    assert source.checks == 2
    assert not served.busy
