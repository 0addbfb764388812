"""Tests live with what they test: those of the core import no satellite, neither its code nor its tests."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.paths import ROOT

CORE = ROOT / "packages" / "outrider" / "tests"
AREAS = {
    f"tests.{path.stem}": path.parents[1].name.replace("-", "_")
    for path in ROOT.glob("packages/outrider-*/tests/*")
    if path.name != "__pycache__"
}
"""The package whose tests a module of ``tests`` belongs to."""

EXCEPTIONS: dict[str, set[str]] = {
    "contracts/test_draft_models.py": {"outrider_drafters"},
    "drafters/test_hostile_files.py": {"outrider_drafters", "outrider_torch"},
    "engine/draft_length/test_adaptive.py": {"outrider_multimodal"},
    "engine/fuzz_requests.py": {"outrider_torch"},
    "engine/test_combinations.py": {"outrider_multimodal"},
    "engine/test_faults_anywhere.py": {"outrider_torch"},
    "engine/test_pace.py": {"outrider_drafters"},
    "models/test_families.py": {"outrider_torch"},
    "models/test_family_invariance.py": {"outrider_torch"},
    "models/test_kv_cache_dtype.py": {"outrider_torch"},
    "models/test_real_models.py": {"outrider_torch"},
    "native_library/test_weights.py": {"outrider_torch"},
    "test_adapters.py": {"outrider_server"},
    "test_without_torch.py": {"outrider_torch"},
    "weights/fuzz/kinds.py": {"outrider_drafters", "outrider_torch"},
    "weights/test_builtin.py": {"outrider_torch"},
    "weights/test_convert.py": {"outrider_torch"},
    "weights/test_gguf.py": {"outrider_torch"},
    "weights/test_gguf_families.py": {"outrider_torch"},
    "weights/test_gguf_refusals.py": {"outrider_torch"},
    "weights/test_llama2c.py": {"outrider_torch"},
    "weights/test_refusals.py": {"outrider_multimodal", "outrider_transformers"},
    "weights/test_safetensors.py": {"outrider_torch"},
    "weights/test_stored.py": {"outrider_torch"},
    "weights/transformers_reference.py": {"outrider_multimodal"},
}
"""Files of the core's tests that still import satellites. This list only shrinks."""


def imported(path: Path) -> Iterator[str]:
    """Modules that a file imports anywhere, by their whole names."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def satellites(path: Path) -> set[str]:
    """Import packages of the satellites that a file needs."""
    heads = {(name.partition(".")[0], ".".join(name.split(".")[:2])) for name in imported(path)}
    return {top for top, _ in heads if top.startswith("outrider_")} | {
        AREAS[area] for _, area in heads if area in AREAS
    }


def test_the_core_s_tests_import_no_satellite() -> None:
    files = sorted(CORE.rglob("*.py"))
    assert len(files) > 100
    found = {str(path.relative_to(CORE)): needed for path in files if (needed := satellites(path))}
    assert found == EXCEPTIONS, "move the test to its distribution, and take out exceptions that are no longer needed"


def test_an_import_is_found_wherever_it_stands(tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.write_text(
        "import outrider\nfrom outrider.config import X\nfrom tests import tiny\n"
        "def late():\n    from outrider_lab.plan import Y\n    from tests.server.live import Live\n"
    )
    assert satellites(path) == {"outrider_lab", "outrider_server"}
    path.write_text("from tests import beams\nimport outrider_torch.heads\n")
    assert satellites(path) == {"outrider_drafters", "outrider_torch"}
    path.write_text("from tests.drafters.views import request\nfrom .views import grow\n")
    assert satellites(path) == set()
