"""Heads as others publish them: the layout of the speculators library and of DFlash's authors."""

from __future__ import annotations

import copy
import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import fingerprint_rows
from outrider.errors import IncompatibleDraftError, ModelFormatError, OutriderError
from outrider_torch.heads import load_head
from outrider_torch.heads.diffusion import DiffusionHead
from outrider_torch.heads.eagle import EagleLayer
from tests import small_models
from tests.heads import heads

MODEL = small_models.config()
EMBEDDING = small_models.tensors(MODEL)["model.embed_tokens.weight"]
TARGET = (heads.target_of(MODEL), EMBEDDING[fingerprint_rows(MODEL.vocab_size)])


def layer(config: HeadConfig) -> dict[str, Any]:
    windows = config.layer_windows or (0,) * config.num_layers
    return {
        "model_type": "qwen3",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "max_position_embeddings": 128,
        "layer_types": ["sliding_attention" if window else "full_attention" for window in windows],
        "sliding_window": max(windows) or None,
        "use_sliding_window": any(windows),
        "initializer_range": 0.02,
    }


def library(config: HeadConfig) -> dict[str, Any]:
    """``config.json`` of the speculators library."""
    second = config.selector_rank > 0
    own = {
        "conv_kernel_size": config.conv_taps,
        "conv_group_size": config.conv_group,
        "selector_rank": config.selector_rank,
        "selector_top_k": config.selector_top_k,
    }
    return {
        "architectures": ["DFlash2DraftModel" if second else "DFlashDraftModel"],
        "speculators_model_type": "dflash2" if second else "dflash",
        "speculators_version": "0.9.0",
        "speculators_config": {
            "algorithm": "dflash",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": config.heads or 3}],
            "verifier": {"name_or_path": None, "architectures": []},
        },
        "draft_vocab_size": config.scored,
        "block_size": config.heads + 1,
        "aux_hidden_state_layer_ids": list(config.feature_layers),
        "mask_token_id": config.mask_token_id,
        "sliding_window_non_causal": not config.causal_windows,
        "transformer_layer_config": layer(config),
        "torch_dtype": "float32",
    } | (own if second else {})


def authors(config: HeadConfig) -> dict[str, Any]:
    """``config.json`` as DFlash's authors write it: layers are counted from 0."""
    own = {"mask_token_id": config.mask_token_id, "target_layer_ids": [i - 1 for i in config.feature_layers]}
    return layer(config) | {"architectures": ["DFlashDraftModel"], "block_size": config.heads + 1, "dflash_config": own}


def publish(folder: Path, raw: dict[str, Any], head: torch.nn.Module, **more: Tensor) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file({**head.state_dict(), **more}, folder / "model.safetensors")
    return folder


LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
FLAGS = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")


def eagle_library(config: HeadConfig) -> dict[str, Any]:
    own = layer(config) | {"model_type": "llama", "rope_scaling": dict(config.rope_scaling) or None}
    own |= {"layer_types": ["sliding_attention" if config.window else "full_attention"]}
    return {
        "architectures": ["Eagle3DraftModel"],
        "speculators_model_type": "eagle3",
        "speculators_config": library(config)["speculators_config"],
        "draft_vocab_size": config.scored,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        "transformer_layer_config": own | {"sliding_window": config.window or None, "use_sliding_window": False},
        "target_hidden_size": None,
    } | {flag: getattr(config, flag) for flag in FLAGS}


def eagle_authors(config: HeadConfig) -> dict[str, Any]:
    """Of EAGLE's authors, whose ``vocab_size`` may be that of the draft."""
    own = layer(config) | {"model_type": "llama", "architectures": ["LlamaForCausalLMEagle3"], "layer_types": None}
    named = {"eagle_aux_hidden_state_layer_ids": list(config.feature_layers), "use_aux_hidden_state": True}
    return own | {"draft_vocab_size": config.scored, "vocab_size": config.scored, "eagle_config": named}


FIRST: dict[str, Any] = {"conv_taps": 0, "conv_group": 1, "selector_rank": 0, "selector_top_k": 0}


