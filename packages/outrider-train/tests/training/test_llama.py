"""The differentiable Llama computes what the engine's computes, and a draft cut from it loads there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.weights.loader import load_model
from outrider_torch.models.llama import LlamaModel
from outrider_train.kinds.draft import draft_model, save_model
from outrider_train.target.llama import Llama, load_llama
from tests import small_models
from tests.model_folders import model_folder


def both(**changes: Any) -> tuple[Llama, LlamaModel]:
    config = small_models.config(**changes)
    tensors = small_models.tensors(config)
    ours = Llama(config)
    ours.load_state_dict(tensors)
    return ours.requires_grad_(False), LlamaModel(config, tensors, dtype=torch.float32)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"family": "qwen2", "attention_bias": True, "tie_embeddings": False},
        {"family": "qwen3", "qk_norm": True},
        {"family": "mistral", "sliding_window": 5},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ],
)
def test_logits_are_the_engines(changes: dict[str, Any]) -> None:
    ours, engine = both(**changes)
    ids = small_models.ids(12)
    cache = engine.new_cache(CacheSpec(slots=1, max_seq_len=64))
    expected = torch.from_numpy(small_models.feed(engine, cache, (cache.allocate(), ids))[0])
    run = ours(torch.tensor([ids]))
    torch.testing.assert_close(run.hidden[0] @ ours.head.T, expected, atol=2e-4, rtol=1e-4)


def test_features_past_and_positions() -> None:
    ours, _ = both()
    ids = torch.tensor([small_models.ids(9)])
    whole = ours(ids, layers=(1, 2), keep=True)
    assert whole.features.shape == (1, 9, 96)
    torch.testing.assert_close(ours.model.norm(whole.features[..., 48:]), whole.hidden)
    past = [(k[:, :, :6], v[:, :, :6]) for k, v in whole.past]
    mask = torch.ones(3, 9).tril(6).bool()[None, None]
    rest = ours(ids[:, 6:], torch.arange(6, 9)[None], mask, past)
    torch.testing.assert_close(rest.hidden, whole.hidden[:, 6:], atol=1e-5, rtol=1e-4)


def test_a_truncated_draft_is_the_targets_first_layers(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "target")
    target = load_llama(folder, torch.float32)
    cut = draft_model(target, replace(target.config, num_layers=1), 0, from_target=True)
    save_model(tmp_path / "cut", cut, folder)
    loaded = load_model(tmp_path / "cut", ModelOptions(dtype="float32"))
    ids = small_models.ids(6)
    cache = loaded.new_cache(CacheSpec(slots=1, max_seq_len=64))
    got = torch.from_numpy(small_models.feed(loaded, cache, (cache.allocate(), ids))[0])
    inner = target(torch.tensor([ids]), layers=(1,)).features[0]
    torch.testing.assert_close(got, target.model.norm(inner) @ target.head.T, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("tied", [True, False])
def test_a_narrowed_draft_computes_what_the_first_layers_do(tied: bool) -> None:
    """Where all lies in a few directions, nothing is lost by keeping those alone."""
    generator = torch.Generator().manual_seed(3)
    config = small_models.config(num_layers=2, tie_embeddings=tied)
    target = Llama(config).requires_grad_(False)
    kept, whole = 16, config.hidden_size
    turn = torch.linalg.qr(torch.randn(whole, whole, generator=generator)).Q[:, :kept]
    for name, value in target.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            value.copy_(turn @ turn.T @ value)
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            value.copy_(20 * value @ turn @ turn.T)  # so large that the epsilon of norms is nothing
        elif name.endswith("layernorm.weight") or (name == "model.norm.weight" and not tied):
            value.copy_(1 + 0.3 * torch.randn(value.shape, generator=generator))
    small = replace(config, num_layers=1, hidden_size=kept)
    draft = draft_model(target, small, 0, from_target=True)
    ids = torch.tensor([small_models.ids(9)])
    expected = target.model.norm(target(ids, layers=(1,)).features[0]) @ target.head.T
    torch.testing.assert_close(draft(ids).hidden[0] @ draft.head.T, expected, atol=1e-4, rtol=1e-3)
