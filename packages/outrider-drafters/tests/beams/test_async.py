"""Beam search on an engine thread: its outputs are those of one search, however slowly its requests are queued."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from outrider import AsyncLLM, SamplingParams
from outrider.engine.request import Request
from tests.model_folders import model_folder

PARAMS = SamplingParams(max_tokens=4, ignore_eos=True, beam_width=3, n=2)


class Slow(list[Request]):
    """Requests of a caller that gets no turn between two of them."""

    def __iter__(self) -> Iterator[Request]:
        for request in super().__iter__():
            yield request
            time.sleep(0.3)


def test_a_search_may_end_before_its_caller_gets_another_turn(tmp_path: Path) -> None:
    async def serve(llm: AsyncLLM) -> list[list[int]]:
        tokens: list[list[int]] = [[], []]
        async for index, burst in llm.bursts(Slow(llm.llm.requests("hello", PARAMS))):
            tokens[index] += [step.token_id for step in burst]
        return tokens

    async def twice() -> tuple[list[list[int]], list[list[int]]]:
        async with AsyncLLM(str(model_folder(tmp_path / "target")), draft="none", threads=1) as llm:
            return await serve(llm), await serve(llm)

    first, again = asyncio.run(twice())
    assert first == again
    assert [len(tokens) for tokens in first] == [4, 4]
