"""The layout of the source tree, drawn from the linter's contract and from the folders themselves."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path

from draw import AMBER, BLUE, DIM, GREEN, GREY, RED, VIOLET, Drawing

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "outrider"
COLORS = {
    BLUE: (
        "cli",
        "speculation",
        "fleet",
        "server",
        "analysis",
        "bench",
        "training",
        "llm",
        "async_llm",
        "transcriber",
        "speech",
        "vision",
        "input_processor",
        "output",
        "pictures",
        "fleet",
    ),
    GREEN: ("engine",),
    VIOLET: ("drafters", "heads", "grammar"),
    AMBER: ("checkpoints", "tokenizer", "models", "kernels", "cache", "parallel"),
    RED: ("core",),
    GREY: ("data", "config", "utils", "errors"),
}
MEANING = {
    BLUE: "faces and tools",
    GREEN: "the step",
    VIOLET: "drafts",
    AMBER: "the target",
    RED: "mathematics",
    GREY: "ground",
}


def layers() -> list[list[str]]:
    """Packages by layer, the highest first: an import may only point down."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layered = next(contract for contract in contracts if contract["type"] == "layers")
    return [[name.strip() for name in layer.split("|")] for layer in layered["layers"]]


def rooms(package: str) -> list[str]:
    """Folders of a package that hold code."""
    folder = SOURCE / package
    return sorted(path.parent.name for path in folder.glob("*/__init__.py")) if folder.is_dir() else []


def purpose(package: str) -> str:
    """The first sentence of a package's own docstring."""
    folder = SOURCE / package
    path = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.splitlines()[0].split(". ")[0].replace("``", "").rstrip(".") if doc else ""


def house() -> Drawing:
    rows = [name for layer in layers() for name in layer]
    height = 30
    d = Drawing(860, 56 + height * len(rows))
    d.legend(16, 20, {MEANING[color]: color for color in COLORS})
    d.arrow(848, 44, 848, 44 + height * len(rows) - 8)
    d.text(838, 40, "imports", size=11, color=DIM, anchor="end")
    color_of = {name: color for color, names in COLORS.items() for name in names}
    for i, name in enumerate(rows):
        y, color = 46 + i * height, color_of[name]
        d.box(16, y, 124, height - 6, name, color=color, mono=True, size=12, strength=0.3)
        x = 148.0
        for room in rooms(name):
            width = len(room) * 6.3 + 12
            d.box(x, y, width, height - 6, room, color=color, mono=True, size=10.5)
            x += width + 4
        d.text(x + 6, y + (height - 6) / 2, _cut(purpose(name), 830 - x), size=11, color=DIM)
    return d


def _cut(text: str, width: float) -> str:
    """As many whole words as fit."""
    room = int(width / 5.4)
    return text if len(text) <= room else text[:room].rsplit(" ", 1)[0] + " …"


FIGURES = {"house": house}
