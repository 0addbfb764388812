"""Structured output as a caller meets it: every form, streams, several outputs, and neighbours without a form."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import LLM, AsyncLLM, SamplingParams, SpeculationParams, StructuredOutput
from outrider.errors import InvalidRequestError
from tests.model_folders import model_folder, other_vocabulary

PERSON = StructuredOutput(
    json_schema={
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 4}, "age": {"type": "integer", "maximum": 99}},
        "required": ["name", "age"],
        "additionalProperties": False,
    }
)
SAMPLED = SamplingParams(max_tokens=60, temperature=1.0, seed=3)


@pytest.fixture(scope="module", params=["byte level", "sentencepiece"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = tmp_path_factory.mktemp("models") / "target"
    path = model_folder(folder) if request.param == "byte level" else other_vocabulary(folder)
    return LLM(str(path), draft="grammar", threads=1)


@pytest.mark.parametrize("seed", range(4))
def test_texts_have_their_form(llm: LLM, seed: int) -> None:
    def text(form: StructuredOutput) -> str:
        params = replace(SAMPLED, structured=form, seed=seed)
        drafted = llm.generate("hello", params)
        plain = llm.generate("hello", params, speculation=SpeculationParams(draft="none"))
        assert drafted.token_ids == plain.token_ids
        assert drafted.text == plain.text
        assert drafted.finish_reason == "stop"
        return drafted.text

    person = json.loads(text(PERSON))
    assert person.keys() == {"name", "age"}
    assert person["age"] <= 99
    assert re.fullmatch(r"[a-f]{2}-[0-9]{1,3}", text(StructuredOutput(regex=r"[a-f]{2}-[0-9]{1,3}")))
    choices = ["left", "right\n", ' \u65e5\u672c "', "a|b"]
    assert text(StructuredOutput(choice=choices)) in choices
    assert re.fullmatch(r"\(*x\)*", text(StructuredOutput(grammar='start: "(" start ")" | "x"')))
    assert re.fullmatch(r"k[01]+", text(StructuredOutput(grammar='root ::= "k" [01] [01]?')))


def test_any_json_object(llm: LLM) -> None:
    closing = {token: 3.0 for text in '"}' for token in llm.tokenizer.encode(text, add_special_tokens=False)}
    form = StructuredOutput(json_object=True)
    output = llm.generate("hello", replace(SAMPLED, structured=form, logit_bias=closing))
    assert isinstance(json.loads(output.text), dict)


def test_a_stream_and_a_chat_have_the_same_text(llm: LLM) -> None:
    params = replace(SAMPLED, structured=PERSON)
    text = llm.generate("hello", params).text
    assert "".join(step.text for step in llm.stream("hello", params)) == text
    if llm.tokenizer.chat_template is not None:
        assert json.loads(llm.chat([{"role": "user", "content": "hello"}], params).text)


def test_several_outputs_and_neighbours_without_a_form(llm: LLM) -> None:
    free = SamplingParams(max_tokens=20, temperature=1.0, seed=8)
    outputs = llm.generate(["hello", "world"], [replace(SAMPLED, structured=PERSON, n=3), free])
    alone = [llm.generate("hello", replace(SAMPLED, structured=PERSON, seed=3 + i)).text for i in range(3)]
    assert [output.text for output in outputs[:3]] == alone
    assert outputs[3].token_ids == llm.generate("world", free).token_ids
    assert all(json.loads(text) for text in alone)


def test_a_cut_output_is_the_beginning_of_a_whole_one(llm: LLM) -> None:
    whole = llm.generate("hello", replace(SAMPLED, structured=PERSON))
    cut = llm.generate("hello", replace(SAMPLED, structured=PERSON, max_tokens=5))
    assert (cut.finish_reason, cut.token_ids) == ("length", whole.token_ids[:5])


def test_tasks_of_one_loop(llm: LLM) -> None:
    async def serve() -> list[str]:
        serving = AsyncLLM(llm)
        good, bad = replace(SAMPLED, structured=PERSON), replace(SAMPLED, structured=StructuredOutput(regex="(a"))
        found = await asyncio.gather(
            serving.generate("hello", good), serving.generate("hello", bad), return_exceptions=True
        )
        streamed = [step.text async for step in serving.stream("hello", good)]
        serving.close()
        assert isinstance(found[1], InvalidRequestError)
        assert not isinstance(found[0], BaseException)
        return [found[0].text, "".join(streamed)]

    assert asyncio.run(serve()) == [llm.generate("hello", replace(SAMPLED, structured=PERSON)).text] * 2


def test_a_model_without_an_end_of_text_token(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model", eos_token_id=None)
    (folder / "tokenizer_config.json").write_text("{}")
    llm = LLM(str(folder), draft="none", threads=1)
    with pytest.raises(InvalidRequestError, match="no end-of-text token"):
        llm.generate("hello", replace(SAMPLED, structured=PERSON))
