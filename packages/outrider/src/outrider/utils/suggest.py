"""Suggestions for an unknown name."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

_LONGEST = 100  # characters of a name that are compared


def close_to(name: str, known: Iterable[str], *, count: int = 1, cutoff: float = 0.6) -> list[str]:
    """Those of ``known`` that are most like ``name``, in any case; ``count`` of them at most."""
    names = {each.lower(): each for each in known}
    return [names[near] for near in difflib.get_close_matches(name[:_LONGEST].lower(), names, n=count, cutoff=cutoff)]


def unknown(option: str, value: object, known: Iterable[str]) -> str:
    """The message that ``option`` has a ``value`` which is none of ``known``."""
    names = list(known)
    near = close_to(str(value), names, cutoff=0.8)
    remedy = f"did you mean {near[0]}? Use" if near else "use"
    return f"{option}={value!r} is unknown: {remedy} one of {', '.join(names)}"
