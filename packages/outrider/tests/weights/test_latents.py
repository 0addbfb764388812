"""Files of models that attend to latents, of both formats: the same tensors by the same names."""

from __future__ import annotations

import itertools
import logging
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
from outrider.native.stored import StoredTensor
from outrider.native.weights import swapped_heads
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hf_config.config import parse_config, read_config, to_hf_config
from tests import small_models
from tests.weights.latents import CASES, build, converted, save, write_gguf

needs_library = pytest.mark.skipif(library() is None, reason="no native library")
_FACTORS = ("attention.temperature_scale", "attention.temperature_length")
every_family = pytest.mark.parametrize("family", CASES)


def numbers(stored: StoredTensor) -> Any:
    return (swapped_heads(stored) if stored.swapped else stored).numbers()


@every_family
def test_a_folder_is_read_by_canonical_names(family: str, tmp_path: Path) -> None:
    heads = int(family != "mistral4")
    own = save(build(family), tmp_path, head=bool(heads))
    checkpoint = open_checkpoint(tmp_path)
    config, found = checkpoint.config, checkpoint.stored
    assert (config.num_kv_heads, config.head_dim, config.rope_dim, config.value_dim) == (1, 40, 8, 32)
    assert [config.is_sparse(layer) for layer in range(3)] == [False, True, True]
    assert config.mtp_layers == heads
    assert parse_config(to_hf_config(config)) == replace(config, mtp_layers=0)
    for ours, theirs in (("model.layers.1.", "model.layers.1."), ("mtp.layers.0.", "model.layers.3."))[: 1 + heads]:
        both = own[f"{theirs}self_attn.kv_b_proj.weight"].unflatten(0, (4, 40))
        keys = numbers(found[f"{ours}self_attn.k_b_proj.weight"]).reshape(4, 32, 24)
        assert np.array_equal(keys, both[:, :24].transpose(1, 2))
        assert np.array_equal(numbers(found[f"{ours}self_attn.v_b_proj.weight"]).reshape(4, 16, 32), both[:, 24:])
        latents = own[f"{theirs}self_attn.kv_a_proj_with_mqa.weight"]
        turned = torch.cat([latents[:32], latents[32::2], latents[33::2]])
        assert np.array_equal(numbers(found[f"{ours}self_attn.kv_a_proj_with_mqa.weight"]), turned)
    for name, place in (("fc", "eh_proj"), ("pre_fc_norm_embedding", "enorm"), ("norm", "shared_head.norm"))[
        : 3 * heads
    ]:
        assert np.array_equal(numbers(found[f"mtp.{name}.weight"]), own[f"model.layers.3.{place}.weight"])


@every_family
@pytest.mark.parametrize("older", [False, True], ids=["newer", "older"])
def test_a_gguf_file_holds_the_tensors_of_the_folder(family: str, older: bool, tmp_path: Path) -> None:
    own = save(build(family), tmp_path, head=family != "mistral4")
    write_gguf(tmp_path / "m.gguf", family, converted(own, older=older))
    ours, theirs = open_gguf(tmp_path / "m.gguf"), open_checkpoint(tmp_path)
    assert ours.config.latent is not None
    assert ours.config.latent.eps == theirs.config.rms_norm_eps  # as llama.cpp has it
    assert replace(ours.config, latent=theirs.config.latent, family=theirs.config.family) == theirs.config
    assert ours.stored.keys() == theirs.stored.keys()
    for name, stored in theirs.stored.items():
        assert np.array_equal(numbers(ours.stored[name]), numbers(stored)), name


@needs_library
@every_family
def test_both_formats_give_the_logits_of_transformers(family: str, tmp_path: Path) -> None:
    theirs, tokens = build(family), small_models.ids(100, 277)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([tokens])).logits[0].numpy()
    own = save(theirs, tmp_path)
    write_gguf(tmp_path / "m.gguf", family, converted(own))
    write_gguf(tmp_path / "older.gguf", family, converted(own, older=True))
    files = (open_checkpoint(tmp_path), open_gguf(tmp_path / "m.gguf"), open_gguf(tmp_path / "older.gguf"))
    kinds: tuple[Implementation, ...] = ("native", "torch")
    for checkpoint, implementation in itertools.product(files, kinds):
        latent = open_checkpoint(tmp_path).config.latent  # whose epsilon is transformers'
        config = replace(checkpoint.config, latent=latent)
        model = make_model(config, checkpoint.stored, dtype="float32", implementation=implementation)
        cache = model.new_cache(CacheSpec(max_seq_len=128))
        slot = cache.allocate()
        parts = [small_models.feed(model, cache, (slot, part))[0] for part in (tokens[:37], tokens[37:38], tokens[38:])]
        found = np.concatenate(parts)
        assert np.abs(found - wanted).max() < 4e-6 * np.abs(wanted).max()
        assert np.array_equal(found.argmax(-1), wanted.argmax(-1))


