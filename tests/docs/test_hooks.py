"""What the documentation's build must refuse, and what it makes of links to code."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "tools" / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def page(path: str) -> SimpleNamespace:
    return SimpleNamespace(file=SimpleNamespace(src_uri=path))


def config(repo_url: str | None = None) -> SimpleNamespace:
    return SimpleNamespace(docs_dir=str(ROOT / "docs"), repo_url=repo_url)


def test_links_to_code_become_text_or_links_to_the_repository(hooks: ModuleType) -> None:
    link = "See [`noise.py`](../../src/outrider/core/noise.py) and [trees](../algorithms/trees.md)."
    text = hooks.on_page_markdown(link, page("algorithms/a.md"), config(), None)
    assert text == "See `noise.py` and [trees](../algorithms/trees.md)."
    text = hooks.on_page_markdown(link, page("algorithms/a.md"), config("https://example.org/outrider/"), None)
    assert "[`noise.py`](https://example.org/outrider/blob/main/src/outrider/core/noise.py)" in text


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("[x](../src/nothing.py)", "no such file in the repository: ../src/nothing.py"),
        ('<script src="https://cdn.example.org/x.js"></script>', "loads from another host"),
        ('<link rel="stylesheet" href="https://fonts.example.org/x.css">', "loads from another host"),
        ('<img alt="" src="http://example.org/x.png">', "loads from another host"),
    ],
)
def test_what_the_build_refuses(hooks: ModuleType, body: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="mkdocs"):
        hooks.on_page_markdown(body, page("a.md"), config(), None)
        hooks.on_post_page(body, page("a.md"), config())
    assert [says in record.message for record in caplog.records] == [True]


def test_links_to_other_hosts_are_fine(hooks: ModuleType, caplog: pytest.LogCaptureFixture) -> None:
    body = '<a href="https://example.org">there</a> <link rel="canonical" href="https://example.org"> <img src="x.png">'
    assert hooks.on_post_page(body, page("a.md"), config()) == body
    assert not caplog.records


def test_pages_that_nobody_named_find_a_place(hooks: ModuleType) -> None:
    nav = [
        {"Home": "index.md"},
        {"Understand it": ["engine.md"]},
        {"Algorithms": [{"Verifiers": [{"Matching": "algorithms/matching.md"}]}]},
    ]
    found = hooks.on_config(SimpleNamespace(docs_dir=str(ROOT / "docs"), nav=nav)).nav
    assert "tuning.md" in found[1]["Understand it"]
    assert "algorithms/eagle.md" in found[2]["Algorithms"]
    assert "algorithms/matching.md" not in found[2]["Algorithms"]  # it has its place already


def test_figures_are_put_into_the_page(hooks: ModuleType) -> None:
    html = hooks.on_page_content(
        '<p><img alt="A tree" src="../images/figures/trees.svg" /></p>', page("a.md"), config(), None
    )
    assert html.startswith('<figure class="drawing" role="img" aria-label="A tree"><svg ')


def test_the_search_has_a_name(hooks: ModuleType) -> None:
    found = hooks.on_post_page('<div data-md-component="search" role="dialog">', page=None, config=None)
    assert found == '<div data-md-component="search" role="dialog" aria-label="Search">'


def test_the_site_has_at_most_51_000_words(hooks: ModuleType) -> None:
    """Marks of tables and lists are no words."""
    words = {
        path.name: sum(any(map(str.isalnum, word)) for word in path.read_text(encoding="utf-8").split())
        for path in hooks.site_pages(ROOT / "docs")
    }
    assert len(words) > 50
    assert sum(words.values()) <= 51_000, sorted(words.items(), key=lambda item: -item[1])[:10]


def test_every_page_opens_with_what_it_is_for(hooks: ModuleType) -> None:
    """A short paragraph behind the title, before any picture, table or command."""
    opening = {}
    for path in hooks.site_pages(ROOT / "docs"):
        blocks = path.read_text(encoding="utf-8").split("\n\n")
        title = next(number for number, block in enumerate(blocks) if block.startswith("# "))
        opening[path.name] = blocks[title + 1].strip()
    assert {name: text for name, text in opening.items() if not (text[0].isalpha() or text[0] == "*")} == {}
    assert {name: text for name, text in opening.items() if len(text.splitlines()) > 3} == {}
