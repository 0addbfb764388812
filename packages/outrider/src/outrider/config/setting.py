"""A draft source and its options in one word, as the chat's ``/draft`` and ``outrider bench --source`` take them."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from outrider.config.combination import check_known
from outrider.config.speculation import VERIFIERS, SpeculationParams
from outrider.errors import ConfigError


def parse_source(setting: str, default_k: int | str) -> SpeculationParams:
    """``SOURCE[:K][:VERIFIER][:FIELD=VALUE...]``, the fields being those of ``SpeculationParams``.

    As in ``lookup``, ``ngram:8``, ``suffix+recycling:auto:tree_nodes=24``, ``model:4:rejection`` or
    ``eagle:tree=dynamic``.
    """
    source, *rest = setting.split(":")
    check_known(source)
    options: dict[str, Any] = {"spec_length": default_k}
    known = {field.name for field in fields(SpeculationParams)}
    given: set[str] = set()
    for part in rest:
        name, _, value = part.partition("=")
        if not value:
            name, value = ("verifier" if part in VERIFIERS else "spec_length"), part
        if name not in known - given or (name == "spec_length" and not (value.isdigit() or value == "auto")):
            raise ConfigError(
                f"source={setting!r} cannot be read at {part!r}: write SOURCE, then perhaps :K, :auto, :VERIFIER or "
                ":FIELD=VALUE"
            )
        given.add(name)
        options[name] = _value(value)
    return SpeculationParams(draft=source, **options)


def _value(text: str) -> bool | float | str:
    if text in ("true", "false"):
        return text == "true"
    number = float(text) if text.replace(".", "", 1).isdigit() else None
    return text if number is None else int(number) if text.isdigit() else number
