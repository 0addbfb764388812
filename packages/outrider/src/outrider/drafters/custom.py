"""Draft sources written by users: ``--draft package.module:Class`` (docs/sources.md)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import cast

from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.errors import ConfigError


def load(name: str, context: DrafterContext) -> Drafter:
    """Import a class and construct it, with the ``DrafterContext`` if its constructor takes an argument.

    The class derives from ``Drafter`` or has its methods; only ``propose`` is required.

    Raises:
        ConfigError: the class cannot be imported or constructed, or lacks ``propose``.
    """
    module_name, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or not class_name.isidentifier():
        raise ConfigError(f"draft={name!r} is not valid: write package.module:Class")
    try:
        module = import_module(module_name)
    except Exception as error:
        raise ConfigError(f"draft={name!r} cannot be imported: {type(error).__name__}: {error}") from error
    kind = getattr(module, class_name, None)
    if not isinstance(kind, type):
        raise ConfigError(f"draft={name!r}: {module_name} ({module.__file__}) has no class {class_name}")
    if not callable(getattr(kind, "propose", None)):
        raise ConfigError(f"draft={name!r} lacks propose: a draft source is a class with that method")
    try:
        make = _complete(kind)
        return make(context) if _takes_argument(kind) else make()
    except Exception as error:
        raise ConfigError(f"draft={name!r} cannot be made: {type(error).__name__}: {error}") from error


def _complete(kind: type) -> Callable[..., Drafter]:
    """``kind``, with ``Drafter``'s defaults for the methods that it lacks."""
    if issubclass(kind, Drafter):
        return kind
    return cast("Callable[..., Drafter]", type(kind.__name__, (kind, Drafter), {"__module__": kind.__module__}))


def _takes_argument(kind: type) -> bool:
    """Whether the constructor has a positional parameter without a default."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except ValueError:  # a class written in C has no signature
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)
