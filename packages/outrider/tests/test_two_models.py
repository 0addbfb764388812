"""Two ``LLM``s in one process: each gives the tokens that it gives alone, in turns and from two threads."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.context import NativeContext
from outrider.native.library import library
from tests.model_folders import model_folder

PARAMS = (
    SamplingParams(max_tokens=24, ignore_eos=True),
    SamplingParams(max_tokens=24, temperature=0.9, top_p=0.9, seed=5, ignore_eos=True),
)
PROMPTS = [[5, 6, 7, 8, 5, 6, 7], [9, 8, 7, 6, 5]]
ROUNDS = 4
KINDS: Mapping[str, dict[str, Any]] = {
    "wide": {"hidden_size": 96, "num_attention_heads": 6},
    "deep": {"num_hidden_layers": 4, "intermediate_size": 160, "rope_theta": 500.0},
}
"""Models of different shapes, so that neither fits the scratch memory, the cache or the angles of the other."""
OPTIONS: Mapping[str, dict[str, Any]] = {
    "wide": {"draft": "model", "spec_length": 4, "dtype": "bfloat16", "threads": 1},
    "deep": {
        "draft": "suffix+ngram",
        "spec_length": 4,
        "tree": "dynamic",
        "dtype": "q8_0",
        "kv_cache": "paged",
        "threads": 2,
    },
}
"""Different drafts, precisions, caches and threads."""

Tokens = list[list[int]]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: model_folder(root / name, **changes) for name, changes in KINDS.items()}


def load(folders: Mapping[str, Path], name: str) -> LLM:
    other: dict[str, Any] = {"draft_model": str(folders["deep"])} if OPTIONS[name]["draft"] == "model" else {}
    return LLM(str(folders[name]), **OPTIONS[name], **other)


def answers(llm: LLM, params: SamplingParams, **options: Any) -> Tokens:
    return [list(output.token_ids) for output in llm.generate(PROMPTS, params, **options)]


@pytest.fixture(scope="module")
def alone(folders: Mapping[str, Path]) -> dict[str, list[Tokens]]:
    """For each model, what it answers with no other one in the process, without drafts."""
    found: dict[str, list[Tokens]] = {}
    for name in KINDS:
        with load(folders, name) as llm:
            plain = SpeculationParams(draft="none")
            found[name] = [answers(llm, params, speculation=plain) for params in PARAMS]
    assert found["wide"] != found["deep"], "models that answer alike could not be told apart"
    return found


@pytest.fixture(scope="module")
def both(folders: Mapping[str, Path], alone: object) -> Iterator[dict[str, LLM]]:
    with load(folders, "wide") as wide, load(folders, "deep") as deep:
        yield {"wide": wide, "deep": deep}


def test_in_turns(both: Mapping[str, LLM], alone: Mapping[str, list[Tokens]]) -> None:
    for _ in range(ROUNDS):
        for i, params in enumerate(PARAMS):
            assert {name: answers(llm, params) for name, llm in both.items()} == {name: alone[name][i] for name in both}


@pytest.mark.skipif(library() is None, reason="no native library")
def test_each_has_threads_of_its_own_which_its_draft_model_shares(both: Mapping[str, LLM]) -> None:
    contexts = {name: [native_context(model) for model in (llm.model, *llm.draft_models)] for name, llm in both.items()}
    assert [[context.threads for context in own] for own in contexts.values()] == [[1, 1], [2]]
    assert contexts["wide"][0] is contexts["wide"][1] is not contexts["deep"][0]


def native_context(model: object) -> NativeContext:
    assert isinstance(model, NativeLlamaModel)
    return model.context


def test_both_draft(both: Mapping[str, LLM]) -> None:
    assert len(both) == 2
    for llm in both.values():
        stats = [output.stats for output in llm.generate(PROMPTS, PARAMS[0])]
        assert [one.draft_error for one in stats] == [None, None]
        assert any(one.num_draft_tokens > 0 for one in stats)


def test_token_by_token(both: Mapping[str, LLM], alone: Mapping[str, list[Tokens]]) -> None:
    """A step of one between any two steps of the other."""
    for i, params in enumerate(PARAMS):
        requests = {name: llm.request(PROMPTS[0], params) for name, llm in both.items()}
        for name, llm in both.items():
            llm.engine.add(requests[name])
        while any(llm.engine.busy for llm in both.values()):
            for llm in both.values():
                llm.engine.step()
        assert {name: list(r.output) for name, r in requests.items()} == {name: alone[name][i][0] for name in both}


def test_from_two_threads(both: Mapping[str, LLM], alone: Mapping[str, list[Tokens]]) -> None:
    found: dict[str, list[list[Tokens]]] = {}
    begin = threading.Barrier(len(both))

    def run(name: str) -> None:
        begin.wait()
        found[name] = [[answers(both[name], params) for params in PARAMS] for _ in range(ROUNDS)]

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=run, args=(name,)) for name in both]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert found == {name: [alone[name]] * ROUNDS for name in both}


def test_one_goes_on_when_the_other_is_closed(folders: Mapping[str, Path], alone: Mapping[str, list[Tokens]]) -> None:
    with load(folders, "wide") as left:
        with load(folders, "deep") as closed:
            assert answers(closed, PARAMS[0]) == alone["deep"][0]
        assert answers(left, PARAMS[1]) == alone["wide"][1]
