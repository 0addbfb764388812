"""The draft head behind the layers of a model that attends to latents drafts as transformers' does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers.modeling_layers import MtpModel

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.drafters.trained.native_mtp import NativeMtp
from outrider.models.batch import ForwardBatch, Span
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.library import library
from outrider.weights.loader import load_model
from tests import small_models
from tests.drafters.mtp_models import Reference
from tests.weights.latents import build, save

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

TEXT = small_models.ids(12, 277)
_NAMES = {"eh_proj": "eh_proj", "enorm": "enorm", "hnorm": "hnorm", "post_norm": "shared_head.norm"}


@torch.inference_mode()
def made(folder: Path) -> Reference:
    """A model and its head, saved by the names of published files."""
    model = build("deepseek_v3")
    model.config.num_mtp_layers = 1
    model.set_experts_implementation("eager")
    head = MtpModel(model, 1).eval()
    torch.manual_seed(1)
    for name, tensor in [*head.named_parameters(), *head.named_buffers()]:
        if "inv_freq" not in name:
            noise = torch.randn_like(tensor)
            tensor.data = noise * 0.7 / tensor.shape[-1] ** 0.5 if tensor.dim() > 1 else 0.2 * noise
            tensor.data += 1.0 if "norm" in name else 0.0
    tensors = save(model, folder, config={"num_nextn_predict_layers": 1})
    for name, tensor in head.state_dict().items():
        stem, _, kind = name.removeprefix("layers.0.").rpartition(".")
        if stem in _NAMES:
            tensors[f"model.layers.3.{_NAMES[stem]}.{kind}"] = tensor.clone()
        elif stem.startswith("mtp_block."):
            tensors[f"model.layers.3.{stem.removeprefix('mtp_block.')}.{kind}"] = tensor.clone()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    for part in (model, head):
        part.double()
    head.tie_with_main_model(model)
    return Reference(model, head)


def features(model: NativeLlamaModel) -> Any:
    """The residual stream behind the last layer [n, d]."""
    cache = model.new_cache(CacheSpec(max_seq_len=64))
    slot = cache.allocate()
    cache.extend(slot, len(TEXT))
    batch = ForwardBatch(TEXT, range(len(TEXT)), (Span(slot, 0, len(TEXT)),), None, features=(3,))
    return model.forward(batch, cache).features


def test_logits_of_every_level_are_those_of_transformers(tmp_path: Path) -> None:
    reference = made(tmp_path)
    model = load_model(tmp_path, ModelOptions(dtype="float32", device="cpu"))
    assert isinstance(model, NativeLlamaModel)
    head = mtp_head(model)
    assert head is not None
    runner = NativeMtp(head, model, CacheSpec(max_seq_len=64))
    slot, rows, path = runner.cache.allocate(), len(TEXT) - 1, list[int]()
    runner.cache.extend(slot, rows)
    fed = runner.fuse(features(model)[:-1])
    tokens, positions, spans = TEXT[1:], [*range(rows)], [Span(slot, 0, rows)]
    for level in range(4):
        out, logits = runner.run(fed, tokens, positions, spans, [len(tokens) - 1])
        expected = reference.row(TEXT, path).numpy()
        assert np.abs(logits[0] - expected).max() <= 4e-6 * np.abs(expected).max()
        path.append(int(expected.argmax()))
        runner.cache.extend(slot, 1)
        fed, tokens, positions, spans = out[-1:], path[-1:], [rows + level], [Span(slot, rows + level, 1)]
