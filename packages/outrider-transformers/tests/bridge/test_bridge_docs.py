"""The table of architectures holds what its script finds, and says yes throughout; docs/models.md has its names."""

from __future__ import annotations

import re

from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.bridge_table import BEGIN, END, HEAD, TABLE
from tests.family_table import PAGE


def table_rows() -> list[list[str]]:
    """Cells of the table: type, way, distance, generate, drafts, accepted, alone."""
    rows = [line.strip("| ").split(" | ") for line in TABLE.read_text().splitlines() if line.startswith("| `")]
    return [[row[0].strip("`"), *row[1:]] for row in rows if len(row) == 7 and row[0] != "`model_type`"]


def test_the_table_has_many_rows_and_drafts_are_exact_in_each() -> None:
    rows = table_rows()
    assert len(rows) >= 50
    assert {row[0] for row in rows} <= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert {(row[4], row[6]) for row in rows} == {("yes", "yes")}
    assert all(float(row[2]) < 1e-2 and int(row[5]) > 0 for row in rows)


def test_the_page_names_the_types_of_the_table() -> None:
    assert TABLE.read_text().startswith(HEAD)
    names = PAGE.read_text().split(BEGIN)[1].split(END)[0]
    assert re.findall(r"`([^`]+)`", names) == [row[0] for row in table_rows()]
