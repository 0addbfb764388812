"""Child processes answer, are stopped when they do not, and never outlive their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from outrider.utils.child import Cancellation, ChildCancelledError, ChildError, Children
from tests.waiting import wait_until

MEMORY = 1 << 30


def children(deadline: float = 30.0) -> Children:
    return Children("tests.utils.children:serve", "set up", count=2, memory=MEMORY, deadline=deadline, name="tests")


def test_answers_and_limits() -> None:
    own = children()
    setup, pid, memory = own.ask("limits")
    assert (setup, memory) == ("set up", MEMORY)
    assert own.ask({"a": "\u65e5\ud800" * 100_000}) == {"a": "\u65e5\ud800" * 100_000}
    assert own.ask("limits")[1] == pid != os.getpid()


@pytest.mark.parametrize(("request_", "message"), [("hang", "longer than 0.5 seconds"), ("eat", "too much memory")])
def test_one_that_does_not_answer_is_replaced(request_: str, message: str) -> None:
    own = children(deadline=0.5)
    own.deadline = 30.0 if request_ == "eat" else 0.5
    first = own.ask("limits")[1]
    with pytest.raises(ChildError, match=message):
        own.ask(request_)
    assert own.ask("limits")[1] != first
    assert not Path(f"/proc/{first}").exists()


def test_waiting_can_be_cancelled_from_another_thread() -> None:
    own, cancellation, ended = children(), Cancellation(), []

    def wait() -> None:
        try:
            with cancellation:
                own.ask("hang")
        except ChildCancelledError as error:
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.2)
    cancellation.cancel()
    thread.join(10)
    assert ended
    with cancellation, pytest.raises(ChildCancelledError):
        own.ask("limits")
    assert own.ask(1) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="processes are looked up in /proc")
def test_a_grammar_that_is_being_tried_ends_with_a_server_that_is_killed(tmp_path: Path) -> None:
    """Its process once ran on for as long as the grammar took."""
    program = f"""
import pathlib
from outrider.config.structured import StructuredOutput
from outrider.verify.grammar import GrammarCompiler
from outrider.tokenizer.tokenizer import Tokenizer
from tests.tokenizer.vocabularies import byte_level
grammars = GrammarCompiler(Tokenizer.from_folder(byte_level(pathlib.Path({str(tmp_path)!r}))), [1])
grammars.constraint(StructuredOutput(regex="a"))
print("ready", flush=True)
grammars.constraint(StructuredOutput(json_schema={{"type": "integer", "multipleOf": 99999989}}))
"""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, env=environment)
    assert parent.stdout is not None
    parent.stdout.readline()
    time.sleep(0.3)
    (child,) = _children_of(parent.pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    try:
        wait_until(lambda: not _runs(child), 5)  # the grammar alone takes ten
    finally:
        if _runs(child):
            os.kill(child, signal.SIGKILL)


def _children_of(pid: int) -> list[int]:
    stats = [(path, path.joinpath("stat")) for path in Path("/proc").iterdir() if path.name.isdigit()]
    return [int(path.name) for path, stat in stats if stat.exists() and _fields(stat)[1] == str(pid)]


def _runs(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie that waits to be collected."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and _fields(stat)[0] != "Z"


def _fields(stat: Path) -> list[str]:
    """State, parent, ... of a process (proc_pid_stat(5)); its name may hold anything."""
    try:
        return stat.read_text().rpartition(")")[2].split()
    except OSError:
        return ["Z", ""]
