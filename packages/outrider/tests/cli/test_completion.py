"""Completion: what the shells are told, and an installation into a real bash."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_cli import run
from tests.paths import ROOT


def completions(monkeypatch: pytest.MonkeyPatch, shell: str, line: str) -> str:
    """What a shell is told when Tab is pressed behind ``line``."""
    monkeypatch.setenv("_OUTRIDER_COMPLETE", f"complete_{shell}")
    monkeypatch.setenv("_TYPER_COMPLETE_ARGS", line)
    monkeypatch.setenv("_TYPER_COMPLETE_FISH_ACTION", "get-args")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split(" ")) - 1))
    return run().stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("outrider ch", "chat"),
        ("outrider models r", "rm"),
        ("outrider generate --dra", "--draft-model"),
        ("outrider generate --draft suf", "suffix"),
        ("outrider generate --dtype q8", "q8_0"),
        ("outrider chat -m smol", "smollm2-135m-instruct"),
        ("outrider serve --log-level w", "warning"),
    ],
)
def test_what_is_offered(monkeypatch: pytest.MonkeyPatch, shell: str, line: str, word: str) -> None:
    assert word in completions(monkeypatch, shell, line)


def test_nothing_is_offered_for_what_is_no_option(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completions(monkeypatch, "bash", "outrider generate --draft zzz").strip() == ""


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_one_command_installs_it_in_bash(tmp_path: Path) -> None:
    command = tmp_path / "bin" / "outrider"
    command.parent.mkdir()
    command.write_text(f"#!{sys.executable}\nfrom outrider.cli.main import main\nmain()\n")
    command.chmod(0o755)
    source = os.pathsep.join(map(str, ROOT.glob("packages/*/src")))
    env = {**os.environ, "HOME": str(tmp_path), "PATH": f"{command.parent}:{os.environ['PATH']}", "PYTHONPATH": source}
    script = """
        outrider --install-completion
        source ~/.bashrc
        COMP_WORDS=(outrider mo); COMP_CWORD=1
        $(complete -p outrider | sed 's/.*-F \\([^ ]*\\).*/\\1/') outrider mo outrider
        echo "offered: ${COMPREPLY[*]}"
    """
    done = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert "bash completion installed" in done.stdout, done.stderr
    assert "offered: models" in done.stdout, done.stderr
