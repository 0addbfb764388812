"""Files of models with recurrent layers, of both formats: the same tensors by the same names."""

from __future__ import annotations

import itertools
import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from outrider.cache import CacheSpec
from outrider.config.engine import Implementation
from outrider.errors import ModelFormatError
from outrider.models.config import RecurrentLayers
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider.native.stored import StoredTensor
from outrider.weights.files.parts import pair_order
from outrider.weights.files.side_by_side import rows_of
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hf_config.config import parse_config, read_config, to_hf_config
from outrider.weights.hub.catalog import resolve
from outrider.weights.hub.inventory import describe
from tests import small_models
from tests.tokenizer.vocabularies import byte_level
from tests.weights.hybrids import CASES, build, converted, head_tensors, randomise, save, text_options, tile, write_gguf


def _numbers(stored: StoredTensor) -> torch.Tensor:
    return torch.from_numpy(stored.numbers())


@pytest.mark.parametrize("arch", CASES)
def test_a_folder_is_read_by_canonical_names(arch: str, tmp_path: Path) -> None:
    own = save(build(arch), tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    config, found = checkpoint.config, checkpoint.stored
    assert config.recurrent == RecurrentLayers(
        layers=(True, True, True, False), key_heads=2, value_heads=6, key_dim=8, value_dim=8, convolution=4
    )
    assert (config.gated_attention, config.qk_norm, config.rotary_dim, config.mtp_layers) == (True, True, 4, 1)
    assert parse_config(to_hf_config(config)) == replace(config, mtp_layers=0)
    delta = "model.layers.1.linear_attn."
    assert torch.allclose(_numbers(found[delta + "decay"]), -own[delta + "A_log"].exp(), rtol=1e-6)
    assert torch.equal(_numbers(found[delta + "norm.weight"]), own[delta + "norm.weight"])  # nothing is added
    assert torch.equal(_numbers(found[delta + "conv1d.weight"]), own[delta + "conv1d.weight"].squeeze(1))
    for name in ("model.norm.weight", "model.layers.3.input_layernorm.weight", "mtp.pre_fc_norm_hidden.weight"):
        assert torch.equal(_numbers(found[name]), own[name] + 1)


@pytest.mark.parametrize("arch", CASES)
def test_a_gguf_file_holds_the_tensors_of_the_folder(arch: str, tmp_path: Path) -> None:
    own = save(build(arch), tmp_path)
    write_gguf(tmp_path / "m.gguf", arch, converted(arch, own))
    ours, theirs = open_gguf(tmp_path / "m.gguf"), open_checkpoint(tmp_path)
    assert ours.config.recurrent is not None
    assert ours.config.recurrent.tiled == (arch != "qwen3next")
    assert replace(ours.config, recurrent=theirs.config.recurrent) == theirs.config
    assert ours.stored.keys() == theirs.stored.keys()
    for name, stored in theirs.stored.items():
        values = tile(name, _numbers(stored)) if ours.config.recurrent.tiled else _numbers(stored)
        assert torch.allclose(_numbers(ours.stored[name]), values, rtol=1e-6, atol=1e-7), name


@pytest.mark.parametrize("arch", CASES)
def test_both_formats_give_the_logits_of_transformers(arch: str, tmp_path: Path) -> None:
    theirs, tokens = build(arch), small_models.ids(100, 277)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([tokens])).logits[0].numpy()
    write_gguf(tmp_path / "m.gguf", arch, converted(arch, save(theirs, tmp_path)))
    files = (open_checkpoint(tmp_path), open_gguf(tmp_path / "m.gguf"))
    kinds: tuple[Implementation, ...] = ("torch",) if library() is None else ("native", "torch")
    for checkpoint, implementation in itertools.product(files, kinds):
        model = make_model(checkpoint.config, checkpoint.stored, dtype="float32", implementation=implementation)
        cache = model.new_cache(CacheSpec(max_seq_len=128))
        slot = cache.allocate()
        parts = [small_models.feed(model, cache, (slot, part))[0] for part in (tokens[:37], tokens[37:38], tokens[38:])]
        found = np.concatenate(parts)
        assert np.abs(found - wanted).max() < 2e-6 * np.abs(wanted).max()
        assert np.array_equal(found.argmax(-1), wanted.argmax(-1))


