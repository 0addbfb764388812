"""The figure of speculative execution in general: slow calls beside each other, and what becomes of them."""

from __future__ import annotations

from draw import AMBER, BLUE, DIM, GREEN, GREY, VIOLET, Drawing


def speculation() -> Drawing:
    d = Drawing(760, 268)
    left, unit = 96, 62  # a guess takes one unit, a call of f six

    def box(lane: int, at: float, long: float, text: str, color: str, *, dashed: bool = False) -> None:
        d.box(
            left + at * unit, 40 + lane * 32, long * unit - 4, 24, text, color=color, mono=True, size=12, dashed=dashed
        )

    for lane, name in enumerate(("guesses", "slow calls", "", "", "values")):
        if name:
            d.text(16, 52 + lane * 32 + (16 if name == "slow calls" else 0), name, size=12, color=DIM)
    for i, name in enumerate(("g(a)", "g(ab)", "g(abc)")):
        box(0, i, 1, name, VIOLET)
    box(1, 0, 5, "f(a) confirms b", GREEN)
    box(2, 1, 5, "f(ab) says d, not c", AMBER)
    box(3, 2, 5, "f(abc) is dropped", GREY, dashed=True)
    box(0, 6, 1, "g(abd)", VIOLET)
    box(1, 6, 4, "f(abd) …", BLUE)
    box(2, 7, 3, "f(abde) …", BLUE)
    d.line(left, 196, left + 10 * unit, 196)
    for at, value, color in ((5, "b", GREEN), (6, "d", AMBER)):
        d.box(left + at * unit - 17, 163, 26, 22, value, color=color, mono=True, size=12)
        d.line(left + at * unit - 4, 185, left + at * unit - 4, 196)
    d.text(left + 10 * unit, 208, "time", size=11, color=DIM, anchor="end")
    d.text(16, 20, "Two values in hardly more time than one call of f", bold=True)
    d.legend(16, 240, {"guess": VIOLET, "confirmed": GREEN, "put right": AMBER, "not needed": GREY, "under way": BLUE})
    return d


FIGURES = {"speculation": speculation}
