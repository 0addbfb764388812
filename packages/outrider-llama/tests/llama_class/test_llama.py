"""``Llama`` on a tiny GGUF file: the same calls as llama-cpp-python's, and the dictionaries it answers with."""

from __future__ import annotations

import itertools
import pickle
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.errors import ConfigError, InvalidRequestError
from outrider_llama import (
    Llama,
    LlamaDiskCache,
    LlamaGrammar,
    LlamaRAMCache,
    LogitsProcessorList,
    MinTokensLogitsProcessor,
    StoppingCriteriaList,
)
from tests.llama_class.recorded import SHAPES, shape
from tests.weights.files import write_gguf
from tests.weights.hub_server import HubServer

PROMPT = "hello world"
CHAT = [{"role": "user", "content": "hello"}]
SCHEMA = {"type": "object", "properties": {"a": {"enum": [0, 1]}}, "required": ["a"]}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
NAMED = {"type": "function", "function": {"name": "f"}}
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 12}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("llama") / "m.gguf"
    write_gguf(file, metadata={"general.file_type": 0})
    return str(file)


@pytest.fixture(scope="module")
def llm(path: str) -> Iterator[Llama]:
    with Llama(model_path=path, n_ctx=96, logits_all=True, embedding=True, n_threads=1, verbose=False) as llm:
        yield llm


def test_completions_have_the_recorded_shapes(llm: Llama) -> None:
    whole = llm(PROMPT, **GREEDY)
    assert shape(whole) == SHAPES["completion"]
    assert whole["model"] == llm.model_path
    assert whole["id"].startswith("cmpl-")
    count = whole["usage"]["completion_tokens"]
    assert whole["usage"] == {"prompt_tokens": 6, "completion_tokens": count, "total_tokens": 6 + count}
    chunks = list(llm.create_completion(PROMPT, stream=True, **GREEDY))
    assert shape(chunks) == SHAPES["completion_stream"]
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == whole["choices"][0]["text"]
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert llm(PROMPT, model="mine", echo=True, **GREEDY)["choices"][0]["text"] == PROMPT + whole["choices"][0]["text"]


def test_log_probabilities_have_the_recorded_shapes(llm: Llama) -> None:
    whole = llm(PROMPT, echo=True, logprobs=2, **GREEDY)
    assert shape(whole) == SHAPES["completion_echo_logprobs"]
    found = whole["choices"][0]["logprobs"]
    assert "".join(found["tokens"][:5]) == f" {PROMPT}"
    assert found["text_offset"] == [0, *itertools.accumulate(map(len, found["tokens"][:-1]))]
    assert (found["token_logprobs"][0], found["top_logprobs"][0]) == (None, None)
    own = found["token_logprobs"][-1]
    assert max(found["top_logprobs"][-1].values()) == pytest.approx(own)  # greedy
    chunks = list(llm(PROMPT, logprobs=2, stream=True, **GREEDY))
    assert shape(chunks) == SHAPES["completion_stream_logprobs"]
    told = [chunk["choices"][0]["logprobs"] for chunk in chunks[:-1]]
    count = len(told)
    assert [each["token_logprobs"][0] for each in told] == found["token_logprobs"][-count:]
    assert told[0]["text_offset"] == [len(PROMPT)]


