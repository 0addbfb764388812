"""No distribution imports the inside of another: pyproject.toml lists the modules that others may import."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.paths import ROOT

PUBLIC: Mapping[str, Sequence[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["outrider"][
    "public-modules"
]


def imported(path: Path) -> Iterator[str]:
    """Every module that a file imports, and every name it imports from one, as ``package.module.name``."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def of_others(package: str, files: Sequence[Path]) -> set[str]:
    """Modules and names of other distributions than ``package`` that its files import."""
    return {
        name
        for path in files
        for name in imported(path)
        if (root := name.partition(".")[0]).startswith("outrider_") and root != package
    }


@cache
def used_by_others() -> frozenset[str]:
    """Modules and names that some distribution imports from another."""
    return frozenset(name for package in PUBLIC for name in of_others(package, sources(package)))


def is_public(name: str) -> bool:
    """Whether a name lies in a public module."""
    package, _, inside = name.partition(".")
    return any(inside == module or inside.startswith(f"{module}.") for module in PUBLIC[package])


def sources(package: str) -> list[Path]:
    """The files of a distribution."""
    return sorted((ROOT / "packages" / package.replace("_", "-") / "src" / package).rglob("*.py"))


@pytest.mark.parametrize("package", PUBLIC)
def test_no_distribution_imports_the_inside_of_another(package: str) -> None:
    files = sources(package)
    assert files
    assert [name for name in sorted(of_others(package, files)) if not is_public(name)] == []


@pytest.mark.parametrize("package", PUBLIC)
def test_a_public_module_exists_and_is_imported_by_another(package: str) -> None:
    used = used_by_others()
    home = ROOT / "packages" / package.replace("_", "-") / "src" / package
    places = {module: home.joinpath(*module.split(".")) for module in PUBLIC[package]}
    assert [name for name, own in places.items() if not (own.is_dir() or own.with_suffix(".py").is_file())] == []
    unused = [module for module in places if not any(name.startswith(f"{package}.{module}.") for name in used)]
    assert unused == []


def test_an_import_of_an_inside_is_found(tmp_path: Path) -> None:
    file = tmp_path / "module.py"
    file.write_text(
        "def late():\n    from outrider_torch.cuda_graphs.graphs import X\n    import outrider_server.app\n"
    )
    found = of_others("outrider_lab", [file])
    assert found == {"outrider_torch.cuda_graphs.graphs.X", "outrider_server.app"}
    assert [name for name in found if not is_public(name)] == ["outrider_torch.cuda_graphs.graphs.X"]


OPTIONAL = {
    **{("outrider_multimodal", name): "the server's audio API" for name in ("outrider_server", "fastapi", "pydantic")},
    ("outrider_fleet", "torch"): "processes of several machines",
    **{("outrider_lab", name): "an interpreter of a peer" for name in ("torch", "transformers")},
}
"""Imports of what a distribution can do without, and where they happen."""
LARGE = ("torch", "transformers", "scipy", "matplotlib", "fastapi", "pydantic", "uvicorn")


def needs(name: str) -> set[str]:
    """The distributions that ``pip install`` brings with one of ours, as far as ours name them; itself included."""
    folder = "outrider" if name == "outrider-core" else name
    path = ROOT / "packages" / folder / "pyproject.toml"
    if not path.is_file():
        return {name}
    asked = tomllib.loads(path.read_text())["project"]["dependencies"]
    return {name}.union(*(needs(Requirement(text).name) for text in asked))


@pytest.mark.parametrize("package", ["outrider", *PUBLIC])
def test_a_distribution_depends_on_what_it_imports(package: str) -> None:
    """Imports within functions included: of our distributions all, of others the large ones."""
    name = "outrider-core" if package == "outrider" else package.replace("_", "-")
    roots = {module.partition(".")[0] for path in sources(package) for module in imported(path)}
    ours = {root for root in roots if root in PUBLIC or root in LARGE} - {package}
    missing = {root for root in ours if root.replace("_", "-") not in needs(name)}
    assert {root for root in missing if (package, root) not in OPTIONAL} == set()
