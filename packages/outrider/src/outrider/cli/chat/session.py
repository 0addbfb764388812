"""A conversation with a model, and the operations of its commands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from outrider.cli.chat import files
from outrider.cli.chat.files import Message
from outrider.cli.chat.settings import View
from outrider.cli.chat.writing import make_writer
from outrider.cli.shared.screen import legend, stderr, summary
from outrider.config import SamplingParams, SpeculationParams
from outrider.engine.engine import Engine
from outrider.engine.request import Request, StepOutput
from outrider.errors import InvalidRequestError, OutriderError
from outrider.utils.interrupt import CtrlC
from outrider.weights.hub.catalog import resolve

if TYPE_CHECKING:
    from outrider.engine.request import Request
    from outrider.llm import LLM


class Session:
    """The messages so far, with the options and the display of answers."""

    def __init__(self, llm: LLM, params: SamplingParams, *, kept: Path | None) -> None:
        """``kept``: the file that is written after each answer; None keeps nothing."""
        self.llm, self.params, self.kept = llm, params, kept
        self.speculation: SpeculationParams = llm.speculation
        self.messages: list[Message] = []
        self.last: Request | None = None  # the last answer's
        self.stopped = False  # whether Ctrl-C ended the last answer
        self.file: Path | None = None  # the file last saved or loaded
        self.console = Console(highlight=False, emoji=False, markup=False)
        self.view = View(stats=self.console.is_terminal)
        self._notes = stderr()

    # -- notes beside the answers -----------------------------------------------------------------------------------

    def note(self, text: str) -> None:
        """Write a dim line to stderr."""
        self._notes.print(text, style="dim")

    def complain(self, text: str) -> None:
        """Write an error to stderr."""
        self._notes.print(f"outrider: {' '.join(text.split())}", style="red")

    def describe(self) -> str:
        """The model, its location, and its draft source."""
        config = self.llm.config
        folder = str(resolve(config.model)).replace(str(Path.home()), "~", 1)
        where = "" if folder == config.model else f" from {folder}"
        return f"{config.model}{where} · draft {self.speculation.draft}"

    # -- the conversation -------------------------------------------------------------------------------------------

    @property
    def system(self) -> str | None:
        """The system message, which comes first."""
        first = self.messages[0] if self.messages else None
        return first["content"] if first is not None and first["role"] == "system" else None

    @system.setter
    def system(self, text: str | None) -> None:
        rest = [message for message in self.messages if message["role"] != "system"]
        self.messages = rest if text is None else [{"role": "system", "content": text}, *rest]

    def begin(self, messages: Sequence[Message] = (), system: str | None = None) -> None:
        """Start with ``messages``; ``system`` replaces their system message."""
        self.messages, self.last = list(messages), None
        if system is not None:
            self.system = system
        if messages:
            self.note(f"{len(messages)} messages. {self._open_question()}".strip())

    def _open_question(self) -> str:
        asked = bool(self.messages) and self.messages[-1]["role"] == "user"
        return "The last one has no answer yet: /regenerate writes it." if asked else ""

    def ask(self, text: str) -> None:
        """Add a message, and answer it. A message without any answer is removed."""
        self.messages.append({"role": "user", "content": text})
        try:
            self._answer()
        finally:
            if self.messages[-1]["role"] == "user":
                self.messages.pop()

    def regenerate(self) -> None:
        """Answer the last message again; the old answer stays if the new one fails."""
        old = self.take_back_answer()
        try:
            self._answer()
        finally:
            if self.messages[-1]["role"] == "user":
                self.messages += old

    def take_back_answer(self) -> list[Message]:
        """Remove the last answer, so that the conversation ends with a question. Returns the removed messages."""
        at = max((i for i, message in enumerate(self.messages) if message["role"] == "user"), default=None)
        if at is None:
            raise InvalidRequestError("there is no message to answer yet: write one")
        self.messages, old = self.messages[: at + 1], self.messages[at + 1 :]
        return old

    def undo(self) -> str:
        """Remove the last message and its answer. Returns the message."""
        self.take_back_answer()
        self.last = None
        text = self.messages.pop()["content"]
        self.keep()
        return text

    def _answer(self) -> None:
        self.stopped = False
        request = self.llm.request(self.messages, self.params, self.speculation)
        writer = make_writer(self.console, self.view)
        with CtrlC() as stop:
            try:
                for steps in steps_of(self.llm.engine, request, stop):
                    for step in steps:
                        writer.show(step)
            finally:
                writer.end()
                self.stopped = stop.pressed
                self.add_answer(request)
        self._report(request)

    def add_answer(self, request: Request) -> None:
        """Add a request's answer, if not empty, to the messages."""
        if request.text:
            self.last = request
            self.messages.append({"role": "assistant", "content": request.text})
            self.keep()

    def _report(self, request: Request) -> None:
        if self.stopped:
            self.note("Stopped. /regenerate answers anew; Ctrl-C once more leaves.")
        elif request.finish_reason == "length":
            limit = request.params.max_tokens
            cut = f"max_tokens={limit}" if request.stats.completion_tokens >= limit else "the end of the context"
            self.note(f"Cut off at {cut}: /set max_tokens, or /reset, makes room.")
        if self.view.stats and not self.stopped:
            if self.view.colour and self.console.is_terminal:
                self._notes.print(legend())
            self.note(summary(request))

    # -- files ------------------------------------------------------------------------------------------------------

    def keep(self) -> None:
        """Write the conversation to ``kept``; a failure turns this off."""
        if self.kept is not None:
            try:
                files.write(self.kept, self.messages)
            except OutriderError as error:
                self.kept = None
                self.complain(f"{error}, or use --no-history")

    def save(self, path: Path) -> None:
        """Write the conversation to ``path``, unless that is a file of another kind."""
        if not files.may_replace(path):
            raise InvalidRequestError(f"{str(path)!r} is there and no conversation: choose another name")
        files.write(path, self.messages)
        self.file = path
        self.note(f"{len(self.messages)} messages in {path}")

    def load(self, path: Path) -> None:
        """Continue a conversation from a file."""
        self.begin(files.read(path))
        self.file = path

    def use(self, speculation: SpeculationParams) -> None:
        """Draft by ``speculation`` from now on. Raises OutriderError if that is not possible here."""
        self.llm.request([1], replace(self.params, structured=None), speculation)
        self.speculation = speculation

    def leave(self) -> None:
        """Tell the conversation's file."""
        if self.kept is not None and self.last is not None:
            self.note(f"The conversation is in {self.kept}: `outrider chat --resume` goes on with it.")


def steps_of(engine: Engine, request: Request, stop: CtrlC) -> Iterator[list[StepOutput]]:
    """The outputs of each engine step for a lone request, until it ends or is stopped.

    Raises:
        OutriderError: the request failed.
    """
    engine.add(request)
    try:
        while request.finish_reason is None and request.error is None and not stop.pressed:
            yield engine.step()
    finally:
        engine.abort(request.id)
    if request.error is not None:
        raise request.error
