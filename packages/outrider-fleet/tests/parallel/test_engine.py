"""An engine whose target two processes run: the same output with any draft, and one error when a process is gone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

import pytest

from outrider import LLM, AsyncLLM, SamplingParams, SpeculationParams
from outrider.errors import ConfigError, EngineDeadError
from outrider.models.shard import split
from outrider.native.library import library
from tests.model_folders import model_folder

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native library")

PROMPTS = ["hello world", "a b c d a b c d a b"]
SAMPLED = SamplingParams(max_tokens=16, temperature=0.9, seed=5, ignore_eos=True, logprobs=3)
GREEDY = SamplingParams(max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def llms(folder: Path) -> tuple[LLM, LLM]:
    """One process; and two, which the last test ends."""
    one, two = (
        LLM(str(folder), draft_model=str(folder), draft_dtype="float32", threads=1, tensor_parallel_size=size)
        for size in (1, 2)
    )
    return one, two


@pytest.mark.parametrize(
    "speculation",
    [
        SpeculationParams(draft="none"),
        SpeculationParams(draft="lookup", spec_length=4),
        SpeculationParams(draft="model", spec_length=3, tree="2,2,1"),
        SpeculationParams(draft="recycling"),
    ],
    ids=lambda s: s.draft,
)
def test_the_same_output(llms: tuple[LLM, LLM], speculation: SpeculationParams) -> None:
    for params in (GREEDY, SAMPLED):
        one, two = (llm.generate(PROMPTS, params, speculation=speculation) for llm in llms)
        assert len(one) == len(PROMPTS)
        for a, b in zip(one, two, strict=True):
            assert a.token_ids == b.token_ids
            assert [step.logprobs for step in a.steps] == [step.logprobs for step in b.steps]
            assert b.stats.draft_error is None


@pytest.mark.parametrize("size", [0, 1000])
def test_a_wrong_size_is_refused(folder: Path, size: int) -> None:
    with pytest.raises(ConfigError, match=f"tensor_parallel_size={size} .*(at least 1|at most)"):
        LLM(str(folder), tensor_parallel_size=size)


def test_variables_of_other_processes_are_not_taken_for_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "8")
    with pytest.raises(ConfigError, match="RANK=None"):
        LLM(str(folder), tensor_parallel_size=2)
    for name, value in {"RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29512"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=r"WORLD_SIZE=8 .* tensor_parallel_size=2"):
        LLM(str(folder), tensor_parallel_size=2)


def test_without_the_native_library_it_is_refused(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_fleet.parallel.load.library", lambda: None)
    with pytest.raises(ConfigError, match=r"tensor_parallel_size=2 needs the native library.* install a C compiler"):
        LLM(str(folder), tensor_parallel_size=2)


def test_shares_cover_everything() -> None:
    for total in (1, 3, 9, 48, 100, 1536, 49152):
        for size in (1, 2, 3, 4, 7):
            for unit in (1, 16, 32):
                bounds = split(total, size, unit)
                assert (bounds[0], bounds[-1], len(bounds)) == (0, total, size + 1)
                assert bounds == sorted(bounds)
                assert all(bound % unit == 0 or bound == total for bound in bounds)


def children() -> list[int]:
    """Processes that this one started to run shares of models, and that have not ended."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == os.getpid() and b"outrider_fleet.parallel" in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux")
def test_a_process_that_is_gone_ends_the_engine(llms: tuple[LLM, LLM]) -> None:
    """In the middle of an answer; whoever comes later is told the same, and nothing waits."""
    two = AsyncLLM(llms[1])

    async def ask(stop_at: int) -> int:
        count = 0
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        async for _ in two.stream(PROMPTS[0], params):
            count += 1
            if count == stop_at:
                os.kill(children()[0], signal.SIGKILL)
        return count

    begin = time.monotonic()
    for stop_at in (3, 0):
        with pytest.raises(EngineDeadError, match="process 2 of 2 was ended by signal 9: restart"):
            asyncio.run(ask(stop_at))
    assert time.monotonic() - begin < 20
    assert not children()
