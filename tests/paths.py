"""Places of the repository that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
LAB = ROOT / "tests" / "data" / "lab"
"""Small trained models: a target, drafts and heads."""
DOCS = ROOT / "docs"