@pytest.mark.parametrize(
    ("write", "changes"),
    [(library, {}), (library, FIRST), (authors, FIRST | {"feature_layers": (1,), "layer_windows": ()})],
)
def test_a_published_head_is_read(write: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    head, config = heads.random("diffusion", rope_theta=5000.0, **changes)
    found, read = load_head(publish(tmp_path, write(config), head), target=TARGET)
    expected = {name: getattr(config, name) for name in vars(config) if name not in ("training", "max_seq_len")}
    assert {name: getattr(read, name) for name in expected} == expected
    assert all(torch.equal(value, found.state_dict()[name]) for name, value in head.state_dict().items())


def test_a_draft_vocabulary_is_read(tmp_path: Path) -> None:
    head, config = heads.random("diffusion", draft_vocab_size=32, own_lm_head=True, **FIRST)
    ids = torch.arange(0, 64, 2)
    more = {"d2t": ids - torch.arange(32), "t2d": torch.zeros(64, dtype=torch.bool), "embed_tokens.weight": EMBEDDING}
    found, read = load_head(publish(tmp_path, library(config), head, **more), target=TARGET)
    assert isinstance(found, DiffusionHead)
    assert found.draft_ids is not None
    assert found.draft_ids.tolist() == ids.tolist()
    assert read.own_lm_head


@pytest.mark.parametrize(
    ("write", "changes"),
    [
        (eagle_library, {"norm_before_fc": True, "norm_before_residual": True, "rope_scaling": LLAMA3}),
        (eagle_library, {"fc_norm": True, "norm_output": True, "window": 16}),
        (eagle_authors, {}),
    ],
)
def test_a_published_eagle_head_is_read(write: Any, changes: dict[str, Any], tmp_path: Path) -> None:
    head, config = heads.random("eagle3", own_lm_head=True, **changes)
    ids, order = torch.arange(0, 64, 2), torch.randperm(32)
    state = {name: value for name, value in head.state_dict().items() if name != "d2t"}
    if write is eagle_authors:
        state = {name.replace("layers.0.", "midlayer."): value for name, value in state.items()}
    state |= {"lm_head.weight": state["lm_head.weight"][order], "d2t": ids[order] - torch.arange(32)}
    folder = tmp_path / "head"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(write(config)))
    save_file(state, folder / "model.safetensors")
    found, read = load_head(folder, target=TARGET)
    expected = {name: getattr(config, name) for name in vars(config) if name not in ("training", "max_seq_len")}
    assert {name: getattr(read, name) for name in expected} == expected
    for name, value in (head.state_dict() | {"d2t": ids}).items():
        assert torch.equal(value, found.state_dict()[name]), name


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sample_from_anchor": True}, "sample_from_anchor=True"),
        ({"something_new": 3}, "something_new"),
        ({"mask_token_id": 64}, "mask_token_id=64"),
        ({"block_size": 0}, "block_size=0"),
        ({"aux_hidden_state_layer_ids": [7]}, "has 2 layers"),
        ({"speculators_model_type": "mtp"}, "mtp"),
        ({"conv_group_size": 5}, "conv_group=5"),
        ({"attention_bias": True}, "attention_bias=True"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"novelty": 1}, "novelty"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    head, config = heads.random("diffusion")
    raw = library(config)
    inside = {"attention_bias", "rope_scaling", "novelty", "layer_types"} & change.keys()
    (raw["transformer_layer_config"] if inside else raw).update(change)
    with pytest.raises(ModelFormatError, match=said):
        load_head(publish(tmp_path, raw, head), target=TARGET)


def test_other_targets_and_embeddings_are_refused(tmp_path: Path) -> None:
    head, config = heads.random("diffusion")
    raw = library(config)
    wider = copy.deepcopy(raw)
    wider["transformer_layer_config"]["vocab_size"] = 70
    with pytest.raises(IncompatibleDraftError, match="vocab_size=70"):
        load_head(publish(tmp_path / "wider", wider, head), target=TARGET)
    own = {"embed_tokens.weight": EMBEDDING.flip(0)}
    with pytest.raises(IncompatibleDraftError, match="embedding is not that"):
        load_head(publish(tmp_path / "own", raw, head, **own), target=TARGET)
    with pytest.raises(OutriderError, match="published head"):
        load_head(publish(tmp_path / "further", raw, head))


