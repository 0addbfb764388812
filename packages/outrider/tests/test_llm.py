"""``LLM`` from a folder on disk: the public face, end to end."""

from __future__ import annotations

import asyncio
import inspect
import re
import sys
import weakref
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider import LLM, AsyncLLM, EngineConfig, SamplingParams, SpeculationParams, extensions
from outrider.config import aliases, engine_config
from outrider.config.fields import default_of, field_docs
from outrider.config.options import OtherNames
from outrider.engine.request import Request, StepOutput
from outrider.errors import (
    ConfigError,
    EngineDeadError,
    IncompatibleDraftError,
    InvalidRequestError,
    MissingExtensionError,
)
from outrider.models.inputs import EncodedPrompt
from outrider.utils.json_files import shown
from tests.model_folders import model_folder, other_vocabulary
from tests.paths import ROOT

PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)
SAID = {"role": "user", "content": "hello"}
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


@pytest.mark.parametrize("token", [-1, 2**31, 2**40, 2**63, "vocabulary"])
def test_an_id_that_no_token_has_is_named_with_the_vocabulary_s_range(llm: LLM, token: int | str) -> None:
    size = llm.engine.vocab_size
    wrong = size if isinstance(token, str) else token
    named = rf"names token {wrong}, .* use ids from 0 to {size - 1}|={wrong} is not valid"
    served = AsyncLLM(llm)
    prompts: list[Any] = [[5, wrong], {"prompt_token_ids": [wrong]}, EncodedPrompt([wrong])]
    for prompt in prompts:
        with pytest.raises(InvalidRequestError, match=rf"prompt names token {wrong}, .* use ids from 0 to {size - 1}"):
            llm.generate([prompt], PARAMS)
        with pytest.raises(InvalidRequestError, match=f"prompt names token {wrong}"):
            asyncio.run(served.generate(prompt, PARAMS))
    served.close()
    for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids", "logit_bias"):
        ids: Any = {wrong: 1.0} if name == "logit_bias" else [wrong]
        with pytest.raises(InvalidRequestError, match=named):
            llm.generate("hello", SamplingParams(**{name: ids}))
    with pytest.raises(InvalidRequestError, match=named):
        llm.generate("hello", PARAMS, speculation=SpeculationParams(draft="prediction", prediction=[5, wrong]))
    assert llm.tokenizer.token_text(wrong) == ""
    assert not llm.engine.busy


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


def test_conversations_are_answered_side_by_side_as_one_by_one(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    conversations = [[{"role": "user", "content": text}] for text in ("hello", "the world and", "12")]
    options = [SAMPLED, PARAMS, replace(SAMPLED, seed=7)]
    speculation = [SpeculationParams(draft=draft, spec_length=3) for draft in ("none", "model", "ngram")]
    runs, run = list[int](), llm._loop.run

    def count(requests: list[Request], after_step: Callable[[], None]) -> list[list[StepOutput]]:
        runs.append(len(requests))
        return run(requests, after_step)

    monkeypatch.setattr(llm._loop, "run", count)
    together = llm.chat(conversations, options, speculation=speculation)
    assert runs == [3]
    each = zip(conversations, options, speculation, strict=True)
    alone = [llm.chat(messages, params, speculation=own) for messages, params, own in each]
    assert [o.token_ids for o in together] == [o.token_ids for o in alone]
    assert together[0].stats.num_draft_tokens == 0 < together[1].stats.num_draft_tokens
    assert [o.seed for o in llm.chat(tuple(conversations[:2]), sampling_params=replace(SAMPLED, n=2))] == [5, 6, 5, 6]
    assert [output.token_ids for output in llm.chat(conversations[1:2], PARAMS)] == [alone[1].token_ids]


@pytest.mark.parametrize(
    ("messages", "says"),
    [
        ([], r"messages=\[\] is empty: give at least one message"),
        ("hello", "messages='hello' is no conversation"),
        (SAID, "messages={'content': 'hello', 'role': 'user'} is no conversation"),
        ([[SAID], []], r"messages\[1\]=\[\] is no conversation"),
        ([[SAID], SAID], r"messages=\[\[.*\]\, {.*}] is no conversation"),
        ([SAID, 5], r"messages\[1\]=5 is no conversation"),
        ([[SAID], "hello"], r"messages\[1\]='hello' is no conversation"),
        ([[[SAID]]], r"messages\[0\]=\[\[.*\]\] is no conversation"),
        ([5, 6], r"messages\[0\]=5 is no conversation"),
    ],
)
def test_what_is_no_conversation_is_named(messages: Any, says: str, llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match=says):
        llm.chat(messages, PARAMS)


def test_what_is_no_prompt_is_named(llm: LLM) -> None:
    nested: list[Any] = [[[[5, 6]]], [["hello"]], [5, 6], [[SAID, 5]], [None], [[5, 1.5]]]
    for prompts in nested:
        with pytest.raises(InvalidRequestError, match=rf"prompt={re.escape(shown(prompts[0]))} is no text, list of"):
            llm.generate(prompts)
    for call in (llm.stream, llm.request):
        with pytest.raises(
            InvalidRequestError, match=r"prompt=\[\[5, 6\]\] is no text.*only LLM.generate and LLM.chat"
        ):
            call([[5, 6]])  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="one prompt came with a list of params"):
        llm.chat([SAID], [PARAMS])  # type: ignore[list-item]
    with pytest.raises(InvalidRequestError, match="2 prompts came with 1 speculation"):
        llm.chat([[SAID], [SAID]], PARAMS, speculation=[SpeculationParams()])
    assert not llm.engine.busy


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
    for call in (llm.stream, llm.request):
        with pytest.raises(InvalidRequestError, match="n=2 outputs here"):
            call("hello", SamplingParams(n=2))
    with pytest.raises(InvalidRequestError, match="params and sampling_params are the same option"):
        llm.generate("hello", PARAMS, sampling_params=PARAMS)
    with pytest.raises(InvalidRequestError, match="list of params"):
        llm.generate("hello", [PARAMS])
    with pytest.raises(InvalidRequestError, match="2 prompts came with 1"):
        llm.generate(["a", "b"], [PARAMS])
    assert not llm.engine.busy


