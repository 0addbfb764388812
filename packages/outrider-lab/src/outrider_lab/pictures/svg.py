"""``Picture``: an SVG that a notebook shows and a file can hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

INK, DIM, GRID = "#1f2430", "#667085", "#d9dde3"
GREEN, AMBER, CYAN, RED = "#2e9e5b", "#d08700", "#1597b8", "#d1495b"
ORIGIN_COLOURS = {"accepted": GREEN, "recovered": AMBER, "bonus": CYAN, "target": DIM}


@dataclass(frozen=True)
class Picture:
    """An SVG image. It needs no package to draw, and looks the same in light and dark notebooks."""

    svg: str
    title: str

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({self.title!r}: a notebook shows it, save(path) writes it as SVG)"

    def save(self, path: str | Path) -> None:
        """Write the SVG to a file."""
        Path(path).write_text(self.svg, encoding="utf-8")


def picture(width: float, height: float, title: str, parts: Sequence[str]) -> Picture:
    """A picture of ``parts``, elements of SVG, on a white background."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" role="img" aria-label="{escape(title)}" font-size="12" '
        'font-family="system-ui, -apple-system, Segoe UI, Helvetica, Arial, sans-serif">'
        f'<rect width="{width:g}" height="{height:g}" rx="6" fill="#ffffff"/>'
    )
    return Picture(head + "".join(parts) + "</svg>", title)


def text(
    x: float, y: float, words: str, *, colour: str = INK, anchor: str = "start", mono: bool = False, bold: bool = False
) -> str:
    """One line of text, with its middle at height ``y``."""
    family = ' font-family="ui-monospace, Menlo, DejaVu Sans Mono, monospace"' if mono else ""
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y + 4:g}" text-anchor="{anchor}" fill="{colour}" xml:space="preserve"{family}{weight}>'
        f"{escape(words)}</text>"
    )


def box(x: float, y: float, width: float, height: float, colour: str, *, dashed: bool = False, hint: str = "") -> str:
    """A rounded rectangle; ``hint`` shows when the pointer rests on it."""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="4" fill="{colour}" fill-opacity="0.15" '
        f'stroke="{colour}"{dash}>{title}</rect>'
    )


def bar(x: float, y: float, width: float, height: float, colour: str, *, hint: str = "") -> str:
    """A filled rectangle."""
    title = f"<title>{escape(hint)}</title>" if hint else ""
    return f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" fill="{colour}">{title}</rect>'


def line(points: Sequence[tuple[float, float]], colour: str, *, wide: float = 1.0) -> str:
    """A line through points."""
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{wide:g}"/>'