def test_chats_have_the_recorded_shapes(llm: Llama) -> None:
    whole = llm.create_chat_completion(CHAT, **GREEDY)
    assert shape(whole) == SHAPES["chat"]
    chunks = list(llm.create_chat_completion(CHAT, stream=True, **GREEDY))
    assert shape(chunks) == SHAPES["chat_stream"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    options = {"logprobs": True, "top_logprobs": 2, **GREEDY}
    assert shape(llm.create_chat_completion(CHAT, **options)) == SHAPES["chat_logprobs"]
    assert shape(list(llm.create_chat_completion(CHAT, stream=True, **options))) == SHAPES["chat_stream_logprobs"]
    plain = llm.create_chat_completion(CHAT, logprobs=False, top_logprobs=2, tools=TOOLS, tool_choice="auto", **GREEDY)
    assert shape(plain) == SHAPES["chat"]


def test_a_named_tool_is_called_and_a_schema_is_kept(llm: Llama) -> None:
    options: dict[str, Any] = {"tools": TOOLS, "tool_choice": NAMED, "temperature": 0}
    whole = llm.create_chat_completion(CHAT, **options)
    assert shape(whole) == SHAPES["chat_tool"]
    message = whole["choices"][0]["message"]
    arguments = message["tool_calls"][0]["function"]["arguments"]
    assert arguments in ('{"a": 0}', '{"a": 1}')
    assert message["function_call"] == {"name": "f", "arguments": arguments}
    chunks = list(llm.create_chat_completion(CHAT, stream=True, **options))
    assert shape(chunks) == SHAPES["chat_tool_stream"]
    deltas = [chunk["choices"][0]["delta"]["tool_calls"] for chunk in chunks]
    assert "".join(each[0]["function"]["arguments"] for each in deltas if each) == arguments
    older = llm.create_chat_completion(
        CHAT, functions=[TOOLS[0]["function"]], function_call={"name": "f"}, temperature=0
    )
    assert older["choices"][0]["message"]["function_call"]["arguments"] == arguments
    form = {"type": "json_object", "schema": SCHEMA}
    answer = llm.create_chat_completion(CHAT, response_format=form, temperature=0)
    assert answer["choices"][0]["message"]["content"] == arguments
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_grammar_ends_an_output_and_a_stop_string_cuts_it(llm: Llama) -> None:
    grammar = LlamaGrammar.from_string('root ::= "he" "llo"')
    whole = llm(PROMPT, grammar=grammar, seed=3)
    assert (whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]) == ("hello", "stop")
    cut = llm(PROMPT, grammar=grammar, stop="ll", seed=3)
    assert (cut["choices"][0]["text"], cut["choices"][0]["finish_reason"]) == ("he", "stop")
    ended = llm(PROMPT, logit_bias={llm.token_eos(): 1e4}, logprobs=1)
    assert (ended["usage"]["completion_tokens"], ended["choices"][0]["finish_reason"]) == (0, "stop")
    assert ended["choices"][0]["logprobs"]["tokens"] == []
    assert llm.eval_tokens == llm.tokenize(PROMPT.encode())
    seen: list[int] = []

    def force(ids: Any, scores: Any) -> Any:  # sees tokens that the grammar forbids
        seen.append(int(np.isfinite(scores).sum()))
        return scores

    assert llm(PROMPT, grammar=grammar, logits_processor=[force])["choices"][0]["text"] == "hello"
    assert min(seen) == llm.n_vocab()


def test_seeds_repeat_and_a_state_goes_back_to_them(llm: Llama) -> None:
    def text(**options: Any) -> str:
        found: str = llm(PROMPT, max_tokens=16, temperature=1.5, top_k=0, min_p=0.0, **options)["choices"][0]["text"]
        return found

    assert text(seed=5) == text(seed=5) != text(seed=6)
    llm.set_seed(1337)
    state = llm.save_state()
    first = text()
    assert first != text()
    llm.load_state(state)
    assert (text(), llm.n_tokens > 0) == (first, True)


def test_a_caller_s_processor_and_criterion_act(llm: Llama) -> None:
    token = llm.tokenize(b"d", add_bos=False)[-1]

    def only(ids: Any, scores: Any) -> Any:
        scores[:] = np.where(np.arange(len(scores)) == token, 50.0, 0.0)
        return scores

    processors = LogitsProcessorList([only, MinTokensLogitsProcessor(3, llm.token_eos())])
    assert llm(PROMPT, logits_processor=processors, max_tokens=4)["choices"][0]["text"] == "dddd"
    assert llm(PROMPT, logit_bias={token: 1e4}, max_tokens=3)["choices"][0]["text"] == "ddd"
    sizes: list[tuple[int, int]] = []

    def third(ids: Any, scores: Any) -> bool:
        sizes.append((len(ids), len(scores)))
        return len(ids) == 8

    criteria = StoppingCriteriaList([third])
    found = llm(PROMPT, stopping_criteria=criteria, logit_bias={token: 1e4}, max_tokens=9)
    assert (found["choices"][0]["text"], found["choices"][0]["finish_reason"]) == ("dd", "stop")
    assert [size for size, _ in sizes] == [6, 7, 8]
    assert {width for _, width in sizes} == {llm.n_vocab()}


