"""Saved conversations on their way into memory: nobody waits for them, and nobody's rows are written over."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.cache.sessions import SessionStore, moving
from outrider.cache.sessions.arrivals import Arrival
from outrider.cache.sessions.segments import SEGMENT
from outrider.engine.memory import CacheMemory
from outrider.native.library import library
from tests.model_folders import model_folder
from tests.paths import LAB

pytestmark = pytest.mark.skipif(library() is None, reason="rows of the native library alone are saved")

TEXT = "The engine keeps what it has read, so that nobody waits for it again. " * 6
OTHER = "Quite another text, of which nothing was saved before. " * 7
GREEDY = SamplingParams(max_tokens=8, ignore_eos=True)
MODELS = {"attention": None, "recurrent": str(LAB / "hybrid" / "model.gguf")}
SECONDS = 10.0  # after which a test gives up


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(model_folder(tmp_path_factory.mktemp("models") / "target", max_position_embeddings=1024))


def opened(model: str, folder: Path | None, **options: Any) -> LLM:
    place = None if folder is None else str(folder)
    return LLM(model, session_dir=place, threads=1, **({"max_seq_len": 768, "max_batch_size": 2} | options))


def said(llm: LLM, text: str, params: SamplingParams = GREEDY) -> list[int]:
    return list(llm.generate(text, params).token_ids)


class SlowFiles:
    """Reading waits for ``go``; ``asked`` is set when it has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked, self.go, self.late = threading.Event(), threading.Event(), False
        read = SessionStore.read

        def slow(store: SessionStore, *args: Any) -> Any:
            self.asked.set()
            self.late = not self.go.wait(SECONDS) or self.late
            return read(store, *args)

        monkeypatch.setattr(SessionStore, "read", slow)


