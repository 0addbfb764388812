"""The table of ``outrider_server.http`` names a test for every part that uvicorn might do; each of them exists."""

from __future__ import annotations

import re
from pathlib import Path

import outrider_server.http

HERE = Path(__file__).parent


def test_every_part_names_a_test_that_exists() -> None:
    table = outrider_server.http.__doc__ or ""
    named = re.findall(r"``((?:attack/)?test_\w+)::(test_\w+)``", table)
    assert len(named) == 17
    for file, test in named:
        assert f"def {test}(" in (HERE / f"{file}.py").read_text(), test
