"""The draft tree of a step, drawn from left to right: accepted, refused and recovered tokens.

::

    text so far ── the ── cat ── [sat]      boxes: accepted; dashed: refused; [ ]: the target's own token
               └── a
"""

from __future__ import annotations

from collections.abc import Callable

from outrider.verify.draft import DraftReport
from outrider.verify.tree import depths
from outrider_lab.pictures import svg
from outrider_lab.pictures.steps import Step, visible

_WIDE, _HIGH = 88, 26  # size of a box
_ACROSS, _DOWN = 106, 36  # distance between boxes
_LETTERS = 11


def draft_tree(step: Step, report: DraftReport, token_text: Callable[[int], str]) -> svg.Picture:
    """The tree of a step that reported its draft."""
    kept = set(report.path)
    levels, heights = depths(report.parents), _heights(report)
    last = step.tokens[-1]
    end_level = len(report.path)
    final = last if last.origin != "accepted" else None
    rows = max([0, *heights], default=0) + 1
    if final is not None:  # below the refused tokens of its level, or alone there
        same = [heights[i] for i in range(len(levels)) if levels[i] == end_level]
        final_row = max(same) + 1 if same else (heights[report.path[-1]] if report.path else 0)
        rows = max(rows, final_row + 1)
    width = 24 + _ACROSS * (max([end_level, *levels]) + 2)
    parts = [
        svg.text(16, 20, f"step {step.number}: {step.accepted} of {step.drafted} draft tokens accepted", bold=True)
    ]

    def corner(level: int, row: float) -> tuple[float, float]:
        return 16 + _ACROSS * (level + 1), 40 + _DOWN * row

    root = (16, 40 + _DOWN * (heights[report.path[0]] if report.path else 0))
    parts.append(svg.text(root[0], root[1] + _HIGH / 2, "text so far", colour=svg.DIM))

    def edge(parent: int, to: tuple[float, float], colour: str) -> str:
        x, y = (root[0] + 66, root[1]) if parent < 0 else corner(levels[parent], heights[parent])
        start = (x if parent < 0 else x + _WIDE, y + _HIGH / 2)
        middle = to[0] - 10
        return svg.line([start, (middle, start[1]), (middle, to[1] + _HIGH / 2), (to[0], to[1] + _HIGH / 2)], colour)

    for node, token in enumerate(report.tokens):
        at = corner(levels[node], heights[node])
        colour = svg.GREEN if node in kept else svg.RED
        score = "" if report.scores is None else f", guessed at {report.scores[node]:.2f}"
        hint = f"{'accepted' if node in kept else 'not accepted'}, {report.sources[node]}{score}, token {token}"
        parts += [edge(report.parents[node], at, svg.GREEN if node in kept else svg.GRID)]
        parts += _labelled(at, token_text(token), colour, hint, dashed=node not in kept)
    if final is not None:
        at, colour = corner(end_level, final_row), svg.ORIGIN_COLOURS[final.origin]
        parts += [edge(report.path[-1] if report.path else -1, at, colour)]
        parts += _labelled(at, token_text(final.token_id), colour, f"{final.origin}, token {final.token_id}")
    return svg.picture(width, 48 + _DOWN * rows, f"draft tree of step {step.number}", parts)


def _labelled(at: tuple[float, float], words: str, colour: str, hint: str, *, dashed: bool = False) -> list[str]:
    shown = visible(words)
    shown = shown if len(shown) <= _LETTERS else shown[: _LETTERS - 1] + "…"
    return [
        svg.box(*at, _WIDE, _HIGH, colour, dashed=dashed, hint=hint),
        svg.text(at[0] + _WIDE / 2, at[1] + _HIGH / 2, shown or "∅", anchor="middle", mono=True),
    ]


def _heights(report: DraftReport) -> list[int]:
    """The row of each node. The first child is in its parent's row, the others below; the accepted path comes first."""
    kept = set(report.path)
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(report.parents):
        children.setdefault(parent, []).append(node)
    rows, following = [0] * len(report.parents), 0
    stack = [(node, False) for node in _order(children.get(-1, []), kept)]
    first = True
    while stack:
        node, beside = stack.pop()
        if not beside and not first:
            following += 1
        first = False
        rows[node] = following
        below = _order(children.get(node, []), kept)
        stack += [(child, False) for child in below[:-1]] + [(child, True) for child in below[-1:]]
    return rows


def _order(nodes: list[int], kept: set[int]) -> list[int]:
    """Sort siblings so that the last is drawn first: the accepted node, else the source's first."""
    return sorted(nodes, key=lambda node: (node in kept, -node))
