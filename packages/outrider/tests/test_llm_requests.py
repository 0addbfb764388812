"""``LLM`` as people ask who know vLLM, transformers or nothing yet: it works, or one line says what to write."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import fields
from typing import Any

import pytest
import torch

from outrider import LLM, AsyncLLM, SamplingParams, SpeculationParams
from outrider.config import aliases
from outrider.config.request import SamplingOptions
from outrider.errors import InvalidRequestError, OutriderError
from tests.model_folders import model_folder

PLAIN: dict[str, Any] = {"draft": "none"}
SAID = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    return LLM(model_folder(tmp_path_factory.mktemp("models") / "target"), threads=1)  # a Path, too


def test_keywords_are_the_fields_of_sampling_params() -> None:
    assert set(SamplingOptions.__annotations__) == {field.name for field in fields(SamplingParams)} | set(
        aliases.SAMPLING
    )


def test_parameters_may_be_objects_dicts_or_keywords(llm: LLM) -> None:
    expected = llm.generate("hello", SamplingParams(max_tokens=5, temperature=0.9, seed=3, ignore_eos=True)).token_ids
    options: dict[str, Any] = {"max_tokens": 5, "temperature": 0.9, "seed": 3, "ignore_eos": True}
    assert llm.generate("hello", **options).token_ids == expected
    assert llm.generate("hello", options).token_ids == expected
    assert llm.generate("hello", sampling_params=options, speculation=PLAIN).token_ids == expected
    renamed = {"max_new_tokens" if name == "max_tokens" else name: value for name, value in options.items()}
    assert llm.generate("hello", renamed, priority=1).token_ids == expected
    assert llm.generate(["hello", "world"], [options, options])[0].token_ids == expected
    assert [step.token_id for step in llm.stream("hello", **options)] == expected
    assert llm.chat(SAID, **options).token_ids == llm.chat(SAID, options).token_ids


def test_the_same_in_async_llm(llm: LLM) -> None:
    async def ask() -> list[list[int]]:
        async with AsyncLLM(llm) as server:
            one = await server.generate("hello", max_tokens=3, ignore_eos=True)
            other = await server.generate("hello", {"max_tokens": 3, "ignore_eos": True}, speculation=PLAIN)
            return [one.token_ids, other.token_ids, [s.token_id async for s in server.stream("hello", max_tokens=3)]]

    one, other, streamed = asyncio.run(ask())
    assert one == other
    assert streamed == one[: len(streamed)]


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (lambda llm: llm.generate("x", SamplingParams(), max_tokens=3), "params and max_tokens are both given"),
        (lambda llm: llm.generate("x", max_token=3), "a request has no option 'max_token': did you mean max_tokens"),
        (lambda llm: llm.generate("x", draft="none"), r"write speculation=SpeculationParams\(draft='none'\)"),
        (lambda llm: llm.generate("x", dtype="q8_0"), "dtype is an option of the engine: give it to LLM"),
        (lambda llm: llm.generate("x", use_tqdm=False), "use_tqdm is no option of a request: progress=True shows"),
        (lambda llm: llm.generate("x", 3), r"params=3 is no SamplingParams: write params=SamplingParams"),
        (lambda llm: llm.generate("x", {"max_token": 3}), "did you mean max_tokens"),
        (lambda llm: llm.generate("x", speculation="none"), r"speculation=SpeculationParams\(draft='none'\)"),
        (lambda llm: llm.generate("x", speculation={"drft": "none"}), "did you mean draft"),
        (lambda llm: llm.generate(None), "prompts=None is no text: give a text, or a list of texts"),
        (lambda llm: llm.chat([]), r"messages=\[\] is empty: give at least one message, as in"),
        (lambda llm: llm.chat(()), r"messages=\(\) is empty"),
        (lambda llm: llm.chat([{"content": "x"}]), r"messages\[0\] has no role: give user"),
        (lambda llm: llm.chat([*SAID, {"role": "user"}]), r"messages\[1\] has no content: give text"),
        (lambda llm: llm.embed(""), "the prompt is empty"),
    ],
)
def test_what_cannot_be_meant_is_explained(llm: LLM, ask: Callable[[Any], Any], says: str) -> None:
    with pytest.raises(OutriderError, match=says) as caught:
        ask(llm)
    assert "\n" not in str(caught.value)


def test_outputs_are_found_where_vllm_has_them(llm: LLM) -> None:
    out = llm.generate("hello", max_tokens=4, logprobs=2, ignore_eos=True)
    assert out.outputs[0].text == out.text
    assert out.logprobs is not None
    assert all(token in row for token, row in zip(out.token_ids, out.logprobs, strict=True))
    assert llm.generate("hello", max_tokens=1).logprobs is None
    with pytest.raises(AttributeError, match="no attribute 'choices': use outputs"):
        _ = out.choices  # type: ignore[union-attr]
    with pytest.raises(AttributeError, match=r"no attribute 'get_tokenizer': use LLM\.tokenizer"):
        llm.get_tokenizer()  # type: ignore[attr-defined]


def test_embeddings_are_of_length_one_and_the_same_alone_and_together(llm: LLM) -> None:
    alone = llm.embed("hello world")
    together = llm.embed(["hello world", llm.tokenizer.encode("hello world"), "other words"])
    assert together[0] == alone == together[1] != together[2]
    assert len(alone) == llm.model.config.hidden_size
    assert torch.tensor(alone).norm().item() == pytest.approx(1.0)
    assert llm.embed([]) == []
    assert llm.embed(llm.tokenizer.encode("hello world")) == alone


def test_a_speculation_is_still_checked(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="2 prompts came with 1 speculation"):
        llm.generate(["a", "b"], speculation=[SpeculationParams(draft="none")])
