"""Shared parts of the dataclasses of settings: documentation, names, checks of values, and a short ``repr``."""

from __future__ import annotations

import ast
import difflib
import functools
import inspect
import itertools
import math
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, fields
from typing import Any, TypeVar

from outrider.config.aliases import warn
from outrider.errors import ConfigError, InvalidRequestError, OutriderError

T = TypeVar("T", bound=type)


@functools.cache
def field_docs(kind: type) -> dict[str, str]:
    """The first paragraph of the string below each field of a dataclass, on one line.

    It is the help of the command line's option of that name; further paragraphs are for readers of the code. Python
    does not keep such strings, so they are read from the source. A class without source has no documentation.
    """
    try:
        source = inspect.getsource(sys.modules[kind.__module__])
    except (OSError, TypeError):
        return {}
    nodes = ast.parse(source).body
    body = next(node.body for node in nodes if isinstance(node, ast.ClassDef) and node.name == kind.__name__)
    docs: dict[str, str] = {}
    for node, below in itertools.pairwise(body):
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and isinstance(below, ast.Expr):
            text = ast.literal_eval(below.value)
            docs[node.target.id] = " ".join(inspect.cleandoc(text).split("\n\n")[0].split())
    return docs


def default_of(field: Field[Any]) -> Any:
    """A field's default; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def short_repr(self: Any) -> str:
    """The fields that differ from their defaults: ``SamplingParams(max_tokens=64)``."""
    given = ((f.name, getattr(self, f.name), default_of(f)) for f in fields(self))
    return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value, usual in given if value != usual)})"


def accept(
    owner: str,
    given: Mapping[str, Any],
    known: Collection[str],
    aliases: Mapping[str, str],
    error: type[OutriderError] = ConfigError,
) -> dict[str, Any]:
    """The options ``given``, renamed to the names of ``owner``.

    Args:
        known: the names of ``owner``.
        aliases: names of other libraries, and the names here.

    Raises:
        OutriderError: of the class ``error``: a name is unknown, or an option is given under two names.
    """
    found: dict[str, Any] = {}
    told: dict[str, str] = {}
    for name, value in given.items():
        own = aliases.get(name, name)
        if own not in known:
            near = difflib.get_close_matches(name, [*known, *aliases], n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(known)}"
            raise error(f"{owner} has no option {name!r}: {hint}")
        if own in found:
            raise error(f"{told[own]} and {name} are the same option: give one of them")
        found[own], told[own] = value, name
        if name in aliases:
            warn(name, own)
    return found


def checks_names(
    aliases: Mapping[str, str], error: type[ConfigError] | type[InvalidRequestError] = ConfigError
) -> Callable[[T], T]:
    """A decorator for dataclasses: other libraries' names are accepted, and a mistyped one is met with a suggestion."""

    def decorate(kind: T) -> T:
        plain = kind.__init__  # type: ignore[misc]
        known = tuple(field.name for field in fields(kind))

        @functools.wraps(plain)
        def init(self: Any, **given: Any) -> None:
            plain(self, **accept(kind.__name__, given, known, aliases, error))

        kind.__init__ = init  # type: ignore[misc]
        return kind

    return decorate


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
