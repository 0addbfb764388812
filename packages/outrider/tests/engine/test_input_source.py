"""An input source of a test's own: its rows stand in place of embeddings, and it alone finds what it has cached."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from outrider import LLM
from outrider.cache.protocol import KVCache
from outrider.config import SamplingParams
from outrider.engine.request import Request
from outrider.models.base import Model
from outrider.models.inputs import TEXT, InputSource
from outrider.verify.arrays import Floats, host
from tests.model_folders import model_folder

PROMPT = [5, 6, 7, 8, 9, 10, 11, 12]


class SoftPrompt(InputSource):
    """Embeddings of other tokens at the prompt's first places."""

    def __init__(self, llm: LLM, tokens: Sequence[int]) -> None:
        self._tokens, self._rows = tokens, host(llm.model.embed(np.array(tokens, np.int64)))
        self.attached: list[int] = []

    @property
    def digest(self) -> str:
        return f"soft {list(self._tokens)}"

    def attach(self, model: Model, cache: KVCache, slot: int) -> None:
        self.attached.append(slot)

    def rows(self, start: int, stop: int) -> tuple[Sequence[int], Floats] | None:
        places = range(start, min(stop, len(self._tokens)))
        return ([place - start for place in places], self._rows[list(places)]) if places else None


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder: Path = model_folder(tmp_path_factory.mktemp("models") / "target")
    return LLM(folder, threads=1, max_batched_tokens=16, max_batch_size=4, draft="ngram")


def run(llm: LLM, *requests: Request) -> list[list[int]]:
    llm._loop.run(requests, lambda: None)
    return [list(request.output) for request in requests]


def made(llm: LLM, prompt: list[int], given: InputSource = TEXT) -> Request:
    return llm._input_processor.request(prompt, SamplingParams(max_tokens=10), None, given=given)


def test_rows_stand_in_place_of_embeddings_whatever_runs_beside_them(llm: LLM) -> None:
    for tokens in ([20], [20, 21, 22], [20, 21, 22, 23, 24, 25, 26, 27]):
        written = [*tokens, *PROMPT[len(tokens) :]]
        expected, plain = run(llm, made(llm, written))[0], run(llm, made(llm, PROMPT))[0]
        given = SoftPrompt(llm, tokens)
        beside = run(llm, made(llm, PROMPT), made(llm, PROMPT, given), made(llm, written))
        assert beside == [plain, expected, expected]
        assert len(given.attached) == 1


def test_only_an_equal_input_finds_what_was_cached(llm: LLM) -> None:
    first, second = made(llm, PROMPT, SoftPrompt(llm, [30])), made(llm, PROMPT, SoftPrompt(llm, [30]))
    other, text = made(llm, PROMPT, SoftPrompt(llm, [31])), made(llm, PROMPT)
    salts = [each.prefix_salt for each in (first, second, other, text)]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 3
    outputs = [run(llm, each)[0] for each in (first, second, other)]
    assert outputs[0] == outputs[1]
    assert second.stats.cached_prompt_tokens > 0
    assert other.stats.cached_prompt_tokens == 0
