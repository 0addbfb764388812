"""A release: what is written where, what is refused, and what the packages hold."""

from __future__ import annotations

import datetime
import fnmatch
import importlib.util
import itertools
import re
import subprocess
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

import outrider

ROOT = Path(__file__).parents[2]
TODAY = datetime.date(2030, 1, 2)


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("outrider_release", ROOT / "deploy" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def copy(release: ModuleType, tmp_path: Path) -> Path:
    for path in (release.VERSION_FILE, release.MANIFEST, *release.projects_of(ROOT)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text((ROOT / path).read_text())
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n* New.\n\n## 0.0.1 - 2029-01-01\n\n* Old.\n"
    )
    return tmp_path


def test_a_release_writes_its_version_everywhere(release: ModuleType, copy: Path) -> None:
    assert release.current(copy) == outrider.__version__
    release.prepare(copy, "9.8.7", TODAY)
    assert release.current(copy) == "9.8.7"
    assert "image: outrider:9.8.7\n" in (copy / release.MANIFEST).read_text()
    assert (copy / "CHANGELOG.md").read_text() == (
        "# Changelog\n\n## Unreleased\n\n## 9.8.7 - 2030-01-02\n\n* New.\n\n## 0.0.1 - 2029-01-01\n\n* Old.\n"
    )


def test_the_changelog_has_a_section_for_each_release_in_the_form_of_keep_a_changelog() -> None:
    text = (ROOT / "CHANGELOG.md").read_text()
    first, *released = re.findall(r"^## (.+)$", text, re.MULTILINE)
    assert first == "Unreleased"
    assert released[-1].startswith("0.1.0 - ")
    for title in released:
        version, date = title.split(" - ")
        assert re.fullmatch(r"\d+\.\d+\.\d+\S*", version), title
        assert datetime.date.fromisoformat(date), title
    kinds = {title.partition(":")[0] for title in re.findall(r"^### (.+)$", text, re.MULTILINE)}
    assert kinds <= {"Added", "Changed", "Deprecated", "Removed", "Fixed", "Security", "Known limits"}


def test_what_is_no_release_is_refused(release: ModuleType, copy: Path) -> None:
    for version, message in (("banana", "x.y.z"), ("1.0", "x.y.z"), ("0.0.1", "next version")):
        with pytest.raises(SystemExit, match=message):
            release.prepare(copy, version, TODAY)
    release.prepare(copy, "9.8.7", TODAY)
    with pytest.raises(SystemExit, match="nothing under Unreleased"):
        release.prepare(copy, "9.8.8", TODAY)


def test_all_distributions_have_one_version_and_ask_for_one_another_by_it(release: ModuleType, copy: Path) -> None:
    release.prepare(copy, "9.8.7", TODAY)
    for root, version in ((ROOT, outrider.__version__), (copy, "9.8.7")):
        paths = release.projects_of(root)
        assert len(paths) == 12
        for path in paths:
            project = tomllib.loads((root / path).read_text())["project"]
            assert project["version"] == version
            extras = project.get("optional-dependencies", {}).values()
            for needed in itertools.chain(project["dependencies"], *extras):
                if needed.startswith("outrider-"):
                    assert needed.endswith(f"=={version}"), (path, needed)


def test_every_distribution_brings_its_licence(release: ModuleType) -> None:
    paths = release.projects_of(ROOT)
    assert paths
    for path in paths:
        assert tomllib.loads((ROOT / path).read_text())["project"]["license-files"] == ["LICENSE"]
        assert (ROOT / path).with_name("LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_the_source_distribution_has_all_but_large_test_data() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git here")
    target = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["sdist"]
    included = tuple(path.removeprefix("/") for path in target["include"])
    excluded = [each.replace("**", "*") for each in target["exclude"]]
    outside, size = set(), 0
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if not name.startswith(included) and name != "pyproject.toml":  # which every source distribution has
            outside.add(name.partition("/")[0])
        elif not any(fnmatch.fnmatch(f"/{name}", each) for each in excluded) and path.is_file():
            size += path.stat().st_size
    assert outside <= {".ci", ".github", ".gitignore", ".pre-commit-config.yaml", "weights"}  # weights are fetched
    assert size < 10 << 20
