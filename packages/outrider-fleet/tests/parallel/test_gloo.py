"""Processes that meet by torchrun's variables, as those of several machines do."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams
from outrider.errors import EngineDeadError
from outrider.native.library import library
from tests.model_folders import model_folder

pytestmark = [pytest.mark.slow, pytest.mark.skipif(library() is None, reason="needs the native library")]
PARAMS = SamplingParams(max_tokens=12, temperature=0.8, seed=3, ignore_eos=True)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_the_same_output_and_one_error_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = str(model_folder(tmp_path / "model"))
    wanted = LLM(folder, threads=1).generate("hello world", PARAMS)
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    environment = os.environ | place | {"RANK": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-m", "outrider_fleet.parallel"], env=environment) as other:
        try:
            for name, value in {**place, "RANK": "0"}.items():
                monkeypatch.setenv(name, value)
            llm = LLM(folder, threads=1, tensor_parallel_size=2)
            assert llm.generate("hello world", PARAMS).token_ids == wanted.token_ids
            other.send_signal(signal.SIGKILL)
            other.wait(10)
            for _ in range(2):
                with pytest.raises(EngineDeadError, match="a process of 2 on another machine is gone"):
                    llm.generate("hello again", PARAMS)
        finally:
            other.kill()


def test_a_process_elsewhere_needs_its_rank() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "outrider_fleet.parallel"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "RANK" in done.stderr, "Traceback" in done.stderr) == (2, True, False)
