"""``LLM`` from a folder on disk: the public face, end to end."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.errors import ConfigError, IncompatibleDraftError, InvalidRequestError
from tests.whole import model_folder, other_vocabulary

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.9, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(str(folder), draft_model=str(folder), draft_dtype="float32", threads=1)


@pytest.mark.parametrize("params", [PARAMS, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("draft", ["ngram", "lookup", "model"])
def test_same_tokens_with_and_without_drafts(llm: LLM, draft: str, params: SamplingParams) -> None:
    plain = llm.generate("hello world", params, speculation=SpeculationParams(draft="none"))
    drafted = llm.generate("hello world", params, speculation=SpeculationParams(draft=draft, spec_length=4))
    assert drafted.token_ids == plain.token_ids
    assert drafted.text == plain.text
    assert plain.stats.num_draft_tokens == 0
    assert drafted.stats.draft_error is None


def test_a_draft_that_is_the_target_is_accepted(llm: LLM) -> None:
    output = llm.generate("hello world", SAMPLED, speculation=SpeculationParams(draft="model", spec_length=4))
    assert output.stats.mean_acceptance_length is not None
    assert output.stats.mean_acceptance_length > 3
    assert output.stats.target_runs < len(output.token_ids)


def test_many_prompts_equal_one_by_one(llm: LLM) -> None:
    prompts: list[str | list[int]] = ["hello", [5, 6, 7], "the world and"]
    together = llm.generate(prompts, SAMPLED)
    alone = [llm.generate([p], SAMPLED)[0] for p in prompts]
    assert [o.token_ids for o in together] == [o.token_ids for o in alone]


def test_a_request_without_a_seed_reports_the_one_it_got(llm: LLM) -> None:
    first = llm.generate("hello", replace(SAMPLED, seed=None))
    again = llm.generate("hello", replace(SAMPLED, seed=first.seed))
    assert again.token_ids == first.token_ids
    assert first.seed != llm.generate("hello", replace(SAMPLED, seed=None)).seed


def test_streamed_text_is_the_text(llm: LLM) -> None:
    speculation = SpeculationParams(draft="model")
    steps = list(llm.stream("hello", SAMPLED, speculation=speculation))
    whole = llm.generate("hello", SAMPLED, speculation=speculation)
    assert "".join(s.text for s in steps) == whole.text
    assert [s.token_id for s in steps] == whole.token_ids
    assert [s.finish_reason for s in steps] == [None] * 23 + ["length"]


def test_leaving_a_stream_early_frees_its_slot(llm: LLM) -> None:
    for step in llm.stream("hello", PARAMS):
        assert step.finish_reason is None
        break
    assert not llm.engine.busy
    llm.engine.cache.check()
    assert len(llm.generate("hello", PARAMS).token_ids) == 24


def test_stop_string_cuts_inside_an_accepted_draft(llm: LLM) -> None:
    whole = llm.generate("hello world", SAMPLED)
    stop = whole.text[len(whole.text) // 2 :][:3]
    cut = whole.text.index(stop)
    for draft in ("none", "model"):
        output = llm.generate(
            "hello world", replace(SAMPLED, stop=stop), speculation=SpeculationParams(draft=draft, spec_length=8)
        )
        assert output.text == whole.text[:cut]
        assert output.finish_reason == "stop"


def test_chat_uses_the_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hello"}]
    ids = llm.tokenizer.encode_chat(messages)
    assert llm.chat(messages, PARAMS).token_ids == llm.generate([ids], PARAMS)[0].token_ids
    assert [s.token_id for s in llm.stream(messages, PARAMS)] == llm.chat(messages, PARAMS).token_ids


def test_logprobs_are_those_of_plain_decoding(llm: LLM) -> None:
    params = replace(SAMPLED, logprobs=2)
    plain = llm.generate("hello", params)
    drafted = llm.generate("hello", params, speculation=SpeculationParams(draft="model"))
    assert [s.logprobs for s in plain.steps] == [s.logprobs for s in drafted.steps]
    assert all(s.logprobs is not None and s.token_id in s.logprobs for s in plain.steps)


def test_bad_requests_are_refused_before_anything_runs(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="prompt is empty"):
        llm.generate(["hello", []])
    with pytest.raises(InvalidRequestError, match=r"200 tokens.*holds 128"):
        llm.generate([[5] * 200])
    with pytest.raises(InvalidRequestError, match="token 99999"):
        llm.generate([[99999]])
    with pytest.raises(InvalidRequestError, match=r"logit_bias.*77777"):
        llm.generate("hello", SamplingParams(logit_bias={77777: 1.0}))
    with pytest.raises(ConfigError, match="not loaded"):
        llm.generate("hello", speculation=SpeculationParams(draft="telepathy"))
    for call in (llm.generate, llm.stream, lambda p, o: llm.chat([{"role": "user", "content": p}], o)):
        with pytest.raises(InvalidRequestError, match="n=2"):
            call("hello", SamplingParams(n=2))
    with pytest.raises(InvalidRequestError, match="list of params"):
        llm.generate("hello", [PARAMS])
    with pytest.raises(InvalidRequestError, match="2 prompts came with 1"):
        llm.generate(["a", "b"], [PARAMS])
    assert not llm.engine.busy


def test_a_draft_of_another_vocabulary_is_refused(folder: Path, tmp_path: Path) -> None:
    other = other_vocabulary(tmp_path / "other")
    with pytest.raises(IncompatibleDraftError, match=r"tokens, end-of-text .* tokens, end-of-text"):
        LLM(str(folder), draft_model=str(other))


def test_options_that_do_not_go_together(folder: Path) -> None:
    with pytest.raises(ConfigError, match="needs a draft model"):
        LLM(str(folder), draft="model")
    with pytest.raises(ConfigError, match="would not be used"):
        LLM(str(folder), draft="ngram", draft_model=str(folder))
    with pytest.raises(ConfigError, match="max_seq_len=4096"):
        LLM(str(folder), max_seq_len=4096)
    with pytest.raises(ConfigError, match="threads=0"):
        LLM(str(folder), threads=0)
    with pytest.raises(ConfigError, match=r"telepathy.*use one of none, suffix"):
        LLM(str(folder), draft="telepathy")


def test_two_streams_side_by_side_get_their_own_tokens(folder: Path) -> None:
    llm = LLM(str(folder), threads=1, max_batch_size=2)
    alone = [llm.generate(p, SAMPLED).token_ids for p in ("hello", "the world")]
    first, second = llm.stream("hello", SAMPLED), llm.stream("the world", SAMPLED)
    pairs = [(a.token_id, b.token_id) for a, b in zip(first, second, strict=True)]
    assert [list(tokens) for tokens in zip(*pairs, strict=True)] == alone


def test_salts_and_priorities_reach_the_engine(folder: Path) -> None:
    llm = LLM(str(folder), threads=1, kv_cache="paged", block_size=4)
    prompt = [[5, 6, 7, 8, 9, 10, 11, 12, 13]]
    cached = [
        llm.generate(prompt, PARAMS, cache_salt=salt)[0].stats.cached_prompt_tokens for salt in ("a", "b", "a", "")
    ]
    assert cached == [0, 0, 8, 0]
    assert llm.request("hello", priority=-3).priority == -3


def test_a_prediction_may_be_text(llm: LLM) -> None:
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    plain = llm.generate("hello world", params)
    known = SpeculationParams(draft="prediction", prediction=plain.token_ids, spec_length=12)
    told = llm.generate("hello world", params, speculation=known)
    assert told.token_ids == plain.token_ids
    assert told.stats.target_runs == 1
    words = llm.generate("hello", params, speculation=replace(known, prediction="hello world, and the world"))
    assert words.token_ids == llm.generate("hello", params).token_ids
    assert words.stats.draft_error is None
    assert words.stats.num_draft_tokens > 0


def test_only_sources_named_at_the_start_are_imported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples"))
    monkeypatch.delitem(sys.modules, "own_source", raising=False)
    own = SpeculationParams(draft="own_source:Echo,ngram")
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    with pytest.raises(ConfigError, match="name your own in extra_sources"):
        LLM(str(folder), threads=1).generate("hello hello hello", params, speculation=own)
    assert "own_source" not in sys.modules
    told = LLM(str(folder), threads=1, extra_sources=["own_source:Echo"])
    output = told.generate("hello hello hello", params, speculation=own)
    assert output.token_ids == told.generate("hello hello hello", params).token_ids
    assert "echo" in output.stats.by_source
