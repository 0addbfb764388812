"""Options of the command line made from the fields of dataclasses: names, types, defaults and help are theirs."""

from __future__ import annotations

import functools
import inspect
import json
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from outrider.cli.shared import flags
from outrider.config import EngineConfig, SamplingParams, aliases
from outrider.config.fields import default_of, field_docs
from outrider.config.speculation import SpeculationParams
from outrider.errors import ConfigError, InvalidRequestError

Given = Mapping[str, Any]
"""Fields given on the command line or in a file that differ from their defaults."""

NO_FLAG = frozenset(
    {"speculation", "cuda_graphs", "counts_as_q", "allowed_token_ids", "banned_token_ids"}
    | {"stop_token_ids", "n", "prompt_logprobs", "logprobs_mode", "skip_special_tokens", "structured", "model"}
    | {"early_stopping", "num_beam_groups", "diversity_penalty"}
)
"""Fields without an option (``model`` is declared by each command)."""

_SHORT = {
    (SpeculationParams, "spec_length"): "-k",
    (SamplingParams, "max_tokens"): "-n",
    (SamplingParams, "temperature"): "-t",
}


def spec_length(value: str | int) -> int | str:
    """``auto`` or a number; ``SpeculationParams`` checks its range."""
    return int(value) if str(value).lstrip("-").isdigit() else str(value)


def parse_logit_bias(pairs: Iterable[str]) -> dict[int, float]:
    """``["42:-1.5"]`` to ``{42: -1.5}``; raises InvalidRequestError naming the unreadable pair."""
    bias: dict[int, float] = {}
    for pair in pairs:
        token, _, value = pair.partition(":")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise InvalidRequestError(
                f"logit_bias={pair!r} is not valid: write ID:VALUE, as in 42:-1.5", param="logit_bias"
            ) from None
    return bias


def read_prediction(path: Path) -> str:
    """The text of ``--prediction``; raises InvalidRequestError if the file is unreadable."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"prediction={str(path)!r} cannot be read: {error}", param="prediction") from None


def read_speculative_config(text: str) -> Any:
    """The value of vLLM's ``--speculative-config``."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"speculative_config={text!r} is not JSON: {error}") from None


_READ: Mapping[str, tuple[Any, Callable[[Any], Any]]] = {
    "logit_bias": (list[str], parse_logit_bias),
    "prediction": (Path, read_prediction),
}
"""Fields in another form on the command line: its type, and its parser."""


def option(kind: type, name: str) -> Any:
    """The option for a field: ``Annotated[int, option(EngineConfig, "threads")]``."""
    table = flags.table_of(kind)
    default = default_of(next(field for field in fields(kind) if field.name == name))
    flag = "--" + table.singular.get(name, name).replace("_", "-")
    names = (flag, _SHORT[kind, name]) if (kind, name) in _SHORT else (flag,) if default is False else ()
    usual = default is None or default == () or name == "draft"
    more: dict[str, Any] = {"metavar": "K", "parser": spec_length} if name == "spec_length" else {}
    if name in table.choices:
        more["autocompletion"] = flags.completer(table.choices[name])
    return typer.Option(
        *names,
        help=table.help.get(name) or field_docs(kind).get(name),
        show_default=table.shown.get(name, True) if usual else True,
        hidden=name in table.hidden,
        rich_help_panel=table.group.get(name),
        **more,
    )


@dataclass(frozen=True)
class _Generated:
    """One option of one command."""

    field: str
    parameter: inspect.Parameter
    read: Callable[[Any], Any]
    default: Any  # the field's

    def put(self, value: Any, given: dict[str, Any]) -> None:
        """Add ``value`` to ``given`` unless it is the default."""
        if value is not None and value != []:
            value = self.read(value)
            if value != self.default:
                given[self.field] = value


def _generated(kind: type, name: str, **override: Any) -> _Generated:
    default = default_of(next(field for field in fields(kind) if field.name == name))
    form = _form(_hints(kind)[name])
    table = flags.table_of(kind)
    form, read = table.read.get(name) or _READ.get(name) or (form, tuple if form == list[str] else _same)
    several = form == list[str]
    shown = override.get(name, None if several else default)
    annotation = form | None if several or default is None else form
    parameter = inspect.Parameter(
        table.singular.get(name, name),
        inspect.Parameter.KEYWORD_ONLY,
        default=shown,
        annotation=Annotated[Any if name == "spec_length" else annotation, option(kind, name)],
    )
    return _Generated(name, parameter, read, default)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _same(value: Any) -> Any:
    return value


def _form(hint: Any) -> Any:
    """The type that the command line reads for a field of the type ``hint``; choices are left to the dataclass."""
    parts = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if any(typing.get_args(part)[:1] == (str,) and typing.get_origin(part) is not Literal for part in parts):
        return list[str]
    plain = [part for part in parts if part in (int, float, bool)]
    return plain[0] if plain else str


def _told(alias: str, name: str, value: Any) -> Any:
    """The value of an alias, with a line on stderr that gives our name."""
    flag, own = (f"--{word.replace('_', '-')}" for word in (alias, name))
    typer.echo(f"outrider: {aliases.note(flag, own)}", err=True)
    return value


def _elsewhere(names: Collection[str]) -> list[_Generated]:
    """Hidden options: the names that vLLM and transformers use for ``names``."""
    hints = _hints(EngineConfig)
    found: list[tuple[str, Any, Callable[[Any], Any]]]
    found = [
        (alias, _form(hints[name]), functools.partial(_told, alias, name))
        for alias, name in aliases.ENGINE.items()
        if name in names
    ]
    if "draft" in names:
        found.append(("speculative_config", str, read_speculative_config))
    return [
        _Generated(
            alias,
            inspect.Parameter(
                alias,
                inspect.Parameter.KEYWORD_ONLY,
                default=None,
                annotation=Annotated[form | None, typer.Option(hidden=True)],
            ),
            read,
            None,
        )
        for alias, form, read in found
    ]


def options_from(
    *kinds: type, only: Collection[str] | None = None, but: Collection[str] = (), **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: in place of its parameter ``given``, a command gets the fields of ``kinds`` as options.

    Args:
        only: names of the fields to take; None takes all but those in ``NO_FLAG``.
        but: names of further fields to leave out.
        defaults: the command's own defaults that differ from the fields'.
    """
    made = [
        _generated(kind, field.name, **defaults)
        for kind in kinds
        for field in fields(kind)
        if (field.name not in NO_FLAG if only is None else field.name in only) and field.name not in but
    ]
    made += _elsewhere([one.field for one in made])

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        parameters: list[inspect.Parameter] = []
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            if parameter.name == "given":
                parameters += [one.parameter for one in made]
            else:
                parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

        @functools.wraps(command)
        def run(**values: Any) -> None:
            given: dict[str, Any] = {}
            for one in made:
                one.put(values.pop(one.parameter.name), given)
            command(given=given, **values)

        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return run

    return decorate
