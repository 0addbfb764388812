"""The documentation names files that exist, and its figures are those that its script draws."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from outrider.config import VERIFIERS
from outrider.config.sources import SOURCES

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


def named_paths(page: Path) -> set[str]:
    """Files of the repository that a page names in full, from its root."""
    found = re.findall(r"`((?:packages|src|tests|benchmarks|examples)/[\w./-]+\.\w+)", page.read_text(encoding="utf-8"))
    return set(found)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_every_path_named_exists(page: Path) -> None:
    assert sorted(path for path in named_paths(page) if not (ROOT / path).exists()) == []


def test_shortened_paths_end_paths_that_exist() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    named = {
        (page.name, path)
        for page in PAGES
        if page.parent.name != "decisions"  # which keep the names of their time
        for path in re.findall(r"`((?:[\w-]+/)+\w+\.(?:py|c|h))`", page.read_text(encoding="utf-8"))
    }
    assert len(named) > 50
    assert [
        (page, path) for page, path in sorted(named) if not any(f"/{file}".endswith(f"/{path}") for file in tracked)
    ] == []


def test_extras_that_pages_and_errors_name_exist() -> None:
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    sources = [path for path in (ROOT / "packages").glob("*/src/**/*.py") if "__pycache__" not in path.parts]
    named = {
        (path.name, name)
        for path in [*PAGES, ROOT / "README.md", *sources]
        for names in re.findall(r"outrider\[([\w,]+)\]", path.read_text(encoding="utf-8"))
        for name in names.split(",")
    }
    assert len(named) >= 5
    assert {(page, name) for page, name in named if name not in extras} == set()


def test_every_idea_has_code_and_a_test() -> None:
    text = (DOCS / "ideas.md").read_text(encoding="utf-8").split("\n## The texts")[0]
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| idea |")]
    assert len(rows) >= 25
    for row in rows:
        _, _, _, code, tests, _ = row.split("|")
        assert re.search(r"`packages/[\w-]+/src/[\w/]+\.py`", code), row
        assert re.search(r"`(?:packages/[\w-]+/)?tests/[\w/]+\.py`", tests), row


def test_every_source_and_verifier_is_in_its_table() -> None:
    sources, verifiers = (DOCS / "sources.md").read_text(), (DOCS / "exactness.md").read_text()
    assert [name for name in SOURCES if f"`{name}`" not in sources] == []
    assert [name for name in VERIFIERS if f"`{name}`" not in verifiers] == []


def test_tables_are_those_the_code_knows() -> None:
    script = [sys.executable, str(DOCS / "tools" / "tables.py"), "--check"]
    found = subprocess.run(script, check=False, capture_output=True, text=True, timeout=60)
    assert found.returncode == 0, found.stderr


def test_figures_are_those_the_script_draws(tmp_path: Path) -> None:
    if not (DOCS / "images" / "figures").is_dir():
        pytest.skip("a source distribution has none: python docs/figures draws them")
    subprocess.run([sys.executable, str(DOCS / "figures"), str(tmp_path)], check=True, timeout=60)
    kept, drawn = DOCS / "images" / "figures", {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert {path.name: path.read_text() for path in kept.iterdir()} == drawn, "run: python docs/figures"


def test_every_algorithm_has_a_figure() -> None:
    pages = (DOCS / "algorithms").glob("*.md")
    assert [page.name for page in pages if "](../images/figures/" not in page.read_text()] == []


def test_the_front_page_shows_rows_of_the_benchmarks() -> None:
    def rows(path: Path) -> list[str]:
        return [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]

    measured = rows(ROOT / "benchmarks" / "README.md")
    shown = rows(DOCS / "index.md")
    assert len(shown) > 4
    assert [row for row in shown if row not in measured] == []
