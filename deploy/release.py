"""Makes a release: `make release VERSION=x.y.z` checks, builds and tags it. Nothing is pushed or uploaded.

python deploy/release.py 0.2.0 --prepare    # the version, the changelog and the manifests, in a commit
python deploy/release.py 0.2.0 --tag        # the tag v0.2.0 on that commit
"""

from __future__ import annotations

import datetime
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
VERSION_FILE = Path("packages/outrider/src/outrider/__init__.py")
CHANGELOG = Path("CHANGELOG.md")
MANIFEST = Path("deploy/kubernetes/outrider.yaml")
_VERSION = re.compile(r"\d+\.\d+\.\d+((a|b|rc)\d+)?")


def current(root: Path) -> str:
    """The version of the package."""
    found = re.search(r'^__version__ = "(.+)"$', (root / VERSION_FILE).read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def prepare(root: Path, version: str, today: datetime.date) -> list[Path]:
    """Write ``version`` wherever it stands, and give the changelog's unreleased changes its heading.

    Returns the files that changed. Raises SystemExit if ``version`` is none, or nothing was noted for it.
    """
    if not _VERSION.fullmatch(version):
        raise SystemExit(f"VERSION={version!r} is no version: use x.y.z, perhaps with a1, b1 or rc1 behind it")
    changes = (root / CHANGELOG).read_text(encoding="utf-8")
    if f"\n## {version} " in changes:
        raise SystemExit(f"CHANGELOG.md has a section {version} already: choose the next version")
    head, mark, rest = changes.partition("## Unreleased\n")
    noted = rest.partition("\n## ")[0].strip()
    if not mark or not noted:
        raise SystemExit("CHANGELOG.md has nothing under Unreleased: say what changes for a user first")
    _write(root / CHANGELOG, f"{head}## Unreleased\n\n## {version} - {today.isoformat()}\n{rest}")
    projects = projects_of(root)
    for path, pattern, instead in (
        (VERSION_FILE, r'^__version__ = ".+"$', f'__version__ = "{version}"'),
        (MANIFEST, r"image: outrider:\S+", f"image: outrider:{version}"),
        *((path, r'^version = ".+"$', f'version = "{version}"') for path in projects),
    ):
        text, count = re.subn(pattern, instead, (root / path).read_text(encoding="utf-8"), flags=re.MULTILINE)
        assert count == 1, path
        _write(root / path, text)
    for path in projects:  # the distributions of one release belong together
        text = (root / path).read_text(encoding="utf-8")
        _write(root / path, re.sub(r'"(outrider-\w+)==[^"]+"', rf'"\1=={version}"', text))
    return [CHANGELOG, VERSION_FILE, MANIFEST, *projects]


def projects_of(root: Path) -> list[Path]:
    """The ``pyproject.toml`` of each distribution, relative to ``root``."""
    return [
        path.relative_to(root) for path in (root / "pyproject.toml", *sorted(root.glob("packages/*/pyproject.toml")))
    ]


def main(version: str, step: str) -> None:
    if _git("status", "--porcelain"):
        raise SystemExit("the working tree has changes: commit or stash them first")
    if _git("tag", "--list", f"v{version}"):
        raise SystemExit(f"the tag v{version} exists: choose the next version")
    if step == "--prepare":
        paths = prepare(ROOT, version, datetime.date.today())
        _git("commit", "--quiet", "--message", f"Release {version}", *map(str, paths))
    elif step == "--tag":
        if current(ROOT) != version:
            raise SystemExit(f"the package is {current(ROOT)}, not {version}: run --prepare first")
        _git("tag", "--annotate", f"v{version}", "--message", f"Outrider {version}")
        print(f"tagged v{version}; to publish it: git push --follow-tags")
    else:
        raise SystemExit(f"{step!r} is no step: use --prepare or --tag")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
