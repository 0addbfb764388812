"""Commands of other distributions: listed without importing them, imported when one is run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from outrider.cli.shared.help import alone
from outrider.extensions import (
    extension,
    extension_names,
    extension_summary,
    has_extension,
    is_known,
    missing_extension,
)

_HELP: Mapping[str, str] = {
    "serve": "Serve OpenAI's API, with a playground at /.",
    "replay": "Run recorded requests again.",
    "transcribe": "Write down what is said in a sound file.",
    "certify": "Test that drafts change nothing.",
    "referee": "Test any server with drafts.",
    "bench": "Time draft sources and other engines.",
    "plan": "Recommend a draft source by measurement.",
    "pick": "Recommend a draft source by rules.",
    "figures": "Draw the figures of the literature.",
    "train": "Train draft heads, draft models and tables.",
}
"""Help line of each known command, for ``--help`` without importing it."""
_HIDDEN = ("run", "ps")
"""Commands under another program's name."""


class Commands(TyperGroup):
    """A group of commands, including those of installed distributions."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name in extension_names("commands"):
            summary = _HELP.get(name) or extension_summary("commands", name)
            self.add_command(TyperCommand(name, short_help=summary, hidden=name in _HIDDEN))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """The command to run: imported now, if another distribution brings it.

        Raises:
            MissingExtensionError: no installed distribution brings it, and a known one would.
        """
        asked = args[0] if args else ""
        if asked not in self.commands and is_known("commands", asked):
            raise missing_extension("commands", asked, f"outrider {asked}")
        name, command, rest = super().resolve_command(ctx, args)
        return name, command if name is None else self.whole(name), rest

    def whole(self, name: str) -> Any:
        """The command itself, with its options: imported now, if another distribution brings it."""
        return _load(name) if has_extension("commands", name) else self.commands[name]


def _load(name: str) -> Any:
    """The command that an entry point names: a function, or a ``typer.Typer`` with settings or commands."""
    found = extension("commands", name)
    made = get_command(found if isinstance(found, typer.Typer) else alone(name, found))
    made.name = name
    return made
