"""The form of the documentation's text: lines that fit a window, and commands that a test can find."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.snippets import PAGES, ROOT, RUNNABLE, blocks, prose

WIDTH = 100
LANGUAGES = (*RUNNABLE, "text", "json", "jsonl", "toml", "yaml", "c", "diff", "mermaid")
COMMAND = re.compile(r"^ {4,}(\$ |(outrider|python|pip|make|curl) [\w-])|^ {4,}(import|from) \w")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def breakable(line: str) -> bool:
    """Whether a line that is too long could be broken: links and long words cannot."""
    short = re.sub(r"\]\([^)\s]*\)", "]()", line)  # targets of links
    return len(short) > WIDTH and " " in short.strip()[1:WIDTH]


@pages
def test_prose_fits_the_width(page: Path) -> None:
    footnote = re.compile(r"^\[\^?[^\]]+\]: ")
    long = [n for n, line in prose(page) if len(line) > WIDTH and not footnote.match(line) and breakable(line)]
    assert long == [], f"lines of more than {WIDTH} columns"


@pages
def test_blocks_say_their_language(page: Path) -> None:
    assert [block.place for block in blocks(page) if block.language not in LANGUAGES] == []


@pages
def test_commands_are_fenced(page: Path) -> None:
    hidden = [f"{number}: {line.strip()}" for number, line in prose(page) if COMMAND.match(line)]
    assert hidden == [], "put commands into a fenced block with a language"


@pages
def test_marks_give_reasons(page: Path) -> None:
    unexplained = [block.place for block in blocks(page) for name in ("not run", "slow") if block.marks.get(name) == ""]
    assert unexplained == []
