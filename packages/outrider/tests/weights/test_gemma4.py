"""Gemma 4 in both formats: the logits of transformers, the same bits in any company, and what is refused."""

from __future__ import annotations

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
from outrider.errors import ConfigError, ModelFormatError
from outrider.models.factory import make_model
from outrider.models.native_gemma4 import LayerRows
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hf_config.config import parse_config, read_config, to_hf_config
from tests import small_models
from tests.weights.gemma4s import CASES, build, converted, write_gguf

TOKENS = small_models.ids(100, 277)
Floats = np.ndarray[Any, Any]


def logits(checkpoint: Checkpoint, sizes: tuple[int, ...] = (37, 1, 62)) -> Floats:
    model = make_model(checkpoint.config, checkpoint.stored, dtype="float32", implementation="native")
    cache, at, found = model.new_cache(CacheSpec(max_seq_len=128)), 0, []
    slot = cache.allocate()
    for size in sizes:
        found.append(small_models.feed(model, cache, (slot, TOKENS[at : at + size]))[0])
        at += size
    return np.concatenate(found)


@pytest.mark.parametrize("case", CASES)
def test_both_formats_give_the_logits_of_transformers(case: str, tmp_path: Path) -> None:
    theirs = build(case)
    theirs.save_pretrained(tmp_path)
    write_gguf(tmp_path / "m.gguf", theirs)
    with torch.inference_mode():
        wanted = theirs(torch.tensor([TOKENS])).logits[0].numpy()
        exact = theirs.double()(torch.tensor([TOKENS])).logits[0].numpy()
    largest = np.abs(wanted).max()
    own_error = np.abs(wanted - exact).max() / largest  # of transformers in float32
    folder, file = open_checkpoint(tmp_path), open_gguf(tmp_path / "m.gguf")
    assert folder.config == file.config == parse_config(to_hf_config(file.config))
    for checkpoint in (folder, file):
        found = logits(checkpoint)
        assert np.abs(found - exact).max() < max(2e-6, 1.5 * own_error) * largest
        assert np.array_equal(found.argmax(-1), wanted.argmax(-1))
    assert np.array_equal(logits(folder, (100,)), found)


@pytest.mark.parametrize("case", CASES)
def test_every_part_of_a_layer_counts(case: str, tmp_path: Path) -> None:
    """A model without one of them has other logits: what the comparison above would not see is not there."""
    theirs = build(case)
    theirs.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    whole, gemma4 = logits(checkpoint, (100,)), checkpoint.config.gemma4
    assert gemma4 is not None
    parts = [name for name in checkpoint.stored if name.startswith("model.layers.4.") and ".experts." not in name]
    assert len(parts) > 10
    tensors = checkpoint.stored
    for name in parts:
        if tensors[name].shape == (1,) or "norm" in name or "scale" in name:
            other = replace(tensors[name], data=tensors[name.replace("layers.4.", "layers.1.")].data)
            changed = Checkpoint(checkpoint.config, {**tensors, name: other})
            assert not np.array_equal(logits(changed, (100,)), whole), name


def test_keys_of_shared_layers_take_no_memory(tmp_path: Path) -> None:
    build("layer embeddings").save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    model = make_model(checkpoint.config, checkpoint.stored, implementation="native")
    pool = model.new_cache(CacheSpec(max_seq_len=128)).pool
    assert [keys.shape[1:] for keys in pool.k] == [(1, 16), (1, 16), (1, 32)]
    assert checkpoint.config.cache_heads == ((1, 16), (1, 16), (1, 32))


def test_embeddings_of_layers_stay_in_their_file(tmp_path: Path) -> None:
    theirs = build("layer embeddings")
    theirs.save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    name = "model.embed_tokens_per_layer.weight"
    assert checkpoint.stored[name].mapped_file is not None
    rows = LayerRows.of(checkpoint.config, checkpoint.stored)
    assert rows is not None
    table = theirs.model.embed_tokens_per_layer.weight
    assert np.array_equal(rows([7, 3, 7]), table[[7, 3, 7]].detach().numpy() * np.float32(32**0.5))
    model = make_model(checkpoint.config, checkpoint.stored, dtype="float32", implementation="native")
    others = sum(stored.data.nbytes for other, stored in checkpoint.stored.items() if other != name)
    assert model.weight_bytes < 1.2 * others