@pytest.mark.parametrize("kind", MODELS)
def test_others_go_on_while_a_conversation_is_read(
    model: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = MODELS[kind] or model
    with opened(path, tmp_path) as llm:
        expected, plain = said(llm, TEXT), said(llm, OTHER)
    files, answers = SlowFiles(monkeypatch), list[list[int]]()
    with opened(path, tmp_path) as llm:
        saved = threading.Thread(target=lambda: answers.append(said(llm, TEXT)), daemon=True)
        saved.start()
        assert files.asked.wait(SECONDS)
        monkeypatch.setattr(llm.sessions, "find", lambda tokens, salt: ([], 0))  # the other is computed
        assert said(llm, OTHER) == plain
        assert not files.go.is_set()
        assert not answers
        files.go.set()
        saved.join(SECONDS)
        assert answers == [expected]
        assert not files.late
        llm.engine.cache.check()


@pytest.mark.parametrize("kind", MODELS)
def test_rows_that_come_too_late_are_dropped(
    model: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their slot is another's, who has computed rows of its own."""
    path = MODELS[kind] or model
    long = SamplingParams(max_tokens=24, temperature=1.5, seed=1, ignore_eos=True)
    with opened(path, tmp_path, max_batch_size=1) as llm:
        said(llm, TEXT)
    with opened(path, None, max_batch_size=1) as llm:
        expected = said(llm, OTHER, long)
    files = SlowFiles(monkeypatch)
    with opened(path, tmp_path, max_batch_size=1) as llm:
        request = next(iter(prepared(llm, TEXT)))
        engine = llm.engine
        engine.add(request)
        engine.step()
        assert files.asked.wait(SECONDS)
        engine.abort(request.id)
        engine.cache.check()
        answer = llm.stream(OTHER, long)
        given = [next(answer).token_id for _ in range(4)]
        files.go.set()
        for thread in threading.enumerate():
            if thread.name == "outrider-arrivals":
                thread.join(SECONDS)
        given += [step.token_id for step in answer]
        assert given == expected
        engine.cache.check()


def test_a_slot_is_not_given_away_while_a_thread_writes_its_rows() -> None:
    arrival, order = Arrival(0, 0, SEGMENT, [], None), list[str]()
    is_inside, leave = threading.Event(), threading.Event()

    def write() -> None:
        with arrival.writing() as may:
            assert may
            is_inside.set()
            assert leave.wait(SECONDS)
            order.append("written")

    def cancel() -> None:
        arrival.cancel()
        order.append("cancelled")

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert is_inside.wait(SECONDS)
    canceller = threading.Thread(target=cancel, daemon=True)
    canceller.start()
    canceller.join(0.05)
    leave.set()
    for thread in (writer, canceller):
        thread.join(SECONDS)
    assert order == ["written", "cancelled"]
    with arrival.writing() as may:
        assert not may


def test_a_request_waits_for_the_slowest_of_its_files(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two threads read them: the last to begin may be the first to end."""
    with opened(model, tmp_path) as llm:
        expected = said(llm, TEXT)
    read, is_first = SessionStore.read, threading.Lock()

    def slow(store: SessionStore, *args: Any) -> Any:
        if is_first.acquire(blocking=False):
            time.sleep(0.1)
        return read(store, *args)

    monkeypatch.setattr(SessionStore, "read", slow)
    with opened(model, tmp_path) as llm:
        answer = llm.generate(TEXT, GREEDY)
        assert list(answer.token_ids) == expected
        assert answer.stats.cached_prompt_tokens == len(llm.tokenizer.encode(TEXT)) - 1


def test_rows_that_came_from_files_are_not_looked_for_again(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a long conversation that would take as long as a step."""
    with opened(model, tmp_path) as llm:
        said(llm, TEXT)
        count = len(llm.tokenizer.encode(TEXT)) // SEGMENT
    starts, save = list[int](), SessionStore.save

    def saves(store: SessionStore, start: int, *args: Any) -> Any:
        starts.append(start)
        return save(store, start, *args)

    monkeypatch.setattr(SessionStore, "save", saves)
    with opened(model, tmp_path) as llm:
        said(llm, TEXT)
    assert min(starts) == count * SEGMENT > 0


def prepared(llm: LLM, text: str) -> list[Any]:
    from outrider.config import SpeculationParams
    from outrider.engine.request import Request

    tokens = tuple(llm.tokenizer.encode(text))
    return [Request("saved", tokens, GREEDY, SpeculationParams(draft="none"), frozenset())]


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_company_and_want_of_memory_change_nothing(model: str, tmp_path: Path, kind: str) -> None:
    """Several come back at once, into a pool that is too small for them, and are preempted on their way."""
    path, dice = MODELS[kind] or model, random.Random(5)
    texts = [f"{i}: {TEXT[: dice.randrange(100, 400)]}" for i in range(6)]
    params = [SamplingParams(max_tokens=dice.randrange(4, 24), temperature=0.8, seed=i) for i in range(6)]
    with opened(path, None, prefix_reuse=False) as llm:
        expected = [list(llm.generate(*each).token_ids) for each in zip(texts, params, strict=True)]
    found = 0
    for _ in range(2):
        with opened(path, tmp_path, max_batch_size=4, kv_cache="paged", kv_tokens=768, max_batched_tokens=96) as llm:
            answers = llm.generate(texts, params)
            assert [list(each.token_ids) for each in answers] == expected
            found = sum(each.stats.cached_prompt_tokens for each in answers)
            llm.engine.cache.check()
    assert found > 200


def test_a_step_saves_no_more_than_it_has_time_for(model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left comes in later steps, so all of it is there at last."""
    monkeypatch.setattr(moving, "STEP_BYTES", 1)
    steps, copied, begin, copy = [0], Counter[int](), CacheMemory.begin_step, moving.Sessions._copy

    def begins(self: CacheMemory) -> Any:
        steps[0] += 1
        return begin(self)

    def copies(self: Any, slot: int, start: int, end: int) -> Any:
        copied[steps[0]] += 1
        return copy(self, slot, start, end)

    monkeypatch.setattr(CacheMemory, "begin_step", begins)
    monkeypatch.setattr(moving.Sessions, "_copy", copies)
    with opened(model, tmp_path) as llm:
        said(llm, TEXT, SamplingParams(max_tokens=30, ignore_eos=True))
        count = len(llm.tokenizer.encode(TEXT)) // SEGMENT
    assert set(copied.values()) == {1}
    assert len(list(tmp_path.rglob("*.safetensors"))) >= count > 3
