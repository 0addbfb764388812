"""The action that replays records: its steps are run as a runner does, with the text that an ``outrider`` gives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from outrider import LLM, SamplingParams
from tests.model_folders import model_folder
from tests.paths import ROOT

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "deploy" / "replay-action" / "action.yml").read_text(encoding="utf-8"))


def run(folder: Path, outrider: str, **inputs: str) -> subprocess.CompletedProcess[str]:
    """The action's last step in ``folder``, with the inputs' defaults, where ``outrider`` is a script."""
    command = folder / "bin" / "outrider"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f"#!/bin/bash\n{outrider}\n")
    command.chmod(0o755)
    given = {name: field.get("default", "") for name, field in ACTION["inputs"].items()} | inputs
    step = ACTION["runs"]["steps"][-1]
    env = {name: given[text.removeprefix("${{ inputs.").removesuffix(" }}")] for name, text in step["env"].items()}
    path = f"{command.parent}{os.pathsep}{os.environ['PATH']}"
    env |= {"PATH": path, "GITHUB_STEP_SUMMARY": str(folder / "summary.md")}
    return subprocess.run(
        ["bash", "-e", "-c", step["run"]], cwd=folder, check=False, capture_output=True, text=True, env=os.environ | env
    )


def test_the_action_has_the_form_of_a_composite_one() -> None:
    assert ACTION.keys() == {"name", "description", "inputs", "runs"}
    assert ACTION["runs"]["using"] == "composite"
    assert all(step["shell"] == "bash" for step in ACTION["runs"]["steps"])
    assert [name for name, field in ACTION["inputs"].items() if field.get("required")] == ["record"]


def test_equal_records_pass_and_others_fail_with_the_first_difference(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.jsonl").write_text("{}\n")
    script = (
        'echo "$@" >> asked; [ "$2" = a.jsonl ] && { echo equal; exit 0; }; echo "r-1: token 3, in step 2: x"; exit 1'
    )
    done = run(tmp_path, script, record="*.jsonl", model="m", arguments="--draft none")
    assert done.returncode == 1, done.stderr
    assert (tmp_path / "asked").read_text() == "".join(f"replay {n}.jsonl --model m --draft none\n" for n in "ab")
    assert "::error file=b.jsonl,title=A replay differs::r-1: token 3, in step 2: x\n" in done.stdout
    assert "file=a.jsonl" not in done.stdout
    assert "### b.jsonl\n```\nr-1: token 3, in step 2: x" in (tmp_path / "summary.md").read_text()
    assert run(tmp_path, script, record="a.jsonl").returncode == 0


def test_an_error_of_the_command_and_a_missing_file_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("{}\n")
    done = run(tmp_path, "echo 'outrider: it is no record' >&2; exit 2", record="a.jsonl")
    assert done.returncode == 2
    assert "outrider: it is no record" in done.stdout
    done = run(tmp_path, "exit 0", record="none-*.jsonl")
    assert (done.returncode, done.stdout) == (2, "::error::no file matches none-*.jsonl\n")


@pytest.mark.slow
def test_the_action_with_a_real_record(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "tiny", max_position_embeddings=512)
    with LLM(str(folder), draft="none", threads=1) as llm, llm.record(tmp_path / "talk.jsonl"):
        llm.generate("one two", SamplingParams(max_tokens=6, ignore_eos=True))
    script = f'exec {sys.executable} -m outrider "$@"'
    done = run(tmp_path, script, record="talk.jsonl", model=str(folder))
    assert (done.returncode, done.stdout) == (0, "talk.jsonl\n1 of 1 outputs are the recorded ones\n"), done.stderr
    other = model_folder(tmp_path / "other", max_position_embeddings=512, rms_norm_eps=0.5, rope_theta=3.0)
    done = run(tmp_path, script, record="talk.jsonl", model=str(other))
    assert done.returncode == 1
    assert "::error file=talk.jsonl,title=A replay differs::request-0: token 1, in step 1: " in done.stdout