def test_tokens_come_one_by_one(llm: Llama) -> None:
    prompt = llm.tokenize(PROMPT.encode())
    tokens = list(itertools.islice(llm.generate(prompt, temp=0), 5))
    assert llm.eval_tokens == [*prompt, *tokens[:-1]]
    assert list(itertools.islice(llm.generate(tokens[-1:], temp=0, reset=False), 1)) == [
        list(itertools.islice(llm.generate(prompt, temp=0), 6))[-1]
    ]
    llm.reset()
    llm.eval(prompt)
    assert llm.sample(temp=0) == tokens[0]
    llm.eval(tokens[:2])
    assert (llm.sample(temp=0), llm.sample(temp=0, idx=len(prompt) - 1)) == (tokens[2], tokens[0])
    running = llm.generate(prompt, temp=0)
    assert next(running) == tokens[0]
    sent = running.send(prompt[1:])
    assert sent == next(llm.generate([*prompt, tokens[0], *prompt[1:]], temp=0))
    assert len(list(llm.generate(prompt, temp=0))) == llm.n_ctx() - len(prompt)  # past end-of-text, to the end
    with pytest.raises(ValueError, match="exceed context window of 96"):
        llm.eval([5] * 97)


def test_drafts_change_no_token(path: str, llm: Llama) -> None:
    options: dict[str, Any] = {"max_tokens": 40, "seed": 7, "repeat_penalty": 1.1, "frequency_penalty": 0.1}
    with Llama(path, n_ctx=96, n_threads=1, draft="none", verbose=False) as plain:
        for extra in ({}, {"temperature": 0}, {"typical_p": 0.9, "top_k": 0}):
            expected = plain(PROMPT, **options, **extra)["choices"]
            assert llm(PROMPT, **options, **extra)["choices"] == expected


def test_the_vocabulary_and_the_metadata(path: str, llm: Llama) -> None:
    ids = llm.tokenize(b"hello")
    assert (ids[0], llm.token_bos(), llm.token_eos(), llm.n_embd()) == (1, 1, 2, 64)
    assert llm.tokenize(b"hello", add_bos=False) == ids[1:]
    assert llm.tokenize(b"hello</s>", special=True)[-1] == 2 != llm.tokenize(b"hello</s>")[-1]
    assert (llm.detokenize(ids), llm.detokenize([*ids, 2], special=True)) == (b"hello", b"<s> hello</s>")
    assert llm.detokenize(ids[1:]) == b" hello"
    assert llm.token_nl() == llm.tokenize(b"\n", add_bos=False)[-1]
    assert llm.metadata["general.architecture"] == "llama"
    assert llm.metadata["llama.attention.layer_norm_rms_epsilon"] == "0.000010"
    assert "tokenizer.ggml.tokens" not in llm.metadata
    alone = Llama(path, vocab_only=True, verbose=False)
    assert (alone.tokenize(b"hello"), alone.n_vocab()) == (ids, llm.n_vocab())
    with pytest.raises(ConfigError, match="only the vocabulary was loaded"):
        alone(PROMPT)


def test_embeddings_are_means(llm: Llama) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # pooling_type is not given
        found = llm.create_embedding(["hello", "world hello"])
        one, count = llm.embed("hello", normalize=True, return_count=True)
    assert found["usage"]["prompt_tokens"] == sum(len(llm.tokenize(text)) for text in (b"hello", b"world hello"))
    assert [(each["object"], each["index"], len(each["embedding"])) for each in found["data"]] == [
        ("embedding", 0, 64),
        ("embedding", 1, 64),
    ]
    assert one == pytest.approx(llm.llm.embed("hello"), abs=1e-6)
    assert count == len(llm.tokenize(b"hello"))
    raw = np.array(found["data"][0]["embedding"])
    assert raw / np.linalg.norm(raw) == pytest.approx(np.array(one), abs=1e-6)
    with pytest.raises(ValueError, match="exceed batch size"):
        llm.embed("hello " * 600, truncate=False)


