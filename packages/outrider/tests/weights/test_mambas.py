"""Files of models with Mamba-2, of both formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from outrider.errors import ModelFormatError
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hf_config.config import parse_config
from tests.weights.mambas import CASES, MORE, build, converted, write_gguf
from tests.weights.recurrents import save
from tests.weights.test_recurrents import check_folder, check_gguf, difference, needs_library


@needs_library
@pytest.mark.parametrize("case", [*CASES, *MORE])
def test_folders_give_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    check_folder(build(case), tmp_path)


@needs_library
@pytest.mark.parametrize("case", CASES)
def test_gguf_files_give_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = build(case)
    write_gguf(tmp_path / "m.gguf", case, converted(case, save(theirs, tmp_path)))
    check_gguf(theirs, tmp_path)


@pytest.mark.parametrize("case", CASES)
def test_quantised_rows_are_cut_and_never_changed(case: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", case, converted(case, save(build(case), tmp_path)), kind="Q8_0")
    found = open_gguf(tmp_path / "m.gguf").stored
    projections = [tensor for name, tensor in found.items() if ".linear_attn.in_proj_" in name]
    assert len(projections) >= 2 * 3
    assert all(tensor.type == "Q8_0" and tensor.mapped_file is not None for tensor in projections)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("granitehybrid", {"layer_types": ["mamba"] * 3}, "does not name one of"),
        ("granitehybrid", {"layer_types": ["mamba"] * 4}, "no layer with attention"),
        ("granitehybrid", {"mamba_d_conv": 1}, "a convolution of 1 row is not supported"),
        ("granitehybrid", {"mamba_n_groups": 3}, "3 groups do not divide 8 heads"),
        ("granitehybrid", {"mamba_d_head": 8}, "is not mamba_expand times hidden_size: 128"),
        ("granitehybrid", {"time_step_limit": [0.001, {"__float__": "Infinity"}]}, "only .0, Infinity. is"),
        ("granitehybrid", {"time_step_limit": 3}, "only .0, Infinity. is"),
        ("granitehybrid with experts", {"num_experts_per_tok": 7}, "is more than num_local_experts=6"),
        ("nemotron_h", {"layers_block_type": "MM"}, "does not name one of"),
        ("nemotron_h", {"layers_block_type": ["mamba", "conv"]}, "does not name one of"),
        ("nemotron_h", {"layers_block_type": ["mamba", "mlp"]}, "names no attention"),
        ("nemotron_h", {"mamba_n_groups": 3}, "3 groups do not divide 8 heads"),
        ("nemotron_h", {"mlp_hidden_act": "silu"}, "mlp_hidden_act='silu' is not supported"),
        ("nemotron_h with experts", {"moe_latent_size": 16}, "moe_latent_size=16 is not supported"),
        ("nemotron_h with experts", {"mlp_bias": True}, "mlp_bias=true beside experts"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(case: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        parse_config(build(case).config.to_dict() | changes)


@pytest.mark.parametrize(
    ("case", "changes", "message"),
    [
        ("granitehybrid", {"attention.head_count_kv": [0, 2]}, "is no number for each of 4 layers"),
        ("granitehybrid", {"attention.scale": None}, "attention_multiplier=None is not a positive number"),
        ("granitehybrid", {"ssm.time_step_rank": 7}, "ssm.inner_size=128 is no multiple of"),
        ("granitehybrid", {"ssm.state_size": 8}, "has shape"),
        ("granitehybrid", {"ssm.group_count": 2}, "has shape"),
        ("granitehybrid with experts", {"expert_shared_feed_forward_length": 64}, "has shape"),
        ("nemotron_h", {"feed_forward_length": [0, 96, 0, 0, 64]}, "one number is supported"),
        ("nemotron_h", {"feed_forward_length": [0, 96, 0, 0, 0]}, "is missing"),
        ("nemotron_h with experts", {"expert_gating_func": 1}, "expert_gating_func=1 is not supported"),
        ("nemotron_h with experts", {"moe_latent_size": 16}, "moe_latent_size=16 is not supported"),
    ],
)
def test_a_gguf_file_that_contradicts_itself_is_refused(
    case: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    write_gguf(tmp_path / "m.gguf", case, converted(case, save(build(case), tmp_path)), changes)
    with pytest.raises(ModelFormatError, match=message):
        open_gguf(tmp_path / "m.gguf")


def test_a_pattern_of_letters_names_the_layers() -> None:
    """As older files of the family have it."""
    config = build("nemotron_h with experts").config.to_dict()
    del config["layers_block_type"]
    older = parse_config(config | {"hybrid_override_pattern": "EM*ME", "num_hidden_layers": 52})
    assert older == parse_config(config | {"layers_block_type": ["moe", "mamba", "attention", "mamba", "moe"]})
    assert (older.num_layers, older.alone) == (5, ("mlp", "mixer", "mixer", "mixer", "mlp"))
    assert older.attention_layers == (2,)


@needs_library
def test_names_of_both_kinds_are_read(tmp_path: Path) -> None:
    """Published files begin with ``backbone``, and transformers' own names with ``model``."""
    theirs = build("nemotron_h")
    tensors = save(theirs, tmp_path)
    assert any(name.startswith("backbone.") for name in tensors)
    renamed = {name.replace("backbone.", "model."): tensor for name, tensor in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert difference(open_checkpoint(tmp_path), theirs) < 2e-6


def test_a_draft_head_in_a_gguf_file_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    case = "nemotron_h with experts"
    tensors = converted(case, save(build(case), tmp_path))
    head = {f"blk.5.{name}.weight": torch.ones(64) for name in ("attn_norm", "post_attention_norm", "nextn.enorm")}
    longer = {"block_count": 6, "nextn_predict_layers": 1, "attention.head_count_kv": [0, 0, 2, 0, 0, 2]}
    longer["feed_forward_length"] = [32, 0, 0, 0, 32, 32]
    write_gguf(tmp_path / "plain.gguf", case, tensors)
    write_gguf(tmp_path / "m.gguf", case, tensors | head, longer)
    found = open_gguf(tmp_path / "m.gguf")
    assert found.config == open_gguf(tmp_path / "plain.gguf").config
    assert "is not used" in caplog.text
