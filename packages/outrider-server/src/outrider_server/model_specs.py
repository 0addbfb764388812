"""The models of ``outrider serve --models``: names for clients, and the source of each model."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.errors import ConfigError

MAX_NAME = 128
_EXAMPLE = 'write NAME=MODEL, or {"NAME": {"model": "MODEL", "draft": "suffix"}}'


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """One of several models that a server may load."""

    name: str
    """The name that clients use."""
    model: str
    """A built-in name, a folder, a .gguf file or a hub id."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Options of its engine, before those that the command line gives for all."""


def usual_name(model: str) -> str:
    """The name that clients use where the operator gives none."""
    return os.path.basename(model.rstrip("/")) if os.path.exists(model) else model


def parse_models(texts: Iterable[str]) -> tuple[ModelSpec, ...]:
    """The models in the values of ``--models``: lists of ``NAME=MODEL``, or JSON objects.

        chat=smollm2-135m-instruct,code=./coder            the name may be left out
        {"chat": "smollm2-135m-instruct", "code": {"model": "./coder", "draft": "suffix"}}

    Raises ConfigError for values that cannot be read, and for a name that is given twice.
    """
    specs: list[ModelSpec] = []
    for text in texts:
        specs += _from_json(text) if text.lstrip().startswith("{") else _from_list(text)
    for i, spec in enumerate(specs):
        if not spec.name or len(spec.name) > MAX_NAME or not spec.name.isprintable() or spec.name == "*":
            raise ConfigError(f"models: the name {spec.name[:40]!r} is not valid: use 1 to {MAX_NAME} plain characters")
        if any(spec.name == other.name for other in specs[:i]):
            raise ConfigError(f"models: the name {spec.name!r} is given twice: name one of them differently")
    return tuple(specs)


def _from_list(text: str) -> Iterable[ModelSpec]:
    for part in text.split(","):
        name, equals, model = part.strip().partition("=")
        if not equals:
            name, model = usual_name(name), name
        if not model:
            raise ConfigError(f"models={text!r} names no model at {part!r}: {_EXAMPLE}")
        yield ModelSpec(name=name, model=model)


def _from_json(text: str) -> Iterable[ModelSpec]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"models={text!r} is not JSON ({error}): {_EXAMPLE}") from None
    for name, given in found.items():
        options = {"model": given} if isinstance(given, str) else given
        if not isinstance(options, dict) or not isinstance(options.get("model"), str) or not options["model"]:
            raise ConfigError(f"models: {name!r} names no model: {_EXAMPLE}")
        own = {key: value for key, value in options.items() if key != "model"}
        yield ModelSpec(name=name, model=options["model"], options=own)
