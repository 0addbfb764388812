"""``/race``: the same message answered without and with drafts, side by side.

The same model writes both answers with the same seed, step by step: the one that has used less time takes the next
step. So each has the processor to itself while its own clock runs, and both columns show the same moment. Both start
cold: they read the whole prompt, and the drafts have learned nothing from earlier answers.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import uuid4

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from outrider.cache import CacheSpec
from outrider.cli.chat.session import steps_of
from outrider.cli.shared.screen import STYLES, harmless
from outrider.config import SpeculationParams
from outrider.engine.engine import Engine
from outrider.errors import InvalidRequestError
from outrider.utils.interrupt import CtrlC

if TYPE_CHECKING:
    from outrider.cli.chat.session import Session
    from outrider.engine.request import Request, StepOutput

_FRAME = 1 / 20  # seconds between two frames


@dataclass
class Lane:
    """One of the two answers: its engine, clock and text."""

    name: str
    engine: Engine
    request: Request
    seconds: float = 0.0
    text: Text = field(default_factory=Text)
    ended: bool = False

    def start(self, stop: CtrlC) -> None:
        self._steps: Iterator[list[StepOutput]] = steps_of(self.engine, self.request, stop)

    def step(self) -> None:
        """Run one engine step, on the lane's own clock."""
        begun = time.perf_counter()
        steps = next(self._steps, None)
        self.seconds += time.perf_counter() - begun
        self.ended = steps is None
        for step in steps or ():
            self.text.append(harmless(step.text), style=STYLES[step.origin])

    def head(self) -> Text:
        count = self.request.stats.completion_tokens
        rate = count / self.seconds if self.seconds else 0.0
        return Text.assemble((self.name, "bold"), f"\n{count} tokens, {self.seconds:.1f} s, {rate:.0f}/s")


def race(session: Session, message: str) -> None:
    """Answer ``message``, or the last one again, twice; the answer becomes part of the conversation.

    Raises:
        InvalidRequestError: drafting is off, or no message is left.
    """
    speculation = session.speculation
    if speculation.draft == "none":
        raise InvalidRequestError("nothing drafts: choose a source with /draft, as in /draft suffix")
    old = [] if message else session.take_back_answer()
    if message:
        session.messages.append({"role": "user", "content": message})
    try:
        lanes = _lanes(session, speculation)
        with CtrlC() as stop:
            _run(lanes, session.console, stop)
            session.stopped = stop.pressed
        session.add_answer(lanes[1].request)
    finally:
        if session.messages[-1]["role"] == "user":
            session.messages = session.messages[:-1] if message else session.messages + old
    session.note("Stopped; Ctrl-C once more leaves." if session.stopped else _result(*lanes))


def _lanes(session: Session, speculation: SpeculationParams) -> tuple[Lane, Lane]:
    llm, messages = session.llm, session.messages
    drafted = llm.request(messages, session.params, speculation, cache_salt=f"race {uuid4()}")
    params = replace(session.params, seed=drafted.seed)
    plain = llm.request(messages, params, SpeculationParams(draft="none"))
    room = min(llm.engine.max_seq_len, len(plain.prompt) + params.max_tokens + 1)
    engine = Engine(
        llm.model,
        drafters={},
        eos_token_ids=tuple({*llm.tokenizer.eos_token_ids, *llm.model.config.eos_token_ids}),
        vocab_size=llm.engine.vocab_size,
        cache=CacheSpec(max_seq_len=room, prefix_reuse=False),
        max_batched_tokens=llm.config.max_batched_tokens,
    )
    return Lane("plain", engine, plain), Lane(speculation.draft, llm.engine, drafted)


def _run(lanes: tuple[Lane, Lane], console: Console, stop: CtrlC) -> None:
    for lane in lanes:
        lane.start(stop)
    if not console.is_terminal or console.is_dumb_terminal:
        _take_turns(lanes, lambda: None)
        console.print(lanes[1].text.plain, soft_wrap=True)
        return
    drawn = 0.0
    with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:

        def draw() -> None:
            nonlocal drawn
            if time.monotonic() - drawn > _FRAME:
                live.update(_columns(lanes, console.width, console.height - 1), refresh=True)
                drawn = time.monotonic()

        _take_turns(lanes, draw)
        live.vertical_overflow = "visible"
        live.update(_columns(lanes, console.width, None), refresh=True)


def _take_turns(lanes: tuple[Lane, Lane], draw: Callable[[], None]) -> None:
    while waiting := [lane for lane in lanes if not lane.ended]:
        min(waiting, key=lambda lane: lane.seconds).step()
        draw()


def _columns(lanes: tuple[Lane, Lane], width: int, height: int | None) -> Table:
    """Both lanes side by side; of a longer text, its last ``height`` rows."""
    each = (width - 3) // 2
    table = Table.grid(padding=(0, 3, 0, 0))
    heads, bodies = [], []
    for lane in lanes:
        table.add_column(width=each)
        heads.append(lane.head())
        rows = list(lane.text.wrap(Console(width=each), each)) if lane.text.plain else []
        bodies.append(Text("\n").join(rows if height is None else rows[-max(1, height - 3) :]))
    table.add_row(*heads)
    table.add_row(*bodies)
    return table


def _result(plain: Lane, drafted: Lane) -> str:
    times = f"plain {plain.seconds:.2f} s, {drafted.name} {drafted.seconds:.2f} s"
    if list(plain.request.output) != list(drafted.request.output):
        return f"Different tokens ({drafted.request.speculation.verifier} is not exact here): {times}."
    ratio = plain.seconds / max(1e-9, drafted.seconds)
    rate = drafted.request.stats.draft_acceptance_rate
    accepted = "nothing drafted" if rate is None else f"{rate:.0%} of draft tokens accepted"
    return f"The same {len(plain.request.output)} tokens: {times}, {ratio:.2f} times the speed; {accepted}."
