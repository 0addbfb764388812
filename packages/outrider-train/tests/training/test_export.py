"""Heads in the layout of the speculators library: its names, shapes and conventions."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.errors import ConfigError, IncompatibleDraftError, ModelFormatError
from outrider_torch.heads import load_head, save_head
from outrider_torch.heads.vocabulary import ScoringHead
from outrider_train.options import HeadOptions
from outrider_train.published.export import to_speculators
from outrider_train.published.import_head import import_head
from outrider_train.recipes import head_task
from tests.model_folders import model_folder
from tests.training import small


def save(folder: Path, kind: str, **options: object) -> Path:
    task = head_task(small.setup(folder), HeadOptions(kind, **options), 0)  # type: ignore[arg-type]
    task.save(folder / kind, {})
    return folder / kind


def test_the_layout_is_the_librarys(tmp_path: Path) -> None:
    model_folder(tmp_path / "target", num_hidden_layers=8)
    head = save(tmp_path, "eagle3", draft_vocab=40)
    to_speculators(head, tmp_path / "target", tmp_path / "out", "org/target")
    tensors = load_file(tmp_path / "out" / "model.safetensors")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    d, ffn, vocab = 64, 96, small.setup(tmp_path).config.vocab_size
    expected = {
        "fc.weight": (d, 3 * d),
        "embed_tokens.weight": (vocab, d),
        "lm_head.weight": (40, d),
        "norm.weight": (d,),
        "d2t": (40,),
        "t2d": (vocab,),
        "layers.0.input_layernorm.weight": (d,),
        "layers.0.hidden_norm.weight": (d,),
        "layers.0.post_attention_layernorm.weight": (d,),
        "layers.0.self_attn.q_proj.weight": (d, 2 * d),
        "layers.0.self_attn.k_proj.weight": (d // 2, 2 * d),
        "layers.0.self_attn.v_proj.weight": (d // 2, 2 * d),
        "layers.0.self_attn.o_proj.weight": (d, d),
        "layers.0.mlp.gate_proj.weight": (ffn, d),
        "layers.0.mlp.up_proj.weight": (ffn, d),
        "layers.0.mlp.down_proj.weight": (d, ffn),
    }
    assert {name: tuple(t.shape) for name, t in tensors.items()} == expected
    module = load_head(head)[0]
    assert isinstance(module, ScoringHead)
    ids = module.draft_ids
    assert ids is not None
    assert torch.equal(tensors["d2t"] + torch.arange(40), ids)
    assert tensors["t2d"].nonzero()[:, 0].tolist() == ids.tolist()
    assert torch.equal(tensors["lm_head.weight"], small.setup(tmp_path).target.head[ids].bfloat16())
    assert config["speculators_model_type"] == "eagle3"
    assert config["draft_vocab_size"] == 40
    assert config["transformer_layer_config"]["vocab_size"] == vocab
    assert config["speculators_config"]["verifier"]["name_or_path"] == "org/target"
    layers = load_head(head)[1].feature_layers
    assert config["eagle_aux_hidden_state_layer_ids"] == list(layers)


@pytest.mark.skipif(importlib.util.find_spec("speculators") is None, reason="speculators is not installed")
def test_the_library_loads_it(tmp_path: Path) -> None:
    from speculators import SpeculatorModel, SpeculatorModelConfig

    model_folder(tmp_path / "target", num_hidden_layers=8)
    head = save(tmp_path, "eagle3", draft_vocab=40)
    to_speculators(head, tmp_path / "target", tmp_path / "out", str(tmp_path / "target"))
    config = SpeculatorModelConfig.from_pretrained(str(tmp_path / "out"))
    assert config.draft_vocab_size == 40
    held = SpeculatorModel.from_pretrained(str(tmp_path / "out")).state_dict()
    for name, tensor in load_file(tmp_path / "out" / "model.safetensors").items():
        assert torch.equal(held[name].to(tensor.dtype), tensor), name


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    model_folder(tmp_path / "target", num_hidden_layers=8)
    with pytest.raises(ConfigError, match="medusa head"):
        to_speculators(save(tmp_path, "medusa"), tmp_path / "target", tmp_path / "out", "x")
    two = save(tmp_path, "eagle3", feature_layers=(1, 4))
    with pytest.raises(ConfigError, match="2 layers"):
        to_speculators(two, tmp_path / "target", tmp_path / "out", "x")
    model_folder(tmp_path / "other")
    with pytest.raises(IncompatibleDraftError):
        to_speculators(save(tmp_path, "eagle3"), tmp_path / "other", tmp_path / "out", "x")


@pytest.mark.parametrize(
    "options",
    [
        {"draft_vocab": 40},
        {"draft_vocab": 0, "normed": True, "window": 16},
        {"draft_vocab": 40, "normed": True, "own_lm_head": True},
    ],
    ids=str,
)
def test_what_was_exported_comes_back(options: dict[str, Any], tmp_path: Path) -> None:
    model_folder(tmp_path / "target", num_hidden_layers=8)
    head = save(tmp_path, "eagle3", **options)
    if "own_lm_head" in options:  # else it is the target's, and is not stored
        module, config = load_head(head)
        module.lm_head.weight.mul_(2)  # type: ignore[union-attr, operator]
        save_head(head, module, config)
    to_speculators(head, tmp_path / "target", tmp_path / "out", "org/target")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["fc_norm"], written["norm_output"]) == (options.get("normed", False),) * 2
    import_head(tmp_path / "out", tmp_path / "target", tmp_path / "back")
    (ours, config), (theirs, again) = load_head(head), load_head(tmp_path / "back")
    assert again == replace(config, own_lm_head=True, training=again.training)  # the layout has one in any case
    for name, value in ours.state_dict().items():
        assert torch.equal(value, theirs.state_dict()[name]), name


def test_what_cannot_be_imported(tmp_path: Path) -> None:
    model_folder(tmp_path / "target", num_hidden_layers=8)
    to_speculators(save(tmp_path, "eagle3", draft_vocab=40), tmp_path / "target", tmp_path / "out", "x")
    path = tmp_path / "out" / "config.json"
    good = json.loads(path.read_text())
    layer = good["transformer_layer_config"]
    for changes, says in (
        ({"speculators_model_type": "dflash"}, "norm_before_residual"),
        ({"norm_before_fc": True}, r"input_norm\.weight is missing"),
        ({"draft_vocab_size": 41}, "draft_vocab_size=41"),
        ({"fc_norm": True}, "fc_norm"),
        ({"transformer_layer_config": layer | {"num_hidden_layers": 2}}, "num_hidden_layers=2"),
        ({"transformer_layer_config": {}}, "num_attention_heads"),
    ):
        path.write_text(json.dumps(good | changes))
        with pytest.raises(ModelFormatError, match=says):
            import_head(tmp_path / "out", tmp_path / "target", tmp_path / "back")
    path.write_text(json.dumps(good))
    weights = tmp_path / "out" / "model.safetensors"
    tensors = load_file(weights)
    tensors["embed_tokens.weight"] = -tensors["embed_tokens.weight"]
    save_file(tensors, weights)
    with pytest.raises(IncompatibleDraftError, match="embedding"):
        import_head(tmp_path / "out", tmp_path / "target", tmp_path / "back")
    del tensors["lm_head.weight"]
    tensors["embed_tokens.weight"] = -tensors["embed_tokens.weight"]
    save_file(tensors, weights)
    with pytest.raises(ModelFormatError, match=r"lm_head\.weight is missing"):
        import_head(tmp_path / "out", tmp_path / "target", tmp_path / "back")
