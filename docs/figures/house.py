"""The layout of the repository: its distributions, and the core's rooms by the direction of imports.

Both are measured: the distributions from the linter's contract in ``pyproject.toml``, the rooms from the imports.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from draw import AMBER, BLUE, DIM, GREEN, GREY, RED, VIOLET, Drawing

ROOT = Path(__file__).parents[2]
CORE = ROOT / "packages" / "outrider" / "src" / "outrider"
COLORS = {
    "faces": BLUE, "cli": BLUE, "engine": GREEN, "drafters": VIOLET, "verify": RED,
    "weights": AMBER, "models": AMBER, "native": AMBER, "cache": AMBER, "tokenizer": AMBER,
}  # fmt: skip
_FACES = "llm, async_llm, request, output"
_OF_FACES = {"llm", "loading"}  # folders
_ROW = 46


def floors(edges: Mapping[str, set[str]]) -> list[list[str]]:
    """Names by floor, the highest first: each stands above all names it imports. Raises ValueError for a circle."""
    height: dict[str, int] = {}

    def climb(name: str, above: tuple[str, ...]) -> int:
        if name in above:
            raise ValueError(f"imports in a circle: {' -> '.join((*above, name))}")
        if name not in height:
            height[name] = 1 + max((climb(below, (*above, name)) for below in edges[name]), default=-1)
        return height[name]

    for name in edges:
        climb(name, ())
    return [sorted(name for name in edges if height[name] == floor) for floor in range(max(height.values()), -1, -1)]


def rooms() -> dict[str, set[str]]:
    """The core's folders, with the folders that each imports. ``faces``: files of the root, and ``_OF_FACES``."""
    edges: dict[str, set[str]] = {"faces": set()}
    folders = {path.parent.name for path in CORE.glob("*/__init__.py")} - _OF_FACES
    edges |= {name: set() for name in folders}
    shared = {path.stem for path in CORE.glob("*.py")} - {"async_llm", "output", "request"}
    for path in CORE.rglob("*.py"):
        first = path.relative_to(CORE).parts[0]
        room = first if first in folders else "faces"
        if first == path.name and path.stem in shared:
            continue  # errors, extensions and the package's own face are everybody's
        for module in _imports(path):
            other = module.split(".")[1] if module.startswith("outrider.") else ""
            other = other if other in folders else "faces" if other and other not in shared else ""
            if other and other != room:
                edges[room].add(other)
    return edges


def _imports(path: Path) -> list[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]


def distributions() -> list[list[str]]:
    """Distributions by floor, the highest first, as the linter's contract has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = project["tool"]["importlinter"]["contracts"]
    layered = next(each for each in contracts if each["type"] == "layers" and "containers" not in each)
    return [[name.strip() for name in layer.split("|")] for layer in layered["layers"]]


def purpose(path: Path) -> str:
    """The first sentence of a module's docstring."""
    doc = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return doc.split("\n\n")[0].replace("\n", " ").split(". ")[0].replace("``", "").rstrip(".")


def _stack(stories: Sequence[Sequence[str]], color: Mapping[str, str], about: Mapping[str, str]) -> Drawing:
    d = Drawing(860, 38 + _ROW * len(stories))
    d.arrow(844, 30, 844, 22 + _ROW * len(stories))
    d.text(850, 16, "imports", size=11, color=DIM, anchor="end")
    for i, names in enumerate(stories):
        y, width = 30 + i * _ROW, (812 - 8 * (len(names) - 1)) / len(names)
        for j, name in enumerate(names):
            x = 16 + j * (width + 8)
            d.box(x, y, width, _ROW - 8, color=color.get(name, GREY), strength=0.22)
            d.text(x + 8, y + 12, name, mono=True, size=12, bold=True)
            d.text(x + 8, y + 28, _cut(about[name], width - 16), size=11, color=DIM)
    return d


def house() -> Drawing:
    stories = floors(rooms())
    about = {name: purpose(CORE / name / "__init__.py") for story in stories for name in story if name != "faces"}
    return _stack(stories, COLORS, about | {"faces": _FACES})


def workspace() -> Drawing:
    stories = distributions()
    about = {
        name: purpose(ROOT / "packages" / name.replace("_", "-") / "src" / name / "__init__.py")
        for story in stories
        for name in story
    }
    return _stack(stories, {"outrider": GREEN, "outrider_server": BLUE}, about)


def _cut(text: str, width: float) -> str:
    """``text``, cut after the last word that fits."""
    room = int(width / 6)
    return text if len(text) <= room else text[:room].rsplit(" ", 1)[0] + " …"


FIGURES = {"house": house, "workspace": workspace}
