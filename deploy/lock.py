"""Writes the exact versions of a developer's environment: ``make lock``.

    python deploy/lock.py > requirements-dev.txt

Listed is what ``outrider[dev]`` needs, directly or through others, as installed in the environment that runs this file.
The distributions of the workspace themselves, local builds (``torch 2.13.0+cpu``) and package indexes are left out, so
that the file fits any checkout. pip reads it as constraints: ``make LOCKED=1``.
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Iterator

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HEAD = "# Versions that developers and CI install. Written by `make lock`; `make LOCKED=1` installs them."


def needed(name: str, extras: frozenset[str], seen: set[tuple[str, frozenset[str]]]) -> Iterator[str]:
    """Canonical names of the installed distributions that ``name`` with ``extras`` needs, itself among them.

    Raises:
        SystemExit: a distribution that is needed is not installed.
    """
    if (name, extras) in seen:
        return
    seen.add((name, extras))
    try:
        found = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        raise SystemExit(f"{name} is not installed: run `make` first") from None
    yield name
    for requirement in map(Requirement, found.requires or ()):
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in extras or {""}):
            yield from needed(canonicalize_name(requirement.name), frozenset(requirement.extras), seen)


def lines() -> list[str]:
    """``name==version`` of each, in alphabetical order."""
    names = set(needed("outrider", frozenset({"dev"}), set()))
    pinned = sorted(name for name in names if name not in ("pip", "setuptools") and not name.startswith("outrider"))
    return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in pinned]


if __name__ == "__main__":
    sys.stdout.write("\n".join([HEAD, *lines(), ""]))