@needs_library
def test_quantised_rows_for_keys_become_halves(tmp_path: Path) -> None:
    own = save(build("deepseek_v3"), tmp_path)
    write_gguf(tmp_path / "m.gguf", "deepseek_v3", converted(own, older=True), kind="Q8_0")
    checkpoint = open_gguf(tmp_path / "m.gguf")
    stored = checkpoint.stored["model.layers.0.self_attn.k_b_proj.weight"]
    assert (stored.type, stored.swapped, swapped_heads(stored).type) == ("Q8_0", 4, "F16")
    keys = own["model.layers.0.self_attn.kv_b_proj.weight"].unflatten(0, (4, 40))[:, :24].transpose(1, 2)
    assert np.abs(numbers(stored) - keys.reshape(128, 24).numpy()).max() < float(keys.abs().max()) / 200
    model = make_model(checkpoint.config, checkpoint.stored)
    cache = model.new_cache(CacheSpec(max_seq_len=128))
    assert np.isfinite(small_models.feed(model, cache, (cache.allocate(), small_models.ids(40, 277)))[0]).all()


def test_a_head_with_an_embedding_of_its_own_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    from safetensors.torch import save_file

    tensors = save(build("deepseek_v3"), tmp_path, head=True)
    tensors["model.layers.3.embed_tokens.weight"] += 1
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING):
        checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.mtp_layers == 0
    assert "embed_tokens of its own is not used" in caplog.text


@needs_library
def test_copies_of_the_models_embedding_are_none_of_the_heads(tmp_path: Path) -> None:
    """Also in another type than the model's own, as quantised files have them."""
    own = save(build("glm4_moe_lite"), tmp_path, head=True)
    tensors = converted(own)
    copies = {"embed_tokens": "token_embd", "shared_head_head": "output"}
    tensors |= {f"blk.3.nextn.{copy}.weight": tensors[f"{name}.weight"] for copy, name in copies.items()}
    tensors["blk.3.nextn.embed_tokens.weight"] = tensors["token_embd.weight"] * 1.01
    write_gguf(tmp_path / "m.gguf", "glm4_moe_lite", tensors, kind="Q8_0")
    assert open_gguf(tmp_path / "m.gguf").config.mtp_layers == 1
    tensors["blk.3.nextn.shared_head_head.weight"] = tensors["token_embd.weight"]
    write_gguf(tmp_path / "other.gguf", "glm4_moe_lite", tensors)
    assert open_gguf(tmp_path / "other.gguf").config.mtp_layers == 0


def test_a_config_beside_a_gguf_file_may_not_know_its_epsilon(tmp_path: Path) -> None:
    own = save(build("deepseek_v3"), tmp_path, config={"rms_norm_eps": 1e-5})
    (tmp_path / "model.safetensors").unlink()
    write_gguf(tmp_path / "model.gguf", "deepseek_v3", converted(own), {"attention.layer_norm_rms_epsilon": 1e-5})
    assert open_checkpoint(tmp_path).config.latent == open_gguf(tmp_path / "model.gguf").config.latent


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"qk_rope_head_dim": 7}, "qk_rope_head_dim=7 is odd"),
        ({"kv_lora_rank": 0}, "kv_lora_rank=0 is not a positive integer"),
        ({"first_k_dense_replace": -1}, "first_k_dense_replace=-1 is no number of layers"),
        ({"n_group": 3}, "n_group=3 and topk_group=2 do not share out 8 experts"),
        ({"topk_group": 5}, "n_group=4 and topk_group=5 do not share out 8 experts"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9 is more than n_routed_experts=8"),
        ({"rope_interleave": False}, "rope_interleave=False is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save(build("deepseek_v3"), tmp_path, config=changes)
    with pytest.raises(ModelFormatError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_gating_func": 3}, "expert_gating_func=3 is not supported"),
        ({"attention.key_length_mla": 8}, "key_length=8 leaves nothing beside 8 rotated"),
        ({"rope.scaling.yarn_log_multiplier": -1.0}, "yarn_log_multiplier=-1.0 is no factor"),
        ({"rope.scaling.attn_factor": 2.0}, "attn_factor is not supported"),
        ({"attention.temperature_scale": 0.1}, "temperature_scale=0.1.* is not supported"),
        ({"attention.kv_lora_rank": 48}, "has shape"),
    ],
)
def test_a_gguf_file_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    tensors = converted(save(build("deepseek_v3"), tmp_path))
    write_gguf(tmp_path / "m.gguf", "deepseek_v3", tensors, changes)
    with pytest.raises(ModelFormatError, match=message):
        open_gguf(tmp_path / "m.gguf")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"expert_gating_func": 2}, "expert_gating_func=2 is not supported: only 1 is"),
        ({"attention.temperature_scale": -0.1}, "llama_4_scaling_beta=-0.1.* is not"),
    ],
)
def test_a_mistral4_file_of_another_kind_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "mistral4", converted(save(build("mistral4"), tmp_path)), changes)
    with pytest.raises(ModelFormatError, match=message):
        open_gguf(tmp_path / "m.gguf")


def test_without_its_factors_on_queries_a_file_has_the_context_where_they_are_one(tmp_path: Path) -> None:
    """As llama.cpp's converter writes files of Mistral 4."""
    tensors = converted(save(build("mistral4"), tmp_path))
    write_gguf(tmp_path / "m.gguf", "mistral4", tensors, dict.fromkeys(_FACTORS))
    config = open_gguf(tmp_path / "m.gguf").config
    assert (config.max_seq_len, config.query_temperature) == (32, None)
