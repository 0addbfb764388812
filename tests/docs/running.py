"""Runs the documentation's examples in this process, and compares what they print with what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import typer

from outrider.cli import main as cli
from tests.docs.snippets import Block, words

LOCAL_SERVER = re.compile(r"http://(?:localhost|127\.0\.0\.1):8000")

_NUMBERS = (
    (re.compile(r"\b\d+(\.\d+)? (s|ms|min|tokens/s|MB|GB)\b"), r"# \2"),
    (re.compile(r"\b\d+\.\d+x"), "#x"),
    (re.compile(r"[ \t]+"), " "),
)


def normal(text: str) -> list[str]:
    """Lines without what differs from machine to machine: times, rates, ratios, memory and the widths of columns."""
    for pattern, instead in _NUMBERS:
        text = pattern.sub(instead, text)
    return [line.strip() for line in text.strip().splitlines() if not line.startswith("memory: ")]


def agrees(shown: str, printed: str) -> bool:
    """Whether ``printed`` is what a page shows, where ``...`` on a line of its own stands for any lines."""
    parts = "\n".join(normal(shown)).split("\n...\n")
    pattern = r"\n(?:.*\n)*?".join(re.escape(part) for part in parts)
    return re.fullmatch(pattern, "\n".join(normal(printed))) is not None


@dataclass
class Runner:
    """One example: its variables, and where its server listens."""

    server: str | None = None
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str = ""

    def run(self, block: Block, *, compare: bool) -> None:
        """Run a block; with ``compare`` what it prints must be what the page shows."""
        if "output" in block.marks:
            assert not compare or agrees(block.text, self.printed), f"{block.place} shows other than\n{self.printed}"
        elif block.language == "python":
            self.printed = self._python(block)
        else:
            for command, shown in block.commands():
                self.printed = self._shell(command, block)
                expected = "\n".join(shown)
                assert not compare or not shown or agrees(expected, self.printed), (
                    f"{block.place} shows other than\n{self.printed}"
                )

    def _python(self, block: Block) -> str:
        text = block.text if self.server is None else LOCAL_SERVER.sub(self.server, block.text)
        program = compile("\n" * (block.line - 1) + text, str(block.page), "exec")  # errors name the page's line
        with contextlib.redirect_stdout(io.StringIO()) as out:
            exec(program, self.names)
        return out.getvalue()

    def _shell(self, command: str, block: Block) -> str:
        if command.startswith("cat > ") or not command.startswith("outrider "):
            return subprocess.run(command, shell=True, check=True, capture_output=True, text=True, timeout=3600).stdout
        out = io.StringIO()
        argv = words(command if self.server is None else LOCAL_SERVER.sub(self.server, command))
        with (
            mock.patch.object(sys, "argv", argv),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(out),
            pytest.raises(SystemExit) as end,
        ):
            cli.main()
        assert not end.value.code, f"{block.place}: {command}\n{out.getvalue()}"
        return out.getvalue()


def unknown_words(command: str) -> Iterator[str]:
    """The subcommands and options of an ``outrider`` command line that do not exist."""
    at = _commands()
    given = words(command)[1:]
    while given and hasattr(at, "commands") and not given[0].startswith("-"):
        if given[0] not in at.commands:
            yield given[0]
            return
        at = _inner(at)[given.pop(0)]
    known = {name for parameter in at.params for name in (*parameter.opts, *parameter.secondary_opts)} | {
        "-h",
        "--help",
    }
    for word in given:
        name = word.partition("=")[0]
        if name.startswith("-") and not re.match(r"-\d", name) and name not in known:
            yield name


@cache
def options() -> frozenset[str]:
    """Every option that some command has."""
    found: set[str] = set()
    waiting = [_commands()]
    while waiting:
        command = waiting.pop()
        waiting += _inner(command).values()
        found.update(*(parameter.opts + parameter.secondary_opts for parameter in command.params))
    return frozenset(found)


def _inner(group: Any) -> dict[str, Any]:
    """The commands of a group, those of other distributions included; none of what is no group."""
    whole = getattr(group, "whole", None)
    return {name: whole(name) if whole else inner for name, inner in getattr(group, "commands", {}).items()}


@cache
def _commands() -> Any:
    return typer.main.get_command(cli.app)


def make_targets(makefile: Path) -> set[str]:
    return set(re.findall(r"^([\w-]+):", makefile.read_text(), flags=re.MULTILINE))


def quoted_commands(page: Path) -> list[str]:
    """``outrider`` commands and Python modules in running text, within backquotes on one line."""
    found = re.findall(r"(?<!`)`((?:outrider [a-z]|python -m )[^`\n]*)`", page.read_text(encoding="utf-8"))
    kept = []
    for command in found:
        with contextlib.suppress(ValueError):
            shlex.split(command)
            kept.append(command)
    return kept


def quoted_options(page: Path) -> list[str]:
    """Options that running text names, each within backquotes of its own; not those that a changelog says are gone."""
    text = re.sub(r"(?ms)^### Removed$.*?(?=^##|\Z)", "", page.read_text(encoding="utf-8"))
    return re.findall(r"(?<!`)`(--[a-z][\w-]*)[^`\n]*`", text)
