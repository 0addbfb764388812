"""The table of families in docs/families.md says what the code reads, and what it refuses."""

from __future__ import annotations

import pytest

from outrider.errors import ModelFormatError
from outrider.weights.families import FAMILIES
from outrider.weights.hf_config.config import parse_config
from tests.family_table import PAGE, REFUSED, block, stable


def test_every_family_has_its_line() -> None:
    rows = [line.strip("| ").split(" | ") for line in block(PAGE.read_text()).splitlines() if line.startswith("| ")]
    assert [row[:3] for row in rows[1:]] == [stable(name) for name in FAMILIES]
    assert all(float(cell) < 1e-4 for row in rows[1:] for cell in row[3:] if cell != "no")


@pytest.mark.parametrize("name", REFUSED)
def test_others_are_refused_by_name(name: str) -> None:
    assert f"`{name}`" in block(PAGE.read_text())
    with pytest.raises(ModelFormatError, match=f"model_type='{name}' is not supported: use one of llama, "):
        parse_config({"model_type": name})
