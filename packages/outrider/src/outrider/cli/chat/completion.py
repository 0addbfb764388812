"""Completion of commands by Tab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document

from outrider.cli.chat import settings
from outrider.cli.chat.commands import COMMANDS

if TYPE_CHECKING:
    from outrider.cli.chat.session import Session


class ChatCompleter(Completer):
    """Completes names of commands, settings, draft sources and files."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterator[Completion]:
        words = document.text_before_cursor.split(" ")
        last = words[-1]
        if not words[0].startswith("/"):
            return
        if len(words) == 1:
            choices = {name: command.about for name, command in COMMANDS.items()}
        elif words[0] in ("/load", "/save"):
            path = document.text_before_cursor[len(words[0]) + 1 :]
            yield from PathCompleter(expanduser=True).get_completions(Document(path), complete_event)
            return
        elif words[0] == "/draft" and len(words) == 2:
            choices = dict.fromkeys(("none", *self._session.llm.drafters), "")
        elif words[0] == "/set":
            found = settings.listed(self._session.params, self._session.view, None)
            choices = {name: meaning for name, _, meaning in found} if len(words) == 2 else {}
            if len(words) == 3 and words[1] in settings.SWITCHES:
                choices = {"on": "", "off": ""}
        else:
            return
        for name, meaning in choices.items():
            if name.startswith(last):
                yield Completion(name, start_position=-len(last), display_meta=meaning)
