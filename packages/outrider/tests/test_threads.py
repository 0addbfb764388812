"""``LLM`` and ``AsyncLLM`` from several threads, and threads that are still generating when the interpreter exits."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider.engine.loop import EngineLoop
from outrider.engine.request import Request
from outrider.models.toy import TableModel
from outrider.utils.turns import TurnLock
from tests.model_folders import model_folder
from tests.small_engines import engine, generate, request

TARGET = TableModel.random(6, seed=2)
SAMPLED = SamplingParams(max_tokens=24, temperature=0.9, seed=5, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture
def impatient() -> Iterator[None]:
    """Threads change places in the middle of anything."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def side_by_side(*work: Callable[[], object]) -> list[object]:
    """What each gave, or raised."""
    results: list[object] = [None] * len(work)
    begin = threading.Barrier(len(work))

    def run(i: int) -> None:
        begin.wait()
        try:
            results[i] = work[i]()
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            results[i] = error

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


@pytest.mark.usefixtures("impatient")
def test_eight_threads_generate_what_one_does(folder: Path) -> None:
    with LLM(str(folder), draft="ngram", threads=1) as llm:
        prompts = [[5 + i, 6, 7, 5 + i, 6] for i in range(8)]
        alone = [llm.generate([prompt], SAMPLED)[0].token_ids for prompt in prompts]
        together = side_by_side(*(lambda p=prompt: llm.generate([p] * 2, SAMPLED) for prompt in prompts))
    assert len(together) == 8
    for outputs, expected in zip(together, alone, strict=True):
        assert isinstance(outputs, list), outputs
        assert [output.token_ids for output in outputs] == [expected] * 2


@pytest.mark.usefixtures("impatient")
def test_threads_that_stream_leave_and_run_at_once() -> None:
    served = engine(TARGET, slots=3)
    loop = EngineLoop(served)
    params = SamplingParams(max_tokens=40)
    expected = generate(engine(TARGET), [0, 1], params)

    def stream(name: str) -> list[int]:
        return [step.token_id for step in loop.stream(request([0, 1], params, id=name))]

    def leave(name: str) -> list[int]:
        steps = loop.stream(request([0, 1], params, id=name))
        return [next(steps).token_id for _ in range(3)] + expected[3:]

    def run(name: str) -> list[int]:
        (steps,) = loop.run([request([0, 1], params, id=name)], lambda: None)
        return [step.token_id for step in steps]

    given = side_by_side(*(lambda i=i, w=w: w(f"{w.__name__}{i}") for i in range(3) for w in (stream, leave, run)))
    assert given == [expected] * 9
    assert not served.busy
    served.cache.check()


def test_who_comes_while_another_thread_steps_is_next() -> None:
    """A thread that steps without end cannot keep another from beginning: turns are taken in order."""
    lock, order = TurnLock(), list[str]()

    def wait() -> None:
        with lock:
            order.append("waiter")

    thread = threading.Thread(target=wait)
    with lock:
        thread.start()
        while not lock._waiting:
            pass
    for _ in range(3):
        with lock:
            order.append("stepper")
    thread.join()
    assert order == ["waiter", "stepper", "stepper", "stepper"]


def test_a_stream_that_is_dropped_within_a_step_is_aborted_before_the_next() -> None:
    """As when it is collected as garbage there: it must neither wait for the step nor reach into it."""
    served = engine(TARGET, slots=2)
    loop = EngineLoop(served)
    steps: Any = loop.stream(request([0, 1], id="dropped"))
    next(steps)
    step, left = served.step, list[bool]()

    def dropping() -> object:
        steps.close()
        left.append(any(isinstance(each, Request) and each.id == "dropped" for each in served._scheduler.running))
        return step()

    served.step = dropping  # type: ignore[method-assign, assignment]
    assert len(list(loop.stream(request([0, 1], id="other")))) == 12
    assert left[0]
    assert not served.busy


EXIT = """
import asyncio, sys, threading, time
from outrider import LLM, AsyncLLM, SamplingParams
llm = LLM(sys.argv[1], draft="ngram", threads=2)
params = SamplingParams(max_tokens=40, ignore_eos=True)
begun = threading.Event()

def generate():
    while True:
        for step in llm.stream([5, 6, 7], params):
            begun.set()

async def serve():
    served = AsyncLLM(llm)
    while True:
        async for step in served.stream([5, 6, 7], params):
            begun.set()

work = generate if sys.argv[2] == "LLM" else lambda: asyncio.run(serve())
threading.Thread(target=work, daemon=True).start()
begun.wait()
print("exits")
"""


@pytest.mark.parametrize("public", ["LLM", "AsyncLLM"])
def test_a_thread_that_generates_at_exit_ends_nothing_by_a_signal(folder: Path, public: str) -> None:
    running = [
        subprocess.Popen(
            [sys.executable, "-c", EXIT, str(folder), public],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    for process in running:
        out, error = process.communicate(timeout=120)
        assert out == "exits\n", error
        assert process.returncode == 0, error
        assert error == ""
