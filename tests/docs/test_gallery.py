"""The gallery's programs run as they stand, on small stand-ins for the built-in model, and the page shows them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from tests.docs.snippets import ROOT, blocks

PROGRAMS = (
    "batch", "stream", "async_requests", "json_output", "code_edit", "certify_in_code",
)  # fmt: skip
PRINTED = {
    "batch": "passes",
    "stream": "stopped after",
    "async_requests": "Name a mountain.",
    "json_output": "'born'",
    "code_edit": "prediction: ",
    "certify_in_code": "CERTIFIED",
}


def played(program: str, capsys: pytest.CaptureFixture[str]) -> str:
    try:
        runpy.run_path(str(ROOT / "examples" / f"{program}.py"), run_name="__main__")
    except SystemExit as end:
        code = end.code
    else:
        code = None
    printed = capsys.readouterr().out
    assert not code, printed
    return printed


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs(
    program: str, small_models: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(small_models))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    printed = played(program, capsys)
    assert PRINTED[program] in printed
    assert "DIFFERENT" not in printed


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_runs_on_the_real_model(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert PRINTED[program] in played(program, capsys)


def test_the_page_shows_the_programs_as_they_are() -> None:
    shown = [block.text for block in blocks(ROOT / "docs" / "gallery.md")]
    programs = [(ROOT / "examples" / f"{program}.py").read_text().rstrip() for program in PROGRAMS]
    assert shown[: len(programs)] == programs


def test_programs_are_short() -> None:
    lengths = {program: len((ROOT / "examples" / f"{program}.py").read_text().splitlines()) for program in PROGRAMS}
    assert max(lengths.values()) < 40
