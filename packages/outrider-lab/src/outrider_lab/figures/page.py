"""Shared style of all figures, and the files of figures and their numbers."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError

# Okabe and Ito (2008), "Color universal design": told apart by colour-blind readers. No yellow: too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")  # a second distinction besides the colour
GREY = "#6b6b6b"

STYLE = {
    "figure.figsize": (6.4, 4.0),
    "figure.dpi": 150,
    "savefig.bbox": "tight",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e4e4e4",
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "lines.linewidth": 1.8,
    "lines.markersize": 5,
    "legend.frameon": False,
    "svg.hashsalt": "outrider",  # the same figure gives the same file
}

Cell = str | int | float | None


@dataclass(frozen=True)
class Table:
    """The numbers behind a figure."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def write(self, path: Path) -> None:
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(self.columns)
            writer.writerows([[_shown(cell) for cell in row] for row in self.rows])

    def markdown(self) -> str:
        lines = [list(self.columns), ["---"] * len(self.columns), *([str(_shown(c)) for c in r] for r in self.rows)]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)


@dataclass(frozen=True)
class WrittenFigure:
    """A figure or table that was written."""

    name: str
    about: str
    files: tuple[Path, ...]
    table: Table

    def as_dict(self) -> dict[str, Any]:
        rows = [dict(zip(self.table.columns, row, strict=True)) for row in self.table.rows]
        return {"name": self.name, "about": self.about, "files": [str(f) for f in self.files], "rows": rows}


def pyplot() -> Any:
    """matplotlib.pyplot with a backend that needs no screen. Raises ConfigError if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("figures need matplotlib, which is not installed: pip install 'outrider[lab]'") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update(STYLE)
    return plt


def write(out: Path, name: str, about: str, table: Table, figure: Any = None) -> WrittenFigure:
    """Write ``name``.csv, and ``figure``, if given, as .png and .svg, into ``out``."""
    paths = [out / f"{name}.csv"]
    table.write(paths[0])
    if figure is not None:
        for kind in ("png", "svg"):
            path = out / f"{name}.{kind}"
            figure.savefig(path, metadata={"Date": None} if kind == "svg" else None)
            paths.append(path)
        pyplot().close(figure)
    return WrittenFigure(name, about, tuple(paths), table)


def _shown(cell: Cell) -> Cell:
    """A cell of a table file: six significant digits, more than the accuracy of any number here."""
    if cell is None:
        return ""
    return f"{cell:.6g}" if isinstance(cell, float) else cell