def test_the_text_of_a_model_that_sees_and_hears(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    theirs = build("layer embeddings")
    theirs.save_pretrained(tmp_path / "text")
    whole = tmp_path / "whole"
    whole.mkdir()
    text = json.loads((tmp_path / "text" / "config.json").read_text())
    (whole / "config.json").write_text(
        json.dumps({"model_type": "gemma4", "text_config": text, "eos_token_id": [2, 5]})
    )
    tensors = load_file(tmp_path / "text" / "model.safetensors")
    own = {name.replace("model.", "model.language_model.", 1): tensor for name, tensor in tensors.items()}
    unseen = {f"model.{part}.weight": torch.zeros(2) for part in ("vision_tower.x", "embed_vision.x", "audio_tower.x")}
    save_file(own | unseen, whole / "model.safetensors", metadata={"format": "pt"})
    with caplog.at_level(logging.WARNING):
        found = open_checkpoint(whole)
    assert "(3 tensors) is not loaded" in caplog.text
    alone = open_checkpoint(tmp_path / "text")
    assert replace(found.config, eos_token_ids=alone.config.eos_token_ids) == alone.config
    assert found.stored.keys() == alone.stored.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_bidirectional_attention": "all"}, "use_bidirectional_attention='all' is not supported"),
        ({"hidden_activation": "relu"}, "hidden_activation='relu' is not supported"),
        ({"num_kv_shared_layers": 4}, "leaves no layer of each kind that has keys"),
        ({"per_layer_config": {"2": {"head_dim": 64}}}, "heads that differ within a kind"),
        ({"per_layer_config": {"2": {"hidden_size": 64}, "5": {}}}, "only heads may differ"),
        ({"per_layer_config": None, "global_head_dim": 31}, "1 key heads of 31 dimensions"),
        ({"vocab_size_per_layer_input": 5}, "vocab_size_per_layer_input=5 is less than vocab_size"),
        ({"enable_moe_block": True, "num_experts": 2, "top_k_experts": 3}, "top_k_experts=3 is more than"),
        ({"layer_types": ["full_attention"] * 6, "num_kv_shared_layers": 0}, "names no sliding_attention"),
    ],
)
def test_a_config_that_cannot_be_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    build("layer embeddings").config.save_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(said | changes))
    with pytest.raises(ModelFormatError, match=message):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention.sliding_window_pattern": [True]}, "has no value for each of 6 layers"),
        ({"attention.value_length_swa": 8}, "key_length_swa=16 is not supported"),
        ({"feed_forward_length": [96, 48, 96, 96, 96, 96]}, "one size is, and its double"),
        ({"rope.dimension_count": 16}, "rope.dimension_count=16 is not supported"),
        ({"attention.shared_kv_layers": 6}, "leaves no layer of each kind"),
    ],
)
def test_a_gguf_file_that_cannot_be_is_refused(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", build("values that are keys"), changes)
    with pytest.raises(ModelFormatError, match=message):
        open_gguf(tmp_path / "m.gguf")


def test_divisors_of_another_model_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = build("values that are keys")
    tensors = converted(theirs) | {"rope_freqs.weight": torch.tensor([1.0, 2.0] * 8)}
    monkeypatch.setattr("tests.weights.gemma4s.converted", lambda model: tensors)
    write_gguf(tmp_path / "m.gguf", theirs)
    with pytest.raises(ModelFormatError, match="the first pairs turn"):
        open_gguf(tmp_path / "m.gguf")


def test_torch_refuses_what_it_does_not_compute(tmp_path: Path) -> None:
    build("experts").save_pretrained(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ConfigError, match="which only the native library computes"):
        make_model(checkpoint.config, checkpoint.stored, implementation="torch")


def test_the_last_layer_has_no_window() -> None:
    raw = transformers.Gemma4TextConfig(num_hidden_layers=7).to_dict()
    assert parse_config(raw | {"layer_types": None}).window_layers == (True,) * 5 + (False, False)
