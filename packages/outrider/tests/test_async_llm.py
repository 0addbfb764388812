"""``AsyncLLM``: many tasks on one engine, cancellation, and errors that stay with who caused them."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, AsyncLLM, SamplingParams
from outrider.errors import ConfigError, EngineDeadError, InvalidRequestError
from tests.model_folders import model_folder

PARAMS = SamplingParams(max_tokens=20, ignore_eos=True, temperature=0.8, seed=1)
PROMPTS = ["hello", "hello world", "the world and 12", "34 of hello", "world"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target")


def test_tasks_side_by_side_get_what_they_get_alone(folder: Path) -> None:
    alone = [LLM(str(folder), draft="none", threads=1).generate(p, PARAMS).token_ids for p in PROMPTS]

    async def serve() -> list[list[int]]:
        async with AsyncLLM(str(folder), draft="ngram", max_batch_size=3) as llm:
            outputs = await asyncio.gather(*(llm.generate(p, PARAMS) for p in PROMPTS))
            return [output.token_ids for output in outputs]

    assert asyncio.run(serve()) == alone


def test_a_cancelled_task_frees_its_place(folder: Path) -> None:
    async def serve() -> None:
        async with AsyncLLM(str(folder), draft="none", max_batch_size=1, max_seq_len=120) as llm:
            endless = SamplingParams(max_tokens=100, ignore_eos=True)
            task = asyncio.create_task(llm.generate("hello", endless))
            await asyncio.sleep(0.002)  # a hundred tokens take some twenty milliseconds
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            async for step in llm.stream("hello", endless):
                assert step.finish_reason is None
                break
            assert len((await llm.generate("hello", PARAMS)).token_ids) == 20
            assert llm.llm.engine.cache.free_tokens() == 120

    asyncio.run(serve())


def test_a_bad_request_hurts_nobody_else(folder: Path) -> None:
    async def serve() -> None:
        async with AsyncLLM(str(folder), draft="none") as llm:
            good = asyncio.create_task(llm.generate("hello", PARAMS))
            with pytest.raises(InvalidRequestError, match="prompt is empty"):
                await llm.generate([], PARAMS)
            for several in (["hello", "world"], [[{"role": "user", "content": "hello"}]]):
                with pytest.raises(InvalidRequestError, match="is no text, list of token ids or list of messages"):
                    await llm.generate(several, PARAMS)  # type: ignore[arg-type]
                with pytest.raises(InvalidRequestError, match="is no text, list of token ids or list of messages"):
                    await anext(llm.stream(several, PARAMS))  # type: ignore[arg-type]
            assert len((await good).token_ids) == 20

    asyncio.run(serve())


def test_closing_ends_what_still_runs(folder: Path) -> None:
    async def serve() -> None:
        llm = AsyncLLM(str(folder), draft="none")
        task = asyncio.create_task(llm.generate("hello", SamplingParams(max_tokens=100, ignore_eos=True)))
        await asyncio.sleep(0.01)
        llm.close()
        llm.close()
        with pytest.raises(EngineDeadError, match="closed"):
            await task
        with pytest.raises(EngineDeadError):
            await llm.generate("hello", PARAMS)

    asyncio.run(serve())


def test_several_outputs_of_one_prompt(folder: Path) -> None:
    async def serve() -> None:
        async with AsyncLLM(str(folder), draft="none") as llm:
            alone = [(await llm.generate("hello", replace(PARAMS, seed=1 + i))).token_ids for i in range(2)]
            both: Any = await llm.generate("hello", sampling_params=replace(PARAMS, n=2))
            assert [output.token_ids for output in both] == alone
        assert llm.llm.closed

    asyncio.run(serve())


def test_an_llm_that_was_loaded_before_stays_open(folder: Path) -> None:
    with LLM(str(folder), draft="none", threads=1) as llm:
        AsyncLLM(llm).close()
        assert len(llm.generate("hello", PARAMS).token_ids) == 20
        with pytest.raises(ConfigError, match="spec_length is given with an LLM that is loaded already"):
            AsyncLLM(llm, spec_length=3)
