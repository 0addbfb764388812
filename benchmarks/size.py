"""How large the code is: lines, files and classes by package, what ``LLM`` imports, and words of the documentation.

    python -m benchmarks.size            a table
    python -m benchmarks.size --json     one JSON object

Lines are those of Python files without tests. The import closure holds every file of the repository that
``from outrider import LLM`` needs, with imports that functions do when they run left out.
"""

from __future__ import annotations

import argparse
import ast
import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
_CLOSURE = """
import sys
from outrider import LLM
for module in list(sys.modules.values()):
    path = getattr(module, "__file__", None)
    if module.__name__.partition(".")[0].startswith("outrider") and path:
        print(path)
"""


@dataclass(frozen=True)
class Size:
    """Of a set of Python files."""

    lines: int
    files: int
    classes: int
    functions: int
    long_functions: int  # of more than 60 lines
    long_files: int  # of more than 250 lines


def size_of(paths: Iterable[Path]) -> Size:
    """Count lines, classes and functions of Python files."""
    lines = classes = functions = long_functions = long_files = files = 0
    for path in paths:
        text = path.read_text(encoding="utf-8")
        files += 1
        lines += text.count("\n")
        long_files += text.count("\n") > 250
        for node in ast.walk(ast.parse(text)):
            classes += isinstance(node, ast.ClassDef)
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                functions += 1
                long_functions += (node.end_lineno or node.lineno) - node.lineno + 1 > 60
    return Size(lines, files, classes, functions, long_functions, long_files)


def packages() -> dict[str, Size]:
    """The size of each distribution's sources, of the core's command line, and of all tests."""
    found: dict[str, Size] = {}
    for package in sorted(ROOT.glob("packages/*")):
        paths = sorted((package / "src").rglob("*.py"))
        own_cli = {path for path in paths if "outrider/cli/" in path.as_posix()}
        found[package.name] = size_of(path for path in paths if path not in own_cli)
        if own_cli:
            found[f"{package.name} (command line)"] = size_of(own_cli)
    return found


def closure() -> Size:
    """The size of what ``from outrider import LLM`` reads of this repository."""
    done = subprocess.run([sys.executable, "-c", _CLOSURE], capture_output=True, text=True, check=True)
    return size_of(Path(line) for line in done.stdout.splitlines())


def words() -> int:
    """Words of all pages of the documentation's site."""
    return sum(len(path.read_text(encoding="utf-8").split()) for path in (ROOT / "docs").rglob("*.md"))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_args(argv)
    sizes = packages()
    all_of = size_of(path for package in ROOT.glob("packages/*") for path in (package / "src").rglob("*.py"))
    test_folders = [ROOT / "tests", *ROOT.glob("packages/*/tests")]
    rows: Mapping[str, Size] = {
        **sizes,
        "all packages": all_of,
        "imported by LLM": closure(),
        "tests": size_of(path for folder in test_folders for path in folder.rglob("*.py")),
    }
    if args.json:
        print(json.dumps({"sizes": {name: asdict(size) for name, size in rows.items()}, "words": words()}))
        return
    print(f"{'':32}{'lines':>8}{'files':>7}{'classes':>9}{'functions':>11}{'> 60 lines':>12}{'files > 250':>13}")
    for name, size in rows.items():
        print(
            f"{name:32}{size.lines:>8,}{size.files:>7,}{size.classes:>9,}{size.functions:>11,}"
            f"{size.long_functions:>12,}{size.long_files:>13,}"
        )
    print(f"words of the documentation: {words():,}")


if __name__ == "__main__":
    main()