@pytest.mark.skipif(importlib.util.find_spec("speculators") is None, reason="speculators is not installed")
@pytest.mark.parametrize(
    "changes",
    [
        {"norm_before_fc": True, "norm_before_residual": True, "rope_scaling": LLAMA3},
        {"fc_norm": True, "norm_output": True},
    ],
)
@torch.inference_mode()
def test_the_librarys_eagle_layer_computes_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    from speculators import SpeculatorModel, SpeculatorModelConfig

    head, config = heads.random("eagle3", own_lm_head=True, **changes)
    assert isinstance(head, EagleLayer)
    folder = publish(tmp_path, eagle_library(config), head)
    made = SpeculatorModelConfig.from_pretrained(str(folder))
    made.transformer_layer_config._attn_implementation = "eager"
    theirs = SpeculatorModel.registry["eagle3"](made).eval()
    theirs.load_state_dict(head.state_dict(), strict=False)
    n = 40
    features, embeddings = torch.randn(1, n, 2 * config.hidden_size), torch.randn(1, n, config.hidden_size)
    fused = features if theirs.input_norm is None else theirs.input_norm(features)
    if theirs.fc_norm is not None:
        fused = torch.cat([norm(x) for norm, x in zip(theirs.fc_norm, fused.chunk(2, -1), strict=True)], -1)
    fused, at = theirs.fc(fused), torch.arange(n)[None]
    rotations = theirs.rotary_emb(fused, at)
    unseen = torch.full((n, n), float("-inf")).triu(1)[None, None]
    rows = torch.cat([embeddings, fused], -1)
    out = theirs.layers[0](rows, attention_mask=unseen, position_ids=at, position_embeddings=rotations)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (y.transpose(0, 1)[None] for y in (q, k, v))
        seen = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return seen[0].transpose(0, 1)

    ours = head(embeddings[0], head.fuse(features[0]), at[0], attend)
    torch.testing.assert_close(head.scorable(ours), theirs.norm(out)[0], rtol=1e-4, atol=1e-4)


@pytest.mark.skipif(importlib.util.find_spec("speculators") is None, reason="speculators is not installed")
@pytest.mark.parametrize("changes", [{}, FIRST])
@torch.inference_mode()
def test_the_library_computes_the_same(changes: dict[str, Any], tmp_path: Path) -> None:
    """A block behind nine features, through the library's layers with a mask made here."""
    from speculators import SpeculatorModel, SpeculatorModelConfig

    head, config = heads.random("diffusion", layer_windows=(), **changes)
    assert isinstance(head, DiffusionHead)
    raw = library(config)
    raw["transformer_layer_config"]["_attn_implementation"] = "eager"
    more = {"embed_tokens.weight": EMBEDDING, "lm_head.weight": EMBEDDING.clone()}
    folder = publish(tmp_path, raw, head, **more)
    made = SpeculatorModelConfig.from_pretrained(str(folder))
    made.transformer_layer_config._attn_implementation = "eager"
    theirs = SpeculatorModel.registry[raw["speculators_model_type"]](made).eval()
    theirs.load_state_dict({**head.state_dict(), **more}, strict=False)
    n, rows = 9, head.block_size
    features, embeddings = torch.randn(1, n, 2 * config.hidden_size), torch.randn(1, rows, config.hidden_size)
    at = torch.cat([torch.arange(n), torch.arange(n, n + rows)])[None]
    fused = theirs.hidden_norm(theirs.fc(features))
    rotations = theirs.rotary_emb(features, at)
    x = embeddings
    for each in theirs.layers:
        x = each(hidden_states=x, target_hidden=fused, position_ids=at, position_embeddings=rotations)
    context = head.context(head.fuse(features[0]), torch.arange(n))

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = context.pop(0)
        q, k, v = (y.transpose(0, 1)[None] for y in (q, torch.cat([keys, k]), torch.cat([values, v])))
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True)[0].transpose(0, 1)

    ours = head(embeddings[0], torch.arange(n, n + rows), attend)
    torch.testing.assert_close(ours, theirs.norm(x)[0], rtol=1e-4, atol=1e-4)
    if head.candidate_selector is not None:
        before, best = torch.tensor([3, 4, 5]), torch.arange(24).view(3, 8)
        gained = theirs.candidate_selector.transition_scores(ours[1:], before, best)
        torch.testing.assert_close(head.candidate_selector(ours[1:], before, best), gained)
