"""What `outrider models list` shows where its table has no room, and of files that are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cli.listing import Listed, fits, list_lines, narrow_lines
from outrider.weights.hub.inventory import ModelEntry

HEADINGS = ["name", "from", "runs", "drafts", "tokens/s"]
ROWS = [("/a/long/path/to/a/model.gguf", "gguf", "yes", "suffix,mtp", "12.5"), ("other", "hub", "no", "", "")]


def test_a_table_without_room_becomes_lines() -> None:
    width = 28 + 4 + 4 + 10 + 8 + 3 * 5 + 1  # of the texts, of what stands between them, and of the frame
    assert fits(HEADINGS, ROWS, width)
    assert not fits(HEADINGS, ROWS, width - 1)
    assert narrow_lines(HEADINGS, ROWS) == [
        ("/a/long/path/to/a/model.gguf", "gguf · runs · drafts suffix,mtp · 12.5 tokens/s"),
        ("other", "hub · does not run"),
    ]


@pytest.mark.parametrize("count", [3, 4])
def test_many_files_that_are_gone_are_one_line(tmp_path: Path, count: int) -> None:
    files = [tmp_path / f"{number}.gguf" for number in range(count)]
    entries = [
        ModelEntry(str(file), "gguf", None, 2_000_000, None, True, tmp_path, file=file, problem=f"{file} is no file")
        for file in files
    ]
    lines = list_lines([Listed(entry, None) for entry in entries])
    named = [line for line in lines if "is no file" in line]
    assert len(named) == (3 if count == 3 else 0)
    assert any("4 in Outrider's cache, 8 MB, were made from files that are gone" in line for line in lines) == (
        count > 3
    )
