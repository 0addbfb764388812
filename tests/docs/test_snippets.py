"""Every command and program that the documentation shows runs, and prints what it shows there.

The fast tests run them on small stand-ins for the built-in models; the slow ones run them on the real model and compare
what they print, without times and rates. ``tests/docs/snippets.py`` says how a page marks what cannot run.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import LLM
from outrider.weights.hub.catalog import resolve
from tests.docs import running
from tests.docs.running import Runner
from tests.docs.snippets import PAGES, ROOT, RUNNABLE, Block, blocks, chains, words
from tests.server.live import Live

MODEL = "smollm2-135m-instruct"
TEXT = "It was the best of times, it was the worst of times. It was the age of wisdom.\n"
GIVEN = {
    "prompts.jsonl": '{"prompt": "It was the best"}\n{"prompt": "of times, it was"}\n',
    "notes.txt": TEXT * 20,
    "more.txt": TEXT.upper() * 20,
    "schema.json": '{"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}',
}
"""Files that examples may read."""

EXAMPLES = chains()
ASSIGNMENT = re.compile(r"[A-Z_]+=")
"""Of a variable, before a command."""


def runs(chain: list[Block], *, slow: bool) -> bool:
    marks = chain[0].marks
    return "not run" not in marks and (slow or "slow" not in marks)


def name(chain: list[Block]) -> str:
    return chain[0].place


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for file, text in GIVEN.items():
        (tmp_path / file).write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.fixture
def offline(small_models: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(small_models))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def small_server(small_models: Path) -> Iterator[str]:
    with Live(LLM(str(small_models / "models" / MODEL), draft="suffix", threads=1), name=MODEL) as live:
        yield live.url


@pytest.fixture(scope="module")
def real_server() -> Iterator[str]:
    with Live(LLM(MODEL, draft="suffix"), name=MODEL) as live:
        yield live.url


def check_chain(chain: list[Block], request: pytest.FixtureRequest, server: str, *, compare: bool) -> None:
    needs_server = any("server" in block.marks for block in chain)
    runner = Runner(request.getfixturevalue(server) if needs_server else None)
    for block in chain:
        runner.run(block, compare=compare)


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize("chain", [chain for chain in EXAMPLES if runs(chain, slow=False)], ids=name)
def test_runs_on_stand_ins(chain: list[Block], request: pytest.FixtureRequest) -> None:
    check_chain(chain, request, "small_server", compare=False)


@pytest.fixture(scope="module")
def real_model() -> None:
    resolve(MODEL)  # or the first example would show a download


@pytest.mark.slow
@pytest.mark.usefixtures("workplace", "real_model")
@pytest.mark.parametrize("chain", [chain for chain in EXAMPLES if runs(chain, slow=True)], ids=name)
def test_prints_what_the_page_shows(chain: list[Block], request: pytest.FixtureRequest) -> None:
    check_chain(chain, request, "real_server", compare=True)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_and_options_exist(page: Path) -> None:
    targets = running.make_targets(ROOT / "Makefile")
    shell = [block for block in blocks(page) if block.language in ("sh", "console")]
    commands = [command for block in shell for command, _ in block.commands()] + running.quoted_commands(page)
    unknown: dict[str, set[str]] = {}
    for command in commands:
        first, *rest = itertools.dropwhile(ASSIGNMENT.match, words(command))
        if first == "outrider":
            unknown[command] = set(running.unknown_words(shlex.join([first, *rest])))
        elif first == "make":
            unknown[command] = {word for word in rest if "=" not in word} - targets
        elif first == "python" and rest[:1] == ["-m"]:
            unknown[command] = {rest[1]} if importlib.util.find_spec(rest[1]) is None else set()
    assert {command: found for command, found in unknown.items() if found} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_options_named_in_the_text_exist(page: Path) -> None:
    others = {"engines.md", "log.md", "notation.md", "server-clients.md"}  # of other programs, and of the past
    named = [] if page.name in others else running.quoted_options(page)
    assert sorted(set(named) - running.options()) == []


def test_there_are_examples() -> None:
    assert sum(len(chain) for chain in EXAMPLES if runs(chain, slow=False)) >= 15


def test_output_is_compared_without_times() -> None:
    shown = "one\n...\n12 tokens in 1.18 s (102 tokens/s)"
    assert running.agrees(shown, "one\ntwo\nthree\n12 tokens in 2.50 s (7 tokens/s)\n")
    assert not running.agrees(shown, "one\ntwo\n13 tokens in 2.50 s (7 tokens/s)\n")
    assert not running.agrees(shown, "two\none\n12 tokens in 2.50 s (7 tokens/s)\n")


def test_a_page_is_read_as_it_looks(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "Text\n\n<!-- slow: why -->\n```console\n$ outrider a \\\n    --b 1\nprinted\n$ outrider c\n```\n\n"
        "<!-- continues -->\n```python\nx = 1\n```\nmore\n```text\n$ no command\n```\n"
    )
    first, second, third = blocks(page)
    assert first.commands() == [("outrider a --b 1", ["printed"]), ("outrider c", [])]
    assert (first.line, first.marks, second.marks, third.marks) == (5, {"slow": "why"}, {"continues": ""}, {})
    assert third.language not in RUNNABLE


def test_unknown_commands_and_options_are_found() -> None:
    assert list(running.unknown_words("outrider generate --drat suffix -p 'a --b' -k -1")) == ["--drat"]
    assert list(running.unknown_words("outrider train egle --data x")) == ["egle"]
    assert list(running.unknown_words("outrider models list")) == []