def test_several_outputs_of_one_text_or_chat(llm: LLM) -> None:
    several = replace(SAMPLED, n=3)
    one_by_one = [llm.generate("hello", replace(SAMPLED, seed=5 + i)).token_ids for i in range(3)]
    outputs: Any = llm.generate("hello", several)
    assert [output.token_ids for output in outputs] == one_by_one
    assert [output.token_ids for output in llm.generate(["hello"], sampling_params=several)] == one_by_one
    messages = [{"role": "user", "content": "hello"}]
    answers: Any = llm.chat(messages, several)
    assert [answer.seed for answer in answers] == [5, 6, 7]
    assert answers[0].token_ids == llm.chat(messages, sampling_params=SAMPLED).token_ids


def test_auto_chooses_the_draft_of_engines_and_requests(folder: Path) -> None:
    llm = LLM(str(folder), threads=1)
    assert (llm.speculation.draft, llm.config.speculation.draft) == ("suffix", "suffix")
    assert llm.request("hello", speculation=SpeculationParams(spec_length=3)).speculation.draft == "suffix"
    expected = llm.request("hello", speculation=SpeculationParams(prediction="world")).speculation
    assert (expected.draft, expected.prediction) == ("prediction", tuple(llm.tokenizer.encode("world")))
    plain = LLM(str(folder), threads=1, use_speculative_decoding=False)
    assert plain.speculation.draft == plain.request("x", speculation=SpeculationParams()).speculation.draft == "none"
    assert plain.generate("hello", SAMPLED).token_ids == llm.generate("hello", SAMPLED).token_ids


def test_a_closed_llm_lets_go_of_its_models_and_caches(folder: Path) -> None:
    with LLM(str(folder), draft_model=str(folder), threads=1) as llm:
        output = llm.generate("hello", PARAMS)
        held = [weakref.ref(thing) for thing in (llm.model, llm.draft_models[0], llm.engine, llm.engine.cache)]
    assert [thing() for thing in held] == [None] * 4
    assert len(output.token_ids) == 24


def test_a_closed_llm_says_so(folder: Path) -> None:
    llm = LLM(str(folder), draft="none", threads=1)
    stream = llm.stream("hello", PARAMS)
    next(stream)
    llm.close()
    llm.close()
    for call in (lambda: llm.generate("hello"), lambda: llm.request("hello"), lambda: list(stream), lambda: llm.engine):
        with pytest.raises(EngineDeadError, match="was closed: load it again"):
            call()
    assert llm.closed
    assert repr(llm) == f"LLM({str(folder)!r}, closed)"
    with pytest.raises(AttributeError, match="no attribute 'motor'"):
        llm.motor  # type: ignore[attr-defined]  # noqa: B018


def test_representations_are_short(llm: LLM, folder: Path) -> None:
    about = f"LLM({str(folder)!r}, {llm.model.precision} on cpu, draft='model', 8 sequences of up to 128 tokens)"
    assert repr(llm) == about
    output = llm.generate("hello", replace(SAMPLED, max_tokens=100))
    assert re.fullmatch(
        r"Output\((['\"]).*…\1, 100 tokens, finish_reason='length', seed=5, \d+\.\d\d tokens a run\)", repr(output)
    )
    assert repr(PARAMS) == "SamplingParams(max_tokens=24, ignore_eos=True)"
    assert repr(SpeculationParams()) == "SpeculationParams()"
    assert (
        repr(engine_config("m", spec_length=3))
        == "EngineConfig(model='m', speculation=SpeculationParams(spec_length=3))"
    )