@pytest.mark.parametrize("arch", CASES)
def test_quantised_rows_are_cut_and_never_changed(arch: str, tmp_path: Path) -> None:
    tensors = converted(arch, save(build(arch), tmp_path))
    write_gguf(tmp_path / "m.gguf", arch, tensors, kind="Q8_0")
    found = open_gguf(tmp_path / "m.gguf").stored
    attention, delta = "model.layers.3.self_attn.", "model.layers.0.linear_attn."
    matrices = [attention + "q_proj.weight", delta + "in_proj_qkv.weight", delta + "in_proj_a.weight", "mtp.fc.weight"]
    assert {found[name].type for name in matrices} == {"Q8_0"}
    assert all(found[name].mapped_file is not None for name in matrices)


def test_a_folder_beside_a_gguf_file_may_not_know_its_order_and_head(tmp_path: Path) -> None:
    own = save(build("qwen35"), tmp_path)
    (tmp_path / "model.safetensors").unlink()
    write_gguf(tmp_path / "model.gguf", "qwen35", converted("qwen35", own))
    checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.recurrent is not None
    assert checkpoint.config.recurrent.tiled
    assert checkpoint.config.mtp_layers == 1


def test_without_a_head_there_is_none(tmp_path: Path) -> None:
    own = save(build("qwen35"), tmp_path, head=False, config={"mtp_num_hidden_layers": 1})
    write_gguf(tmp_path / "m.gguf", "qwen35", converted("qwen35", own))
    for checkpoint in (open_gguf(tmp_path / "m.gguf"), open_checkpoint(tmp_path)):
        assert checkpoint.config.mtp_layers == 0
        assert not any(name.startswith("mtp.") for name in checkpoint.stored)


def test_a_head_with_an_embedding_of_its_own_is_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    tensors = converted("qwen35", save(build("qwen35"), tmp_path))
    write_gguf(
        tmp_path / "m.gguf", "qwen35", tensors | {"blk.4.nextn.embed_tokens.weight": tensors["token_embd.weight"] + 1}
    )
    with caplog.at_level(logging.WARNING):
        checkpoint = open_gguf(tmp_path / "m.gguf")
    assert checkpoint.config.mtp_layers == 0
    assert "is not used" in caplog.text


def test_a_head_without_a_norm_of_its_own_has_the_models(tmp_path: Path) -> None:
    tensors = converted("qwen35", save(build("qwen35"), tmp_path))
    write_gguf(tmp_path / "m.gguf", "qwen35", tensors | {"blk.4.nextn.shared_head_norm.weight": None})
    found = open_gguf(tmp_path / "m.gguf").stored
    assert np.array_equal(found["mtp.norm.weight"].numbers(), found["model.norm.weight"].numbers())


