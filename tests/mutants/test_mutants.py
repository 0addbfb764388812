"""The seeded bugs fit the sources, and the command tells those that are noticed from those that are not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.mutants.bugs import Bug, read_bugs, stale
from tests.mutants.run import Result, report

BUGS = read_bugs()
BUG = Bug(
    "area",
    "name",
    "verify/tree.py",
    "out.append(len(path))",
    "out.append(0)",
    ("packages/outrider/tests/verify/test_tree.py",),
)


def test_there_are_bugs_of_every_area_and_none_is_stale() -> None:
    assert len(BUGS) >= 60
    assert {bug.area for bug in BUGS} >= {
        "distribution",
        "verify",
        "cache",
        "scheduler",
        "drafting",
        "adaptive",
        "server",
    }
    assert stale(BUGS) == []


def test_a_stale_bug_is_named() -> None:
    assert "is stale: its `old` occurs 0 times" in stale([BUG])[0]
    assert "there is no verify/forest.py" in stale([replace(BUG, file="verify/forest.py")])[0]
    assert "names tests/verify/test_forest.py" in stale([replace(BUG, tests=("tests/verify/test_forest.py",))])[-1]
    with pytest.raises(ValueError, match="occurs 2 times"):
        replace(BUG, old="a").apply("a a")


def test_two_bugs_do_not_share_a_name(tmp_path: Path) -> None:
    entry = '[[bug]]\nname = "one"\nfile = "a.py"\nold = "a"\nnew = "b"\ntests = []\n'
    (tmp_path / "area.toml").write_text(entry + entry)
    with pytest.raises(ValueError, match="several bugs are named"):
        read_bugs(tmp_path)


def test_the_report_counts_by_area_and_lists_what_escaped() -> None:
    results = [
        Result("core", "seen", "caught", 1.0, True),
        Result("core", "hung", "timeout", 1.0, True),
        Result("cache", "missed", "escaped", 1.0, True),
    ]
    lines = report(results).splitlines()
    assert [line.split() for line in lines[2:5]] == [
        ["core", "2", "2"],
        ["cache", "1", "0"],
        ["all", "3", "2", "66.7%"],
    ]
    assert lines[-1] == "ESCAPED: cache: missed"
