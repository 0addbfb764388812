"""gpt-oss from floats, from blocks of MXFP4, and from GGUF: one model, and transformers' answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.cache import CacheSpec
from outrider.errors import ModelFormatError
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider.verify.arrays import Floats
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hf_config.config import parse_config, to_hf_config
from tests import small_models
from tests.weights.gpt_oss_files import IDS, D, change_config, write_all, write_gguf


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Floats]:
    """A folder with ``floats``, ``blocks`` and ``m.gguf``, and transformers' logits."""
    folder = tmp_path_factory.mktemp("gpt-oss")
    return folder, write_all(folder)


def logits(checkpoint: Checkpoint, dtype: Any = "float32", sizes: tuple[int, ...] = (60,)) -> Floats:
    model = make_model(checkpoint.config, checkpoint.stored, quantised=checkpoint.quantised, dtype=dtype)
    cache = model.new_cache(CacheSpec(max_seq_len=64))
    slot, parts, at = cache.allocate(), [], 0
    for size in sizes:
        parts.append(np.asarray(small_models.feed(model, cache, (slot, IDS[at : at + size]))[0]))
        at += size
    return np.concatenate(parts)


@pytest.mark.skipif(library() is None, reason="no native library")
def test_all_files_are_one_model(files: tuple[Path, Floats]) -> None:
    folder, theirs = files
    floats, blocks = open_checkpoint(folder / "floats"), open_checkpoint(folder / "blocks")
    whole = open_gguf(folder / "m.gguf")
    assert floats.config == blocks.config == whole.config == parse_config(to_hf_config(floats.config))
    for other in (blocks, whole):
        assert {t.type for name, t in other.stored.items() if ".experts." in name and "bias" not in name} == {"MXFP4"}
    ours = logits(floats)
    assert float(np.abs(ours - theirs).max() / np.abs(theirs).max()) < 2e-6
    assert np.array_equal(logits(blocks), ours)
    assert np.array_equal(logits(whole), ours)
    assert np.array_equal(logits(blocks, "auto"), logits(whole, "auto", (7, 1, 1, 40, 11)))


def test_other_quantisations_and_bytes_in_wrong_places_are_refused(files: tuple[Path, Floats], tmp_path: Path) -> None:
    good = files[0] / "blocks"
    tensors = load_file(good / "model.safetensors")
    name = "model.layers.0.mlp.experts.down_proj_blocks"
    for wrong, message in (
        ({name: tensors[name].bfloat16()}, "dtype 'BF16': only U8 is"),
        ({"model.norm.weight": torch.ones(D, dtype=torch.uint8)}, "dtype 'U8': only BF16"),
        ({name: tensors[name][:, :, :1].contiguous()}, "has shape"),
    ):
        save_file(tensors | wrong, tmp_path / "model.safetensors", metadata={"format": "pt"})
        (tmp_path / "config.json").write_text((good / "config.json").read_text())
        with pytest.raises(ModelFormatError, match=message):
            open_checkpoint(tmp_path)
    change_config(tmp_path, quantization_config={"quant_method": "fp8"})
    with pytest.raises(ModelFormatError, match="quantised checkpoints"):
        open_checkpoint(tmp_path)


def test_another_base_in_windows_is_refused(files: tuple[Path, Floats], tmp_path: Path) -> None:
    tensors = load_file(files[0] / "floats" / "model.safetensors")
    write_gguf(tmp_path / "m.gguf", tensors, {}, **{"rope.freq_base_swa": 1000.0})
    with pytest.raises(ModelFormatError, match="freq_base_swa=1000"):
        open_gguf(tmp_path / "m.gguf")
