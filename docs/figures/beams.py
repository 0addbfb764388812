"""Beam search: one tree of rows, and steps that need no forward pass."""

from __future__ import annotations

from draw import BLUE, DIM, GREEN, GREY, Drawing


def beam_search() -> Drawing:
    d = Drawing(780, 226)
    labels = ["the", "a", "cat", "dog", "sat", "lay", "ran", "on", "down", "on", "off"]
    parents = [-1, -1, 0, 1, 2, 2, 3, 4, 5, 6, 6]
    places = [(1, 0), (1, 3), (2, 0), (2, 3), (3, 0), (3, 1), (3, 3), (4, 0), (4, 1), (4, 3), (4, 4)]
    colors = dict.fromkeys(range(7), BLUE) | {7: GREEN, 8: GREEN, 9: GREEN, 10: GREY}
    d.legend(16, 16, {"kept rows of three beams": BLUE, "drafted, and a beam came there": GREEN, "drafted": GREY})
    d.tree(16, 40, labels, parents, places, root="prompt", colors=colors, step=112, width=66)
    d.text(540, 53, "one forward pass scores sat, lay, ran", size=12, color=DIM)
    d.text(540, 73, "and all that is drafted behind them", size=12, color=DIM)
    d.text(540, 107, "the next beams end in scored rows:", size=12, color=DIM)
    d.text(540, 127, "a second step without a pass", size=12, color=DIM)
    return d


FIGURES = {"beam-search": beam_search}
