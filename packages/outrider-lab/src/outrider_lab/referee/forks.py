"""Where two greedy answers part, and whether a near-tie explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from outrider.errors import ConfigError
from outrider_lab.referee.logprobs import best_two, token_texts
from outrider_lab.referee.sides import Reply, Side

NEAR_TIE = 0.25
"""Rounding may swap tokens whose log-probabilities are closer: bfloat16 logits of 16 to 32 are 0.125 apart."""

SHOWN = 20  # characters of each answer behind a fork

Kind = Literal["near-tie", "NOT A TIE", "cannot be judged"]


@dataclass(frozen=True)
class Fork:
    """The first difference of two answers."""

    id: str
    character: int
    token: int | None
    """Its place in the baseline's output; None if the server gives no tokens."""
    gap: float | None
    """Between the baseline's two best log-probabilities there; None if the server gives none."""
    before: str
    after: str

    @property
    def kind(self) -> Kind:
        return "cannot be judged" if self.gap is None else "near-tie" if self.gap <= NEAR_TIE else "NOT A TIE"

    def line(self) -> str:
        shown = "no log-probabilities" if self.gap is None else f"the two best tokens are {self.gap:.3f} apart"
        at = f"character {self.character}" + (f", token {self.token}" if self.token is not None else "")
        return f"{self.kind}: {self.id} parts at {at}: {self.before!r} became {self.after!r}; {shown}"

    def as_data(self) -> dict[str, Any]:
        return asdict(self) | {"kind": self.kind}


def find_fork(name: str, request: Mapping[str, Any], base: Reply, found: Reply, *judges: Side) -> Fork:
    """The fork of ``found`` from ``base``, two different answers to ``request``.

    The first of ``judges`` whose answer comes to the fork and has log-probabilities there gives the gap: an engine
    need not have them of drafted tokens, nor repeat itself. A refusal of one of the answers is a fork that no
    log-probability explains.
    """
    if base.refused or found.refused:
        return Fork(name, 0, None, None, base.refused[:80] or "an answer", found.refused[:80] or "an answer")
    a, b = base.text, found.text
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    token, gap = None, None
    for judge in judges:
        token, gap = _token_at(judge, request, a[:at])
        if gap is not None:
            break
    return Fork(name, at, token, gap, a[at : at + SHOWN], b[at : at + SHOWN])


def _token_at(judge: Side, request: Mapping[str, Any], shared: str) -> tuple[int | None, float | None]:
    """The place of the token behind ``shared`` in the judge's answer, and the gap of the two best log-probabilities."""
    try:
        choice = judge.choices({**request, "logprobs": 2})[0][0]
    except ConfigError:
        return None, None  # log-probabilities are optional in the API
    said = ""
    for index, (piece, best) in enumerate(zip(token_texts(choice), best_two(choice), strict=False)):
        said += piece
        if len(said) > len(shared):
            return (index, best[0] - best[1] if best else None) if said.startswith(shared) else (None, None)
    return None, None
