"""The programs of docs/vision.md, run with a tiny model in place of the one that they name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.docs.running import Runner
from tests.docs.snippets import ROOT, Block, blocks
from tests.vision_models import image

PAGE = ROOT / "docs" / "vision.md"
MODEL = "HuggingFaceTB/SmolVLM-256M-Instruct"


@pytest.mark.parametrize(
    "block", [block for block in blocks(PAGE) if any(MODEL in line for line in block.lines)], ids=lambda b: b.place
)
def test_the_pages_programs_run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: Block) -> None:
    image(1).save(tmp_path / "cat.png")
    monkeypatch.chdir(tmp_path)
    own = replace(block, lines=[line.replace(MODEL, str(folder)) for line in block.lines])
    runner = Runner()
    runner.run(own, compare=False)
    assert runner.printed.strip()