def test_what_cannot_be_honoured_is_refused(path: str, llm: Llama, tmp_path: Path) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"suffix": "x"}, "suffix cannot be used"),
        ({"echo": True, "stream": True}, "echo cannot be used"),
        ({"mirostat_mode": 1}, "mirostat_mode=1 cannot be used"),
        ({"logprobs": 21}, "logprobs=21"),
    ]
    for options, message in refused:
        with pytest.raises(InvalidRequestError, match=message):
            llm(PROMPT, **options)
    for options in ({"tool_choice": "required", "tools": TOOLS}, {"response_format": {"type": "json_schema"}}):
        with pytest.raises(InvalidRequestError, match="cannot be used"):
            llm.create_chat_completion(CHAT, **options)
    with pytest.raises(InvalidRequestError, match="Tool choice 'f' not found in tools"):
        llm.create_chat_completion(CHAT, tools=[], tool_choice=NAMED)
    with pytest.raises(ValueError, match=r"Requested tokens \(200\) exceed context window of 96"):
        llm([5] * 200)
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(llm)
    with pytest.raises(AttributeError, match="'scores': use logprobs of create_completion"):
        getattr(llm, "scores")  # noqa: B009
    with pytest.raises(ConfigError, match="session_dir"):
        llm.set_cache(LlamaDiskCache())
    with pytest.warns(UserWarning, match="set_cache: without effect"):
        llm.set_cache(LlamaRAMCache())
    with pytest.raises(ValueError, match="Model path does not exist: "):
        Llama(str(tmp_path / "absent.gguf"), verbose=False)


def test_a_model_for_texts_alone_gives_no_embeddings_and_log_probabilities(path: str) -> None:
    with pytest.warns(UserWarning, match="n_ctx=512: the model was made for 128 tokens") as found:
        llm = Llama(path, n_threads=1, draft="none", verbose=False)
    assert found[0].filename == __file__
    with llm:
        with pytest.raises(InvalidRequestError, match="logits_all=False"):
            llm(PROMPT, logprobs=1)
        with pytest.raises(RuntimeError, match="must be created with embedding=True"):
            llm.embed("hello")
        assert llm.n_ctx() == 128


def test_a_schema_s_objects_are_closed_unless_it_opens_them() -> None:
    given = '{"properties": {"a": {"anyOf": [{"properties": {}}]}}, "allOf": [{"properties": {"b": {}}}]}'
    closed = LlamaGrammar.from_json_schema(given).structured.text
    assert closed.count('"additionalProperties": false') == 2
    opened = '{"properties": {"a": {}}, "additionalProperties": true}'
    assert '"additionalProperties": true' in LlamaGrammar.from_json_schema(opened).structured.text
    with pytest.raises(ValueError, match="JSON"):
        LlamaGrammar.from_json_schema("[")


def test_a_file_of_the_hub_is_found_by_a_pattern(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = Path(path).read_bytes()
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    hub = HubServer({"m-Q4_0.gguf": content, "m-Q8_0.gguf": content, "README.md": b"x"})
    with hub.serving(tmp_path / "hub", monkeypatch):
        options: dict[str, Any] = {"n_ctx": 64, "n_threads": 1, "draft": "none", "verbose": False}
        with Llama.from_pretrained("org/m-GGUF", "*Q8_0.gguf", **options) as llm:
            assert llm.model_path.endswith("m-Q8_0.gguf")
            assert llm.n_ctx() == 64
        assert [name for name, _ in hub.asked] == ["m-Q8_0.gguf"]
        for pattern, count in (("*.gguf", 2), ("*Q6_K*", 0)):
            with pytest.raises(ValueError, match=f"matches {count} files of org/m-GGUF: name one of m-Q4_0.gguf"):
                Llama.from_pretrained("org/m-GGUF", pattern)


@pytest.mark.slow
def test_a_published_model_answers_as_under_llama_cpp_python() -> None:
    """Texts that llama-cpp-python 0.3.36 gave for the same file, greedily."""
    with Llama("smollm2-135m-instruct", n_ctx=1024, verbose=False) as llm:
        cut = llm("List: one, two, three,", max_tokens=40, temperature=0, stop=["six"])
        assert cut["choices"][0]["text"] == " four, five, "
        assert cut["usage"] == {"prompt_tokens": 8, "completion_tokens": 5, "total_tokens": 13}
        answer = llm.create_chat_completion(
            [{"role": "user", "content": "Say only: ok"}], max_tokens=200, temperature=0
        )
        said = "I'm ready to assist you with any creative writing project. What's on your mind?"
        assert answer["choices"][0]["message"]["content"] == said
        assert answer["usage"] == {"prompt_tokens": 34, "completion_tokens": 18, "total_tokens": 52}
        assert llm.tokenize(b"Hi<|im_end|>", special=True) == [26843, 2]
        assert (llm.n_vocab(), llm.n_embd(), llm.token_bos(), llm.token_eos(), llm.token_nl()) == (
            49152,
            576,
            1,
            2,
            198,
        )
