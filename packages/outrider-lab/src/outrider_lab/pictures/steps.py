"""The steps of a finished request: forward passes of the target, their drafts and their tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from outrider.engine.request import StepOutput
from outrider.verify.draft import DraftReport
from outrider_lab.pictures.svg import ORIGIN_COLOURS

_SHOWN = 40  # steps in a repr


@dataclass(frozen=True)
class Step:
    """One forward pass of the target."""

    number: int
    drafted: int  # draft tokens
    accepted: int
    tokens: tuple[StepOutput, ...]  # the accepted ones, then the target's own

    @property
    def source(self) -> str:
        """The draft source; "none" without a draft."""
        names = dict.fromkeys(name for token in self.tokens for name in token.source.split("+") if name != "none")
        return "+".join(names) or "none"

    @property
    def text(self) -> str:
        return "".join(token.text for token in self.tokens)

    @property
    def report(self) -> DraftReport | None:
        """The step's draft, if the request has ``reports_drafts``."""
        return self.tokens[-1].draft if self.tokens else None


def steps_of(tokens: Sequence[StepOutput], rounds: Sequence[tuple[int, int]]) -> list[Step]:
    """The steps of a request. ``rounds``: drafted and accepted tokens of each step (``RequestStats.rounds``)."""
    found, at = [], 0
    for number, (drafted, accepted) in enumerate(rounds):
        own = tuple(tokens[at : at + accepted + 1])  # the last step may end within its accepted tokens
        found.append(Step(number, drafted, accepted, own))
        at += len(own)
    return found


@dataclass(frozen=True)
class StepTable:
    """The steps as a table. ``rows`` are dictionaries, as ``pandas.DataFrame`` takes them."""

    steps: Sequence[Step]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [
            {"step": s.number, "drafted": s.drafted, "accepted": s.accepted, "tokens": len(s.tokens),
             "source": s.source, "text": s.text}
            for s in self.steps
        ]  # fmt: skip

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        lines = ["step drafted accepted  source            text"]
        lines += [
            f"{s.number:4} {s.drafted:7} {s.accepted:8}  {s.source:16.16}  {s.text!r}" for s in self.steps[:_SHOWN]
        ]
        more = len(self.steps) - _SHOWN
        return "\n".join([*lines, f"... and {more} more: see .rows"] if more > 0 else lines)

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{name}</th>" for name in ("step", "drafted", "accepted", "source"))
        rows = "".join(
            f"<tr><td>{s.number}</td><td>{s.drafted}</td><td>{s.accepted}</td><td>{escape(s.source)}</td>"
            f'<td style="text-align: left; white-space: pre-wrap">{"".join(map(_coloured, s.tokens))}</td></tr>'
            for s in self.steps
        )
        return (
            '<div style="max-height: 24em; overflow: auto"><table>'
            f'<thead><tr>{head}<th style="text-align: left">tokens</th></tr></thead><tbody>{rows}</tbody></table></div>'
        )


def visible(words: str) -> str:
    """Text with visible line breaks and tabs."""
    return words.replace("\n", "⏎").replace("\t", "⇥")


def _coloured(token: StepOutput) -> str:
    colour = ORIGIN_COLOURS[token.origin]
    return (
        f'<span title="{token.origin}, token {token.token_id}" style="border-bottom: 2px solid {colour}; '
        f'margin-right: 2px">{escape(visible(token.text))}</span>'
    )