def _apart(folder: Path, arch: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Converted tensors of a model, and of its head alone with the embedding and LM head that its file repeats."""
    tensors = converted(arch, save(build(arch), folder))
    head = {name: tensor for name, tensor in tensors.items() if name.startswith("blk.4.")}
    model = {name: tensor for name, tensor in tensors.items() if name not in head}
    return model, head | {name: tensors[name] for name in ("token_embd.weight", "output_norm.weight", "output.weight")}


@pytest.mark.parametrize("arch", CASES)
def test_a_head_may_be_a_file_beside_the_models(arch: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    model, head = _apart(tmp_path, arch)
    write_gguf(tmp_path / "whole.gguf", arch, model | head)
    (tmp_path / "beside").mkdir()
    write_gguf(tmp_path / "beside" / "m-Q8_0.gguf", arch, model)
    write_gguf(tmp_path / "beside" / "mtp-m-Q8_0.gguf", arch, head)
    folder = resolve(str(tmp_path / "beside" / "m-Q8_0.gguf"))
    assert resolve(str(tmp_path / "beside")) == folder  # the head is no second model
    found, whole = open_checkpoint(folder), open_gguf(tmp_path / "whole.gguf")
    assert found.config == whole.config
    assert found.stored.keys() == whole.stored.keys()
    assert all(np.array_equal(found.stored[name].numbers(), whole.stored[name].numbers()) for name in whole.stored)


def test_a_head_of_another_model_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model, head = _apart(tmp_path, "qwen35")
    (tmp_path / "model.safetensors").unlink()
    write_gguf(tmp_path / "model.gguf", "qwen35", model)
    write_gguf(tmp_path / "mtp-other.gguf", "qwen35", head, {"feed_forward_length": 48})
    with caplog.at_level(logging.WARNING):
        checkpoint = open_checkpoint(tmp_path)
    assert checkpoint.config.mtp_layers == 0
    assert "mtp-other.gguf is not used as a draft head" in caplog.text
    write_gguf(tmp_path / "mtp-model.gguf", "qwen35", head)  # of the model's name
    assert open_checkpoint(tmp_path).config.mtp_layers == 1


def test_rows_side_by_side_are_counted_once(tmp_path: Path) -> None:
    own = save(build("qwen3next"), tmp_path)
    byte_level(tmp_path)
    assert describe(str(tmp_path))["parameters"] == sum(tensor.numel() for tensor in own.values())


def test_older_files_of_qwen3_next_have_one_matrix_for_q_k_v_and_z(tmp_path: Path) -> None:
    own = save(build("qwen3next"), tmp_path)
    tensors = converted("qwen3next", own)
    old = {f"blk.{i}.ssm_in.weight": own[f"model.layers.{i}.linear_attn.in_proj_qkvz.weight"] for i in range(3)}
    gone = {f"blk.{i}.attn_{part}.weight": None for i in range(3) for part in ("qkv", "gate")}
    write_gguf(tmp_path / "m.gguf", "qwen3next", tensors)
    write_gguf(tmp_path / "old.gguf", "qwen3next", tensors | gone | old)
    new, found = open_gguf(tmp_path / "m.gguf").stored, open_gguf(tmp_path / "old.gguf").stored
    assert new.keys() == found.keys()
    for name in new:
        assert np.array_equal(new[name].numbers(), found[name].numbers()), name


def test_experts_gates_and_ups_may_be_one_tensor(tmp_path: Path) -> None:
    tensors = converted("qwen35moe", save(build("qwen35moe"), tmp_path))
    write_gguf(tmp_path / "m.gguf", "qwen35moe", tensors)
    fused: dict[str, Any] = dict(tensors)
    for block in range(5):
        gate, up = (fused.pop(f"blk.{block}.ffn_{part}_exps.weight") for part in ("gate", "up"))
        fused[f"blk.{block}.ffn_gate_up_exps.weight"] = torch.cat([gate, up], dim=1)
    write_gguf(tmp_path / "fused.gguf", "qwen35moe", fused)
    apart, together = open_gguf(tmp_path / "m.gguf").stored, open_gguf(tmp_path / "fused.gguf").stored
    assert apart.keys() == together.keys()
    for name in apart:
        assert np.array_equal(apart[name].numbers(), together[name].numbers()), name


def test_rows_side_by_side_are_those_that_transformers_computes() -> None:
    options = text_options("qwen3next")
    layer = transformers.models.qwen3_next.modeling_qwen3_next.Qwen3NextGatedDeltaNet(
        transformers.Qwen3NextConfig(**options), 0
    )
    recurrent = RecurrentLayers(layers=(True,), key_heads=2, value_heads=6, key_dim=8, value_dim=8, convolution=4)
    qkvz, ba = torch.arange(128.0)[None, None], torch.arange(12.0)[None, None]  # outputs that are their own numbers
    q, k, v, z, b, a = (part.flatten() for part in layer.fix_query_key_value_ordering(qkvz, ba))
    assert rows_of("qkv", recurrent).tolist() == torch.cat([q, k, v]).tolist()
    assert rows_of("z", recurrent).tolist() == z.tolist()
    assert rows_of("b", recurrent).tolist() == b.tolist()
    assert rows_of("a", recurrent).tolist() == a.tolist()


def test_the_gate_of_a_head_follows_its_query_and_is_not_rotated() -> None:
    order = pair_order(2, 8, 4, False, gated=True)
    assert order is not None
    assert order.tolist() == [
        *(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
        *(16, 17, 20, 21, 18, 19, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31),
    ]


@pytest.mark.parametrize("kind", ["Qwen3_5", "Qwen3_5Moe"])
def test_the_text_of_a_model_of_text_and_images(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arch = "qwen35" if kind == "Qwen3_5" else "qwen35moe"
    vision = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    config = getattr(transformers, f"{kind}Config")(text_config=text_options(arch), vision_config=vision)
    torch.manual_seed(0)
    model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    randomise(model)
    whole = tmp_path / "whole"
    model.save_pretrained(whole)
    tensors = load_file(whole / "model.safetensors")
    head = head_tensors(tensors)
    save_file(tensors | head, whole / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING):
        found = open_checkpoint(whole)
    assert "its vision part" in caplog.text
    assert found.config.family == f"{config.model_type}_text"
    assert found.config.mtp_layers == 1
    text = tmp_path / "text"
    text.mkdir()
    own = {name.replace("model.language_model.", "model."): value for name, value in tensors.items()}
    own = {name: value for name, value in own.items() if ".visual." not in name}
    (text / "config.json").write_text(json.dumps(config.text_config.to_dict() | {"tie_word_embeddings": False}))
    save_file(own | head, text / "model.safetensors", metadata={"format": "pt"})
    alone = open_checkpoint(text)
    assert found.config == alone.config
    assert found.stored.keys() == alone.stored.keys()
    assert all(torch.equal(_numbers(found.stored[name]), _numbers(alone.stored[name])) for name in alone.stored)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"linear_num_value_heads": 5}, "linear_num_key_heads=2 does not divide linear_num_value_heads=5"),
        ({"layer_types": ["linear_attention"] * 3}, "does not name one of"),
        ({"layer_types": ["sliding_attention"] * 4}, "does not name one of"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim=0 is not a positive integer"),
        ({"text_config": {}}, "text_config={} is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu' is not supported"),
        ({"model_type": "qwen3_5"}, "text_config=None is no object"),
        ({"model_type": "qwen3_5", "text_config": {"model_type": "llama"}}, "is not qwen3_5_text, as qwen3_5 needs"),
    ],
)
def test_a_config_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    save(build("qwen35"), tmp_path, config=changes)
    with pytest.raises(ModelFormatError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.recurrent_layers": [True, False]}, "does not name the kind of each of 5 blocks"),
        ({"nextn_predict_layers": 5}, "block_count=5 leaves no layer"),
        ({"nextn_predict_layers": "x"}, "is no number of blocks"),
        ({"ssm.inner_size": 47}, "is no multiple of"),
        ({"ssm.group_count": 4}, "linear_num_key_heads=4 does not divide linear_num_value_heads=6"),
        ({"ssm.state_size": 4}, "linear_attn.in_proj_qkv.weight has shape"),
        ({"nextn_predict_layers": None}, "recurrent_layers|belongs to no|in_proj"),
    ],
)
def test_a_gguf_file_that_contradicts_itself_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", "qwen35", converted("qwen35", save(build("qwen35"), tmp_path)), changes)
    with pytest.raises(ModelFormatError, match=message):
        open_gguf(tmp_path / "m.gguf")


def test_a_file_without_the_list_of_kinds_has_every_fourth_layer_attend(tmp_path: Path) -> None:
    tensors = converted("qwen35", save(build("qwen35"), tmp_path))
    write_gguf(tmp_path / "m.gguf", "qwen35", tensors, {"attention.recurrent_layers": None})
    config = open_gguf(tmp_path / "m.gguf").config
    assert config.attention_layers == (3,)
