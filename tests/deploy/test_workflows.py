"""Workflows, templates and hooks name make targets, files and jobs that exist."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.docs.running import make_targets
from tests.paths import ROOT

GITHUB = ROOT / ".github"
WORKFLOWS = sorted(GITHUB.glob("workflows/*.yml"))
FORMS = sorted(path for path in GITHUB.glob("ISSUE_TEMPLATE/*.yml") if path.name != "config.yml")
SOURCES = [ROOT, *sorted(ROOT.glob("packages/*")), *sorted(ROOT.glob("packages/*/src"))]
LOCK = ROOT / "requirements-dev.txt"


def read(path: Path) -> dict[Any, Any]:
    document: dict[Any, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return document


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def commands(path: Path) -> str:
    """All shell text of a workflow."""
    return "\n".join(step["run"] for step in steps(path) if "run" in step)


def missing(text: str) -> list[str]:
    """Make targets, modules and files that shell text names and the repository has not."""
    targets = make_targets(ROOT / "Makefile")
    named = chain.from_iterable(line.split() for line in re.findall(r"\bmake ((?:[\w.=-]+ ?)+)", text))
    wrong = [f"make {word}" for word in named if "=" not in word and word not in targets]
    for module in re.findall(r"-m ((?:tests|benchmarks)[\w.]+)", text):
        path = module.replace(".", "/")
        if not any((root / f"{path}.py").is_file() or (root / path).is_dir() for root in SOURCES):
            wrong.append(module)
    places = re.findall(r"(?<![\w/.$-])((?:packages|tests|deploy|benchmarks|docs|examples|src)/[\w./-]+)", text)
    return wrong + [place for place in places if not (ROOT / place).exists()]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_name_what_exists(path: Path) -> None:
    assert missing(commands(path)) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    assert (
        missing("make test-core\npython tests/paths.py\nPYTHONPATH=packages/outrider python -m tests.native.digest")
        == []
    )
    assert missing("make test nonsense ARGS=x") == ["make nonsense"]
    assert missing("python -m tests.nonsense") == ["tests.nonsense"]
    assert missing("PYTHONPATH=src/outrider python tests/nonsense.py") == ["src/outrider", "tests/nonsense.py"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_have_the_form_that_is_run(path: Path) -> None:
    document = read(path)
    assert document.keys() <= {"name", "on", True, "permissions", "concurrency", "env", "jobs"}  # yaml reads on as True
    assert document["permissions"] == {"contents": "read"}
    for name, job in document["jobs"].items():
        assert {"runs-on", "steps"} <= job.keys(), name
        matrix = job.get("strategy", {}).get("matrix", {})
        variables = matrix.keys() | {key for row in matrix.get("include", ()) for key in row}
        assert set(re.findall(r"\$\{\{ *matrix\.(\w+)", yaml.safe_dump(job))) <= variables, name
        assert set(re.findall(r"\$\{\{ *(\w+)\.", yaml.safe_dump(job))) <= {"matrix", "github", "vars"}, name
    for step in steps(path):
        assert ("uses" in step) != ("run" in step), step
        assert re.fullmatch(r"[\w-]+/[\w-]+@v\d+", step.get("uses", "actions/checkout@v4")), step


def test_pull_requests_run_checks_and_tests_on_every_python() -> None:
    document = read(GITHUB / "workflows" / "ci.yml")
    assert "pull_request" in document[True]
    made = set(re.findall(r"make ([\w-]+)", commands(GITHUB / "workflows" / "ci.yml")))
    assert made == {"check", "test-core", "test", "native-digest", "conversations"}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = [word.rpartition(" ")[2] for word in project["classifiers"] if re.search(r":: 3\.\d+$", word)]
    assert document["jobs"]["core"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_forms_of_issues_can_be_shown(path: Path) -> None:
    form = read(path)
    assert form.keys() == {"name", "description", "labels", "body"}
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    for field in fields:
        assert field["type"] in ("textarea", "input", "dropdown", "checkboxes"), field
        assert field["attributes"]["label"], field
        assert field.keys() <= {"type", "id", "attributes", "validations"}, field
    assert any(field.get("validations", {}).get("required") for field in fields)


def test_reports_ask_for_the_machine() -> None:
    assert [path.stem for path in FORMS] == ["bug", "differing_output", "feature", "slow"]
    for path in FORMS:
        assert ("outrider doctor --json" in path.read_text()) == (path.stem != "feature")


def test_owners_and_updates_name_paths_that_exist() -> None:
    lines = (GITHUB / "CODEOWNERS").read_text().splitlines()
    places = [line.split()[0] for line in lines if line and not line.startswith("#")]
    assert places[0] == "*"
    assert [place for place in places[1:] if not (ROOT / place.strip("/")).exists()] == []
    updates = read(GITHUB / "dependabot.yml")["updates"]
    assert [update["package-ecosystem"] for update in updates] == ["pip", "github-actions", "docker"]
    assert [update["directory"] for update in updates if not (ROOT / update["directory"].strip("/")).is_dir()] == []


def test_hooks_run_the_tools_of_the_environment() -> None:
    (local,) = read(ROOT / ".pre-commit-config.yaml")["repos"]
    entries = [hook["entry"].split() for hook in local["hooks"]]
    checks = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    for words in entries:
        assert words[0].startswith(".venv/bin/")
        assert words[0].replace(".venv/bin", "$(BIN)") in checks, f"{words[0]} is no part of make check"
    assert {words[0].rpartition("/")[2] for words in entries} == {"ruff", "mypy", "lint-imports"}
    assert all(hook["language"] == "system" for hook in local["hooks"])


def test_the_lock_has_every_direct_dependency_in_its_range_and_no_place() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(lines, key=lambda line: line.partition("==")[0])
    assert [line for line in lines if not re.fullmatch(r"[a-z0-9-]+==[\w.!]+", line)] == []
    locked = dict(line.split("==") for line in lines)
    projects = [tomllib.loads(path.read_text())["project"] for path in ROOT.glob("packages/*/pyproject.toml")]
    root = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*root["optional-dependencies"]["dev"], *chain.from_iterable(one["dependencies"] for one in projects)]
    direct = [Requirement(text) for text in asked if not text.startswith("outrider")]
    assert len(direct) > 30
    wrong = [str(one) for one in direct if not one.specifier.contains(locked.get(canonicalize_name(one.name), "0"))]
    assert wrong == [], "run `make lock`"
