"""The commands and programs that the documentation shows: where they stand, and how they are marked.

A fenced block in ``sh``, ``console`` or ``python`` runs in a test. HTML comments on the lines before it change that::

    <!-- not run: REASON -->    it cannot run here; only its commands and flags are checked
    <!-- slow: REASON -->       it runs with the other slow tests only, on the real model
    <!-- continues -->          it goes on with the variables and files of the block before
    <!-- output -->             a ``text`` block: what the block before prints
    <!-- server -->             it talks to a server on port 8000
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUNNABLE = ("sh", "console", "python")

_FENCE = re.compile(r"^(?P<indent> *)(?P<ticks>```+)(?P<language>[\w+-]*)")
_MARK = re.compile(r"^\s*<!-- (?P<name>not run|slow|continues|output|server)(?:: (?P<reason>.*?))? -->$")


@dataclass
class Block:
    """A fenced block of a page. ``line`` is the number of its first line of text."""

    page: Path
    line: int
    language: str
    marks: dict[str, str]
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    def commands(self) -> list[tuple[str, list[str]]]:
        """Each command of a shell block, and in a ``console`` block the lines it prints."""
        found: list[tuple[str, list[str]]] = []
        goes_on = False
        for line in self.lines:
            if goes_on:
                found[-1] = (found[-1][0].removesuffix("\\") + line.strip(), [])
            elif self.language == "console" and not line.startswith("$ "):
                if found:
                    found[-1][1].append(line)
                continue
            elif line.strip() and not line.startswith("#"):
                found.append((line.removeprefix("$ ").strip(), []))
            goes_on = line.endswith("\\")
        return found


def blocks(page: Path) -> list[Block]:
    """Every fenced block of ``page``."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    fence = ""
    indent = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        if fence:
            if line.strip() == fence:
                fence = ""
            else:
                found[-1].lines.append(line[indent:] if not line[:indent].strip() else line)
        elif begin := _FENCE.match(line):
            fence, indent = begin["ticks"], len(begin["indent"])
            found.append(Block(page, number + 1, begin["language"], marks))
            marks = {}
        elif mark := _MARK.match(line):
            marks[mark["name"]] = mark["reason"] or ""
        elif line.strip():
            marks = {}
    return found


def chains() -> list[list[Block]]:
    """Runnable blocks, each with those that continue it and the outputs they show."""
    found: list[list[Block]] = []
    for page in PAGES:
        own: list[list[Block]] = []
        for block in blocks(page):
            if "output" in block.marks or ("continues" in block.marks and block.language in RUNNABLE):
                assert own, f"{block.place} continues nothing"
                own[-1].append(block)
            elif block.language in RUNNABLE:
                own.append([block])
        found += own
    return found


def words(command: str) -> list[str]:
    """A command as the shell splits it; a comment behind it is none of its words."""
    return shlex.split(command, comments=True)


def prose(page: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines of running text: no fenced code, tables, HTML or front matter."""
    inside = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        stripped = line.strip()
        if inside:
            if stripped == inside:
                inside = ""
        elif number == 1 and stripped == "---":
            inside = "---"
        elif begin := _FENCE.match(line):
            inside = begin["ticks"]
        elif not stripped.startswith(("|", "<")):
            yield number, line