def test_options_go_where_they_belong_and_mistyped_ones_are_met_with_a_suggestion(folder: Path) -> None:
    own = SpeculationParams(draft="ngram", spec_length=2)
    llm = LLM(str(folder), speculation=own, max_model_len=64, max_num_seqs=2, torch_dtype=torch.float32, threads=1)
    assert (llm.speculation, llm.engine.max_seq_len, llm.config.max_batch_size) == (own, 64, 2)
    assert llm.model.dtype == "float32"
    with pytest.raises(ConfigError, match="LLM has no option 'spec_lenght': did you mean spec_length"):
        LLM(str(folder), spec_lenght=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("kind", [LLM, AsyncLLM])
def test_the_signature_has_every_option_with_the_type_and_default_of_its_field(kind: type) -> None:
    own = {"model", "progress", "on_death", "other_names"}
    shown = {name: option for name, option in inspect.signature(kind).parameters.items() if name not in own}
    options = [field for kind in (SpeculationParams, EngineConfig) for field in fields(kind) if field.name != "model"]
    types = {field.name: field.type for field in options}
    types["speculation"] = f"{types['speculation']} | None"  # None: the single options
    assert {name: option.annotation for name, option in shown.items()} == types
    defaults = {name: option.default for name, option in shown.items()}
    assert defaults.pop("speculation") is None
    assert defaults.pop("lora_modules") == ()  # a dict could be changed
    assert EngineConfig(model="m", lora_modules=()) == EngineConfig(model="m")
    assert defaults == {field.name: default_of(field) for field in options if field.name in defaults}


def test_the_documentation_of_every_option_is_that_of_its_field() -> None:
    about = inspect.getdoc(LLM) or ""
    args = " ".join(about.split("Args:")[1].split("Raises:")[0].split())
    docs = field_docs(SpeculationParams) | field_docs(EngineConfig)
    del docs["model"]  # LLM reads folders as paths too
    assert args.split(" draft: ")[1].startswith(docs.pop("draft"))
    following = [f"{name}: {text}" for name, text in docs.items()]
    assert args.endswith(" ".join([*following, "other_names: the names of vLLM and transformers listed above."]))


def test_names_of_vllm_and_transformers_are_keywords_of_llm() -> None:
    assert set(OtherNames.__annotations__) == {"speculative_config", "use_speculative_decoding", *aliases.ENGINE}


def test_an_option_that_has_its_default_counts_as_not_given(folder: Path) -> None:
    own = SpeculationParams(draft="ngram", spec_length=2)
    with LLM(str(folder), speculation=own, draft="auto", heads=(), threads=1) as llm:
        assert llm.speculation == own
    with pytest.raises(ConfigError, match="speculation and draft are both given"):
        LLM(str(folder), speculation=own, draft="none")


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
    llm = LLM(str(folder), draft="none", threads=1, max_batch_size=2)
    alone = [llm.generate(p, SAMPLED).token_ids for p in ("hello", "the world")]
    first, second = llm.stream("hello", SAMPLED), llm.stream("the world", SAMPLED)
    pairs = [(a.token_id, b.token_id) for a, b in zip(first, second, strict=True)]
    assert [list(tokens) for tokens in zip(*pairs, strict=True)] == alone


@pytest.mark.usefixtures("small_blocks")
def test_salts_and_priorities_reach_the_engine(folder: Path) -> None:
    llm = LLM(str(folder), draft="none", threads=1, kv_cache="paged")
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
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.delitem(sys.modules, "own_source", raising=False)
    own = SpeculationParams(draft="own_source:Echo,ngram", spec_length=4)
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    with pytest.raises(ConfigError, match="name your own in extra_sources"):
        LLM(str(folder), draft="none", threads=1).generate("hello hello hello", params, speculation=own)
    assert "own_source" not in sys.modules
    told = LLM(str(folder), draft="none", threads=1, extra_sources=["own_source:Echo"])
    output = told.generate("hello hello hello", params, speculation=own)
    assert output.token_ids == told.generate("hello hello hello", params).token_ids
    assert "echo" in output.stats.by_source


def test_images_and_sounds_without_their_distribution_name_the_extra(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_found", lambda group: {})
    shown = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]
    with pytest.raises(MissingExtensionError, match=r"outrider\[vision\]"):
        llm.chat(shown, max_tokens=1)
    with pytest.raises(MissingExtensionError, match=r"transcription is not installed.*outrider\[speech\]"):
        llm.transcribe("talk.wav")
    assert llm.generate({"prompt": "Once"}, max_tokens=2).token_ids == llm.generate("Once", max_tokens=2).token_ids


def test_beam_search_without_its_distribution_names_the_extra(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extensions, "_found", lambda group: {})
    with pytest.raises(MissingExtensionError, match=r"beam_width=2 is not installed.*outrider\[drafters\]"):
        llm.generate("Once", SamplingParams(beam_width=2, max_tokens=3))
    assert llm.generate("Once", SamplingParams(max_tokens=3)).token_ids
