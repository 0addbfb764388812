"""Thinking sections: apart from answers in every API, turned on and off, and forms that begin only behind them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tokenizers

from outrider import LLM, SamplingParams, SpeculationParams, StructuredOutput
from outrider.errors import InvalidRequestError
from tests.server.conftest import load
from tests.server.live import Live
from tests.server.scripted import saying
from tests.tokenizer.vocabularies import byte_level
from tests.weights.files import write_folder

ASK = [{"role": "user", "content": "hello"}]
TEMPLATE = (
    "{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: "
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"far": {"type": "boolean"}}, "required": ["far"]}
SCHEMA["additionalProperties"] = False
THOUGHT = "the world of hello"


def thinking_folder(folder: Path, template: str) -> Path:
    byte_level(folder, chat_template=template)
    tokenizer: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_tokens([tokenizers.AddedToken(text, normalized=False) for text in ("<think>", "</think>")])
    tokenizer.save(str(folder / "tokenizer.json"))
    write_folder(
        folder, vocab_size=tokenizer.get_vocab_size(), bos_token_id=0, eos_token_id=1, max_position_embeddings=1024
    )
    return folder


@pytest.fixture(scope="module")
def own_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return thinking_folder(tmp_path_factory.mktemp("thinking") / "thinker", TEMPLATE)


@pytest.fixture(scope="module")
def llm(own_folder: Path) -> LLM:
    """Beside the server's own."""
    return load(own_folder)


@pytest.fixture(scope="module")
def thinker(own_folder: Path) -> Iterator[Live]:
    with Live(load(own_folder), name="thinker") as server:
        yield server


def length(thinker: Live, **fields: Any) -> int:
    count: int = thinker.post("/v1/chat/completions/input_tokens", {"messages": ASK} | fields)["input_tokens"]
    return count


def test_every_api_tells_it_apart(thinker: Live) -> None:
    llm = thinker.service.engine.llm
    greedy = {"temperature": 0, "max_tokens": 60}
    with saying(llm, f"<think>\n{THOUGHT}\n</think>\n\nhello 12", after=length(thinker)):
        chat = thinker.post("/v1/chat/completions", {"messages": ASK} | greedy)
        chunks = thinker.stream("/v1/chat/completions", {"messages": ASK} | greedy)
        anthropic = thinker.post("/v1/messages", {"messages": ASK} | greedy)
        response = thinker.post("/v1/responses", {"input": "hello", "temperature": 0, "max_output_tokens": 60})
        own = {"model": "thinker", "stream": False, "options": {"temperature": 0}}
        ollama = thinker.post("/api/chat", own | {"messages": ASK})["message"]
    message, usage = chat["choices"][0]["message"], chat["usage"]
    assert (message["reasoning_content"], message["content"]) == (THOUGHT, "hello 12")
    assert usage["completion_tokens_details"] == response["usage"]["output_tokens_details"]
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == THOUGHT
    assert "".join(delta.get("content", "") for delta in deltas) == "hello 12"
    assert [(part["type"], part[part["type"]]) for part in anthropic["content"]] == [
        ("thinking", THOUGHT),
        ("text", "hello 12"),
    ]
    assert [item["content"][0]["text"] for item in response["output"]] == [THOUGHT, "hello 12"]
    assert 0 < response["usage"]["output_tokens_details"]["reasoning_tokens"] < response["usage"]["output_tokens"]
    assert (ollama["thinking"], ollama["content"]) == (THOUGHT, "hello 12")


def test_it_can_be_turned_off_in_every_api(thinker: Live) -> None:
    more = length(thinker, reasoning_effort="none")
    assert more > length(thinker)
    assert more == length(thinker, chat_template_kwargs={"enable_thinking": False})
    off = {"messages": ASK, "thinking": {"type": "disabled"}}
    assert thinker.post("/v1/messages/count_tokens", off)["input_tokens"] == more
    asked = {"input": "hello", "max_output_tokens": 1, "reasoning": {"effort": "none"}}
    assert thinker.post("/v1/responses", asked)["usage"]["input_tokens"] == more
    own = {"model": "thinker", "stream": False, "options": {"num_predict": 1}, "think": False}
    assert thinker.post("/api/chat", own | {"messages": ASK})["prompt_eval_count"] == more
    refused = thinker.client.post("/v1/chat/completions", json={"messages": ASK, "reasoning_effort": "high"})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "reasoning_effort"


@pytest.mark.parametrize("draft", ["prediction", "ngram", "suffix", "lookup+prediction"])
def test_a_form_begins_behind_it_wherever_a_draft_ends(thinker: Live, draft: str) -> None:
    """The draft spans the section's end: what follows it there is held to the form, and what stands before is free."""
    said = f'<think>{THOUGHT}</think>hello {{"far": true}}'
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    expected = {"type": "content", "content": f'<think>{THOUGHT}</think>{{"far": false}} hello'}
    body = {"messages": ASK, "response_format": form, "temperature": 0, "max_tokens": 80, "prediction": expected}
    body["speculation"] = {"draft": draft, "spec_length": 16}
    llm = thinker.service.engine.llm
    with saying(llm, said, after=length(thinker)):
        answer = thinker.post("/v1/chat/completions", body)
        plain = thinker.post("/v1/chat/completions", body | {"speculation": "off", "prediction": None})
    message = answer["choices"][0]["message"]
    assert message == plain["choices"][0]["message"]
    assert message["reasoning_content"] == THOUGHT
    assert isinstance(json.loads(message["content"])["far"], bool)
    if "prediction" in draft:
        accepted = answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"]
        assert accepted > len(llm.tokenizer.encode(THOUGHT))  # beyond the end of the section


def test_an_output_need_not_think_and_cannot_end_while_it_does(llm: LLM) -> None:
    form = StructuredOutput(json_schema=SCHEMA, thinking=("<think>", "</think>"))
    opened = llm.tokenizer.encode("hello<think>")
    closed = llm.tokenizer.encode("hello<think>\n</think>\n")
    end = llm.tokenizer.eos_token_ids[0]
    for seed in range(4):
        params = SamplingParams(structured=form, temperature=1.0, seed=seed, max_tokens=60, logit_bias={end: 90.0})
        drafted = SpeculationParams(draft="ngram", spec_length=6)
        for prompt in (opened, closed, llm.tokenizer.encode("hello")):
            output = llm.generate([prompt], params)[0]
            assert llm.generate([prompt], params, speculation=drafted)[0].token_ids == output.token_ids
            if output.finish_reason == "stop":  # else it was cut
                assert isinstance(json.loads(output.text.rpartition("</think>")[2])["far"], bool)
                assert (prompt is opened) <= ("</think>" in output.text)
            assert prompt is not closed or (output.finish_reason == "stop" and "think>" not in output.text)


def test_markers_must_be_tokens(llm: LLM) -> None:
    form = StructuredOutput(json_schema=SCHEMA, thinking=("<thought>", "</thought>"))
    with pytest.raises(InvalidRequestError, match="no tokens of this model"):
        llm.generate("hello", SamplingParams(structured=form))
    with pytest.raises(InvalidRequestError, match="two tokens"):
        StructuredOutput(json_object=True, thinking=("</think>",))  # type: ignore[arg-type]
