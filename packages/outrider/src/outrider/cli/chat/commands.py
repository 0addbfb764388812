"""Commands of the chat: lines that begin with a slash."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from outrider.cli.chat import settings
from outrider.cli.chat.quotes import unquoted
from outrider.cli.shared.screen import summary
from outrider.config.setting import parse_source
from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from outrider.cli.chat.session import Session

KEYS = """Enter sends. Alt-Enter begins a new line, and so does Enter between \"\"\" and \"\"\".
Up and down walk through what was typed before. Tab completes commands.
Ctrl-C stops an answer, and once more leaves. Ctrl-D leaves."""


@dataclass(frozen=True)
class Command:
    """A command. ``run`` gets the text after the name."""

    usage: str
    about: str
    run: Callable[[Session, str], None]

    @property
    def name(self) -> str:
        return self.usage.split()[0]


def run_command(session: Session, line: str) -> bool:
    """Run the command of a line; False to leave. Raises OutriderError if the command fails."""
    name, _, rest = line.strip().partition(" ")
    name = _OTHER_NAMES.get(name, name)
    if name == "/bye":
        return False
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, [*COMMANDS, *_OTHER_NAMES], n=1)
        hint = f"did you mean {near[0]}?" if near else "/help lists them"
        raise InvalidRequestError(f"there is no command {name}: {hint}; a message may begin with a space and a slash")
    COMMANDS[name].run(session, rest.strip())
    return True


def _help(session: Session, rest: str) -> None:
    table = Table.grid(padding=(0, 2))
    for command in COMMANDS.values():
        table.add_row(command.usage, command.about)
    session.console.print(table)
    session.console.print(f"\n{KEYS}", style="dim")


def _set(session: Session, rest: str) -> None:
    name, _, text = rest.partition(" ")
    found = settings.listed(session.params, session.view, session.system)
    if not name:
        table = Table.grid(padding=(0, 2))
        for setting, value, meaning in found:
            table.add_row(setting, value, meaning)
        session.console.print(table)
        return
    name, text = settings.own_name(name), unquoted(text.strip())
    if not text:
        session.console.print(next(f"{name}={value}" for setting, value, _ in found if setting == name))
    elif name == "system":
        session.system = None if text == "default" else text
    elif name in settings.SWITCHES:
        session.view = settings.changed_view(session.view, name, text)
    else:
        session.params = settings.changed_params(session.params, name, text)


def _draft(session: Session, rest: str) -> None:
    if rest:
        session.use(parse_source(rest, session.llm.speculation.spec_length))
    current = session.speculation
    session.note(f"draft {current.draft}, K={current.spec_length}, verifier {current.verifier}")
    if not rest:
        session.note(f"there are none, {', '.join(session.llm.drafters)}; write /draft SOURCE[:K], as in suffix:8")


def _reset(session: Session, rest: str) -> None:
    system = session.system
    session.begin(system=system)
    session.note("A new conversation.")


def _undo(session: Session, rest: str) -> None:
    session.note(f"Taken back: {session.undo()}")


def _save(session: Session, rest: str) -> None:
    if not session.messages:
        raise InvalidRequestError("there is nothing to save yet")
    usual = session.file or Path(f"chat-{datetime.now():%Y%m%d-%H%M%S}.json")
    session.save(Path(unquoted(rest)) if rest else usual)


def _load(session: Session, rest: str) -> None:
    if not rest:
        raise InvalidRequestError("/load needs a file: give one that /save wrote")
    session.load(Path(unquoted(rest)))


def _stats(session: Session, rest: str) -> None:
    session.note("no answer yet" if session.last is None else summary(session.last))


def _race(session: Session, rest: str) -> None:
    from outrider.cli.chat.race import race

    race(session, unquoted(rest))


COMMANDS = {
    command.name: command
    for command in (
        Command("/help", "this list", _help),
        Command("/set [NAME [VALUE]]", "show settings, or change one: /set temperature 0.7", _set),
        Command("/draft [SOURCE[:K]]", "show what drafts, or change it: /draft suffix:8", _draft),
        Command("/race [MESSAGE]", "answer without and with drafts, side by side", _race),
        Command("/regenerate", "answer the last message again", lambda session, rest: session.regenerate()),
        Command("/undo", "take back the last message and its answer", _undo),
        Command("/reset", "begin a new conversation", _reset),
        Command("/save [FILE]", "write the conversation as JSON", _save),
        Command("/load FILE", "go on with a saved conversation", _load),
        Command("/stats", "statistics of the last answer", _stats),
        Command("/bye", "leave (also /exit, /quit, Ctrl-D)", lambda session, rest: None),
    )
}
_OTHER_NAMES = {"/exit": "/bye", "/quit": "/bye", "/clear": "/reset", "/?": "/help", "/regen": "/regenerate"}
