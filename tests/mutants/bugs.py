"""Seeded bugs as data: ``data/AREA.toml`` holds one table for each.

::

    [[bug]]
    name = "truncate keeps one row too many"     # unique
    file = "cache/contiguous.py"                 # of the core; else outrider_server/..., say
    old = "base + len(path))"                    # occurs exactly once in the file
    new = "base + len(path) + 1)"
    tests = ["packages/outrider/tests/contracts/test_kv_cache.py"]  # the likeliest to notice first
    escapes = "why no test can see it"           # only for a bug that is known to escape
    limit = 30                                   # seconds for its tests, where they are known to hang
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@dataclass(frozen=True)
class Bug:
    """One edit of one source file, and the tests that should fail under it."""

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    escapes: str = ""
    limit: float = 300.0  # seconds for its tests; a bug that makes them hang is caught

    @property
    def path(self) -> Path:
        """The file, below the root of the repository."""
        first = self.file.partition("/")[0]
        if first.startswith("outrider_"):
            return Path("packages", first.replace("_", "-"), "src", self.file)
        return Path("packages", "outrider", "src", "outrider", self.file)

    def apply(self, text: str) -> str:
        """``text`` with the bug in it. Raises ValueError if the edit does not fit the text any more."""
        found = text.count(self.old)
        if found != 1:
            raise ValueError(f"{self.area}: {self.name!r} is stale: its `old` occurs {found} times in {self.file}")
        return text.replace(self.old, self.new)


def read_bugs(folder: Path = HERE / "data") -> list[Bug]:
    """All bugs, by area. Raises ValueError if two have one name."""
    bugs: list[Bug] = []
    for path in sorted(folder.glob("*.toml")):
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["bug"]
        bugs += (Bug(area=path.stem, **entry | {"tests": tuple(entry["tests"])}) for entry in entries)
    names = [bug.name for bug in bugs]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ValueError(f"several bugs are named {sorted(twice)}")
    return bugs


def stale(bugs: Iterable[Bug], root: Path = ROOT) -> list[str]:
    """What is wrong with bugs that no longer fit the sources or the tests."""
    problems: list[str] = []
    for bug in bugs:
        path = root / bug.path
        if not path.is_file():
            problems.append(f"{bug.area}: {bug.name!r} is stale: there is no {bug.file}")
            continue
        try:
            changed = bug.apply(path.read_text(encoding="utf-8"))
            compile(changed, bug.file, "exec")
        except ValueError as error:
            problems.append(str(error))
        except SyntaxError as error:
            problems.append(f"{bug.area}: {bug.name!r} is no Python: {error}")
        problems += [
            f"{bug.area}: {bug.name!r} names {test}, which does not exist"
            for test in bug.tests
            if not (root / test.partition("::")[0]).exists()
        ]
    return problems
