"""Help that fits a screen: options in groups, the common ones first, and the rest with ``--help-all``."""

from __future__ import annotations

import copy
import functools
import inspect
import re
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

LONG_HELP: dict[str, Callable[[], str]] = {}
"""By option: the help that ``--help-all`` shows instead of the short one."""

_ALL = "outrider.help_all"
_NARROW = 70  # below this many columns, an option's help stands under its name


def add(app: typer.Typer, name: str, command: Callable[..., Any], **settings: Any) -> None:
    """Add ``command`` to ``app``; --help-all also shows its hidden options that have a help text."""
    app.command(name, cls=_Command, **settings)(_with_help_all(command))


def alone(name: str, command: Callable[..., Any], **settings: Any) -> typer.Typer:
    """``command`` as a separate application, for an entry point; ``settings``: of ``app.command``."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    add(app, name, command, **settings)
    return app


def print_without_command(context: typer.Context) -> None:
    """Callback of a group: prints its help if no command was given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted and not context.resilient_parsing:
        context.meta[_ALL] = True
        typer.echo(context.get_help())
        raise typer.Exit


_HelpAll = Annotated[
    bool,
    typer.Option(
        "--help-all", is_eager=True, allow_from_autoenv=False, callback=_show_all, help="Show the other options too."
    ),
]


def _with_help_all(command: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(command)
    def run(*, help_all: bool = False, **values: Any) -> Any:
        return command(**values)

    parameters = [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for parameter in inspect.signature(command, eval_str=True).parameters.values()
    ]
    parameters.append(inspect.Parameter("help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_HelpAll))
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


class _Command(TyperCommand):
    """A command that writes its options in groups."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write the options below their headings (``rich_help_panel``)."""
        everything = ctx.meta.get(_ALL, False)
        some_are_rare = any(_is_rare(param) for param in self.params)
        groups: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for param in self.get_params(ctx):
            record = _record(param, ctx, everything)
            if record is not None and (param.name != "help_all" or some_are_rare):
                groups.setdefault(_group(param), []).append(record)
        groups["Help"] = groups.pop("Help")
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records, col_max=30 if formatter.width >= _NARROW else 6)


def _is_rare(param: Any) -> bool:
    return bool(getattr(param, "hidden", False) and param.help)


def _group(param: Any) -> str:
    if param.param_type_name == "argument":
        return "Arguments"
    if param.name in ("help", "help_all"):
        return "Help"
    return getattr(param, "rich_help_panel", None) or "Options"


def _record(param: Any, ctx: Any, everything: bool) -> tuple[str, str] | None:
    """The two columns of an option; None if it is hidden."""
    shown = copy.copy(param)
    if not everything:
        shown.show_envvar = False  # one sentence of the command tells it for all
    elif getattr(param, "help", None):
        shown.hidden, shown.help = False, LONG_HELP[param.name]() if param.name in LONG_HELP else param.help
    record: tuple[str, str] | None = shown.get_help_record(ctx)
    return record and (re.sub(r"<list\[(\w+)]>", lambda kind: f"<{kind[1].lower()}>", record[0]), record[1])
