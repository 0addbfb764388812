"""Files of models with Mamba-2, of both formats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hf_config.config import parse_config, to_hf_config
from tests.weights.mambas import CASES, MORE, build, converted, write_gguf
from tests.weights.recurrents import save
from tests.weights.test_recurrents import difference, needs_library


@needs_library
@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_folders_give_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = build(case)
    save(theirs, tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    assert parse_config(to_hf_config(checkpoint.config)) == checkpoint.config
    assert difference(checkpoint, theirs) < 2e-6


@needs_library
@pytest.mark.parametrize("case", CASES)
def test_gguf_files_give_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = build(case)
    write_gguf(tmp_path / "m.gguf", case, converted(case, save(theirs, tmp_path)))
    found, folder = open_gguf(tmp_path / "m.gguf"), open_checkpoint(tmp_path)
    assert replace(found.config, rms_norm_eps=folder.config.rms_norm_eps) == folder.config
    assert found.stored.keys() == folder.stored.keys()
    assert difference(found, theirs) < 2e-6
