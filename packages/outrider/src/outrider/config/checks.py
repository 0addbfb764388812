"""Checks of the values of options."""

from __future__ import annotations

import math
from collections.abc import Iterable

from outrider.errors import InvalidRequestError


def require(ok: bool, param: str, value: object, remedy: str) -> None:
    if not ok:
        raise InvalidRequestError(f"{param}={value!r} is not valid: {remedy}", param=param)


def is_finite(x: object) -> bool:
    return isinstance(x, int | float) and not isinstance(x, bool) and math.isfinite(x)


def is_int(x: object) -> bool:
    return isinstance(x, int) and not isinstance(x, bool)


def as_ids(param: str, ids: Iterable[int] | None) -> tuple[int, ...]:
    values = tuple(ids or ())
    for i in values:
        require(is_int(i) and i >= 0, param, i, "token ids are integers of at least 0")
    return values
