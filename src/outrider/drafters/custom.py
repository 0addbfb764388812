"""Draft sources written by users: ``--draft package.module:Class`` (docs/sources.md)."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import cast

from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.errors import ConfigError

METHODS = ("start", "propose", "observe", "finish")


def load(name: str, around: DrafterContext) -> Drafter:
    """Import a class and make one of it: from ``DrafterContext`` if its constructor takes an argument.

    Raises:
        ConfigError: it cannot be imported or made, or lacks a method of ``Drafter``.
    """
    module_name, _, class_name = name.partition(":")
    if not all(part.isidentifier() for part in module_name.split(".")) or not class_name.isidentifier():
        raise ConfigError(f"draft={name!r} is not valid: write package.module:Class")
    try:
        module = import_module(module_name)
    except Exception as error:
        raise ConfigError(f"draft={name!r} cannot be imported: {type(error).__name__}: {error}") from error
    kind = getattr(module, class_name, None)
    if not callable(kind):
        raise ConfigError(f"draft={name!r}: {module_name} ({module.__file__}) has no class {class_name}")
    missing = [method for method in METHODS if not callable(getattr(kind, method, None))]
    if missing:
        raise ConfigError(f"draft={name!r} lacks {', '.join(missing)}: a draft source has {', '.join(METHODS)}")
    try:
        return cast("Drafter", kind(around) if _takes_argument(kind) else kind())
    except Exception as error:
        raise ConfigError(f"draft={name!r} cannot be made: {type(error).__name__}: {error}") from error


def _takes_argument(kind: object) -> bool:
    """Whether the constructor has a positional parameter without a default."""
    try:
        parameters = inspect.signature(cast("type", kind)).parameters.values()
    except ValueError:  # written in C: it has no signature to look at
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return any(p.kind in positional and p.default is inspect.Parameter.empty for p in parameters)
