"""The table of architectures holds what its script finds, and says yes throughout; docs/models.md names the others."""

from __future__ import annotations

import re

import transformers
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from tests.bridge_table import BEGIN, END, HEAD, TABLE, summary, type_names
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


def test_the_page_names_the_types_that_the_table_lacks() -> None:
    assert TABLE.read_text().startswith(HEAD)
    runs, refused = TABLE.read_text().split("| refused | why |")
    lines, others = ([line for line in part.splitlines() if line.startswith("| `")] for part in (runs, refused))
    lines = [line for line in lines if not line.startswith("| `model_type`")]
    assert len(lines) == len(table_rows())
    text = PAGE.read_text().split(BEGIN)[1].split(END)[0].strip()
    named = set(re.findall(r"`([^`]+)`", text))
    assert f"{len(lines)} run" in " ".join(text.split())
    assert not named & set(type_names(lines))
    assert set(type_names(others)) == named
    if f"transformers {transformers.__version__} lists" in " ".join(text.split()):  # another one lists other types
        assert text.splitlines() == summary(lines, others)
