"""A few shapes, as SVG text: boxes, arrows, bars, trees, rows of tokens.

Colours are CSS variables that the site sets (docs/tools/site.css), so that a figure in a page is light or dark with it;
as a file of its own it takes the defaults given here. Positions and sizes are in pixels, from the top left.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape

INK = "var(--fig-ink, #1f2430)"
DIM = "var(--fig-dim, #667085)"
GREEN = "#2e9e5b"  # accepted
RED = "#d1495b"  # refused
AMBER = "#d08700"  # recovered: put in place of a refused token
BLUE = "#3b7dd8"  # the target, and what it adds
VIOLET = "#8a63d2"  # drafts
GREY = "#8b95a5"

CHARACTER = 7.2  # width of a character of 12-pixel monospace text


class Drawing:
    """A picture that shapes are added to. Coordinates of boxes are of their top left corner."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.parts: list[str] = []

    def svg(self) -> str:
        head = (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self.width} {self.height}" width="{self.width}" '
            'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif" font-size="13">'
            f'<rect width="{self.width}" height="{self.height}" rx="8" style="fill:var(--fig-paper, #fff)"/>'
        )
        return head + "".join(self.parts) + "</svg>\n"

    def text(
        self, x: float, y: float, text: str, *, size: float = 13, color: str = INK, anchor: str = "start",
        mono: bool = False, bold: bool = False,
    ) -> None:  # fmt: skip
        """One line of text whose middle is at height ``y``."""
        font = ' font-family="ui-monospace, SFMono-Regular, Menlo, DejaVu Sans Mono, monospace"' if mono else ""
        weight = ' font-weight="600"' if bold else ""
        self.parts.append(
            f'<text x="{x:g}" y="{y + size * 0.35:g}" font-size="{size:g}" text-anchor="{anchor}" '
            f'xml:space="preserve" style="fill:{color}"{font}{weight}>{escape(text)}</text>'
        )

    def box(
        self, x: float, y: float, width: float, height: float, text: str = "", *, color: str = GREY,
        dashed: bool = False, mono: bool = False, size: float = 13, strength: float = 0.16, struck: bool = False,
    ) -> None:  # fmt: skip
        """A rounded box with text in its middle; ``struck`` crosses it out."""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" '
            f'style="fill:{color};fill-opacity:{strength};stroke:{color}" stroke-width="1.4"{dash}/>'
        )
        if text:
            self.text(x + width / 2, y + height / 2, text, anchor="middle", mono=mono, size=size)
        if struck:
            self.line(x + 5, y + height / 2, x + width - 5, y + height / 2, color=color, width=1.6)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, *, color: str = DIM, width: float = 1.3, dashed: bool = False
    ) -> None:
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.parts.append(
            f'<path d="M{x1:g} {y1:g}L{x2:g} {y2:g}" style="stroke:{color};fill:none" stroke-width="{width:g}"{dash}/>'
        )

    def arrow(
        self, x1: float, y1: float, x2: float, y2: float, *, color: str = DIM, width: float = 1.3, dashed: bool = False
    ) -> None:
        """A line with a head at its second end."""
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        bx, by = x2 - 7 * dx, y2 - 7 * dy
        self.line(x1, y1, bx, by, color=color, width=width, dashed=dashed)
        self.parts.append(
            f'<path d="M{x2:g} {y2:g}L{bx - 3.6 * dy:g} {by + 3.6 * dx:g}L{bx + 3.6 * dy:g} {by - 3.6 * dx:g}Z" '
            f'style="fill:{color}"/>'
        )

    def bar(self, x: float, base: float, width: float, height: float, color: str, *, strength: float = 0.75) -> None:
        """A bar that stands on ``base``."""
        self.parts.append(
            f'<rect x="{x:g}" y="{base - height:g}" width="{width:g}" height="{height:g}" '
            f'style="fill:{color};fill-opacity:{strength}"/>'
        )

    def tokens(
        self, x: float, y: float, tokens: Iterable[str], *, color: str = GREY, colors: Mapping[int, str] | None = None,
        gap: float = 5, height: float = 24, struck: Iterable[int] = (), dashed: bool = False,
        width: float | None = None,
    ) -> list[tuple[float, float]]:  # fmt: skip
        """A row of tokens, as wide as their text or all ``width`` wide; returns where each begins and ends."""
        spans, crossed = [], set(struck)
        for i, token in enumerate(tokens):
            wide = width or len(token) * CHARACTER + 14
            shade = (colors or {}).get(i, color)
            self.box(x, y, wide, height, token, color=shade, mono=True, size=12, struck=i in crossed, dashed=dashed)
            spans.append((x, x + wide))
            x += wide + gap
        return spans

    def tree(
        self, x: float, y: float, labels: Sequence[str], parents: Sequence[int], places: Sequence[tuple[int, float]], *,
        root: str = "root", colors: Mapping[int, str] | None = None, step: float = 104, row: float = 38,
        width: float = 62, notes: Mapping[int, str] | None = None, struck: Iterable[int] = (),
    ) -> None:  # fmt: skip
        """A draft tree from left to right: ``places`` are (depth, row) of each node, the root's is (0, 0)."""
        colors, crossed = colors or {}, set(struck)

        def corner(node: int) -> tuple[float, float]:
            depth, line = places[node] if node >= 0 else (0, 0)
            return x + depth * step, y + line * row

        for node, parent in enumerate(parents):
            (px, py), (nx, ny) = corner(parent), corner(node)
            self.arrow(px + width, py + 13, nx, ny + 13, color=colors.get(node, DIM))
        self.box(*corner(-1), width, 26, root, color=GREY, mono=True, size=12)
        for node, label in enumerate(labels):
            nx, ny = corner(node)
            shade = colors.get(node, VIOLET)
            self.box(nx, ny, width, 26, label, color=shade, mono=True, size=12, struck=node in crossed)
            if notes and node in notes:
                self.text(nx + width + 6, ny + 13, notes[node], size=11, color=DIM)

    def legend(self, x: float, y: float, entries: Mapping[str, str]) -> None:
        """Coloured squares with their meanings, in one line."""
        for text, color in entries.items():
            self.box(x, y - 6, 12, 12, color=color, strength=0.5)
            self.text(x + 18, y, text, size=12, color=DIM)
            x += 18 + len(text) * 6.4 + 20
