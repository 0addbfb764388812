"""The user's input: with editing, history and completion on a terminal; line by line otherwise."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Protocol

from outrider.cli.chat.quotes import QUOTES, is_open, without_quotes
from outrider.errors import InvalidRequestError
from outrider.utils.system import private_file

if TYPE_CHECKING:
    from pathlib import Path

    from prompt_toolkit.history import History
    from prompt_toolkit.key_binding import KeyBindings

    from outrider.cli.chat.session import Session

_PROMPT, _MORE = ">>> ", "... "


class Prompt(Protocol):
    """A source of messages and commands."""

    def read(self) -> str:
        """The next input, perhaps of several lines. Raises EOFError at the end, KeyboardInterrupt for Ctrl-C."""
        ...


def make_prompt(session: Session, *, history: bool) -> Prompt:
    """A ``TerminalPrompt`` if stdin and stdout are a capable terminal, else a ``LinePrompt``."""
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty() and os.environ.get("TERM", "dumb") != "dumb"
    if not is_terminal:
        return LinePrompt()
    from outrider.utils.user_cache import state_root

    return TerminalPrompt(session, state_root() / "chat-history" if history else None)


class LinePrompt:
    """Lines of stdin; with a prompt on a terminal that cannot move its cursor."""

    def read(self) -> str:
        text = self._line(_PROMPT)
        while is_open(text):
            try:
                text += "\n" + self._line(_MORE)
            except EOFError:
                raise InvalidRequestError(f"the input ends within {QUOTES}: close them") from None
        return without_quotes(text)

    def _line(self, prompt: str) -> str:
        if sys.stdin.isatty():
            print(prompt, end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError:
            raise InvalidRequestError("stdin is not UTF-8 text: convert it") from None
        if not line:
            if sys.stdin.isatty():
                print(file=sys.stderr)
            raise EOFError
        return line.removesuffix("\n")


class TerminalPrompt:
    """A line editor: Emacs keys, lasting history, several lines, completion of commands."""

    def __init__(self, session: Session, history: Path | None) -> None:
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import InMemoryHistory

        from outrider.cli.chat.completion import ChatCompleter

        self._session: PromptSession[str] = PromptSession(
            _PROMPT,
            prompt_continuation=_MORE,
            multiline=True,
            history=InMemoryHistory() if history is None else _file_history(history),
            completer=ChatCompleter(session),
            complete_while_typing=True,
            key_bindings=_keys(),
            enable_history_search=False,
            reserve_space_for_menu=6,
        )

    def read(self) -> str:
        return without_quotes(self._session.prompt())


def _file_history(path: Path) -> History:
    """History in a file that the user alone can read; in memory if the file is not writable."""
    from prompt_toolkit.history import FileHistory, InMemoryHistory

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(private_file(path, "a"))
    except OSError:
        return InMemoryHistory()
    return FileHistory(path)


def _keys() -> KeyBindings:
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if is_open(buffer.text):
            buffer.newline(copy_margin=False)
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.newline(copy_margin=False)

    @keys.add("c-c")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.text:
            buffer.reset(append_to_history=True)  # the up key brings it back
        else:
            event.app.exit(exception=KeyboardInterrupt, style="class:aborting")

    return keys
