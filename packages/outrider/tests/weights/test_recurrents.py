"""Files of models with short convolutions or Mamba-2, of both formats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec
from outrider.config.engine import Implementation
from outrider.errors import ModelFormatError
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hf_config.config import parse_config, to_hf_config
from tests import small_models
from tests.weights.recurrents import CASES, MORE, build, converted, save, write_gguf

needs_library = pytest.mark.skipif(library() is None, reason="no native library")


def difference(checkpoint: Checkpoint, theirs: Any, implementation: Implementation = "native") -> float:
    """The largest of 100 rows of logits, read in three passes, as a part of the largest logit."""
    tokens = small_models.ids(100, 277)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([tokens])).logits[0].numpy()
    model = make_model(checkpoint.config, checkpoint.stored, dtype="float32", implementation=implementation)
    cache = model.new_cache(CacheSpec(max_seq_len=128))
    slot = cache.allocate()
    parts = [small_models.feed(model, cache, (slot, part))[0] for part in (tokens[:37], tokens[37:38], tokens[38:])]
    found = np.concatenate(parts)
    assert np.array_equal(found.argmax(-1), wanted.argmax(-1))
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


def check_folder(theirs: Any, folder: Path) -> None:
    """Save a model of transformers and read it with both implementations."""
    save(theirs, folder)
    checkpoint = open_checkpoint(folder)
    assert parse_config(to_hf_config(checkpoint.config)) == checkpoint.config
    assert difference(checkpoint, theirs) < 2e-6
    assert difference(checkpoint, theirs, "torch") < 2e-6


def check_gguf(theirs: Any, saved: Path) -> None:
    """Read ``m.gguf`` with both implementations; it says what the folder beside it says."""
    found, folder = open_gguf(saved / "m.gguf"), open_checkpoint(saved)
    assert replace(found.config, rms_norm_eps=folder.config.rms_norm_eps) == folder.config
    assert found.stored.keys() == folder.stored.keys()
    assert difference(found, theirs) < 2e-6
    assert difference(found, theirs, "torch") < 2e-6


@needs_library
@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_folders_give_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    check_folder(build(case), tmp_path)


@needs_library
@pytest.mark.parametrize("arch", CASES)
def test_gguf_files_give_the_logits_of_transformers(arch: str, tmp_path: Path) -> None:
    theirs = build(arch)
    write_gguf(tmp_path / "m.gguf", arch, converted(arch, save(theirs, tmp_path)))
    check_gguf(theirs, tmp_path)


@pytest.mark.parametrize("arch", CASES)
def test_quantised_rows_are_cut_and_never_changed(arch: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", arch, converted(arch, save(build(arch), tmp_path)), kind="Q8_0")
    found = open_gguf(tmp_path / "m.gguf").stored
    assert found["model.layers.0.linear_attn.in_proj_qkv.weight"].type == "Q8_0"
    assert found["model.layers.0.linear_attn.in_proj_qkv.weight"].mapped_file is not None


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("lfm2", {"layer_types": ["conv", "sliding_attention", "conv", "conv"]}, "does not name one of"),
        ("lfm2", {"layer_types": ["conv"] * 4}, "no layer with attention"),
        ("lfm2", {"conv_L_cache": 1}, "conv_L_cache=1 is not supported"),
        ("lfm2moe", {"layer_types": None}, "layer_types is missing"),
        ("lfm2moe", {"num_experts_per_tok": 7}, "is more than num_experts=6"),
        ("lfm2", {"full_attn_idxs": 3, "layer_types": None}, "full_attn_idxs=3 is no list"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(case: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        parse_config(build(case).config.to_dict() | changes)


@pytest.mark.parametrize(
    ("arch", "changes", "message"),
    [
        ("lfm2", {"attention.head_count_kv": [0, 2]}, "is no number for each of 4 layers"),
        ("lfm2", {"attention.head_count_kv": [0, 2, 0, 4]}, "one number is supported"),
        ("lfm2", {"shortconv.l_cache": 9}, "has shape"),
        ("lfm2moe", {"expert_gating_func": 1}, "expert_gating_func=1 is not supported"),
        ("lfm2moe", {"leading_dense_block_count": 2}, "feed_forward.w1.weight is missing"),
    ],
)
def test_a_gguf_file_that_contradicts_itself_is_refused(
    arch: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "m.gguf", arch, converted(arch, save(build(arch), tmp_path)), changes)
    with pytest.raises(ModelFormatError, match=message):
        open_gguf(tmp_path / "m.gguf")
