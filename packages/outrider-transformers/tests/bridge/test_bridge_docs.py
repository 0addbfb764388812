"""The table of the bridge in docs/models.md holds what its script finds, and says yes throughout."""

from __future__ import annotations

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.bridge_table import BEGIN, END
from tests.family_table import PAGE


def table_rows() -> list[list[str]]:
    """Cells of the table: type, way, distance, generate, drafts, accepted, alone."""
    block = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    rows = [line.strip("| ").split(" | ") for line in block.splitlines() if line.startswith("| `")]
    return [[row[0].strip("`"), *row[1:]] for row in rows if len(row) == 7 and row[0] != "`model_type`"]


def test_the_table_has_many_rows_and_drafts_are_exact_in_each() -> None:
    rows = table_rows()
    assert len(rows) >= 50
    assert {row[0] for row in rows} <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert {(row[4], row[6]) for row in rows} == {("yes", "yes")}
    assert all(float(row[2]) < 1e-2 and int(row[5]) > 0 for row in rows)
