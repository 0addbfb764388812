"""GGUF files of every family: the model is that of the safetensors files, by the names of the ``gguf`` package."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from outrider.cache import CacheSpec
from outrider.verify.arrays import bfloat16
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.families import GGUF_FAMILIES
from outrider.weights.gguf.hybrid import HYBRIDS
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.gguf.rope import llama3_divisors
from outrider.weights.hf_config.config import parse_config, to_hf_config
from outrider_torch.models.llama import LlamaModel
from outrider_torch.models.stored import torch_tensors
from tests import small_models
from tests.weights import mambas, recurrents
from tests.weights.gguf_models import CASES, arch_of, raw_config, tensors_of, write_case

ARCHITECTURES = {
    "llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM", "phi3": "Phi3ForCausalLM",
    "mixtral": "MixtralForCausalLM", "qwen3moe": "Qwen3MoeForCausalLM",
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_model_of_the_safetensors_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw_config(name)))
    save_file(tensors_of(name), tmp_path / "model.safetensors")
    write_case(tmp_path / "m.gguf", name)
    ours, theirs = open_gguf(tmp_path / "m.gguf"), open_checkpoint(tmp_path)
    assert ours.config == theirs.config
    assert set(torch_tensors(ours)) == set(torch_tensors(theirs))
    for tensor in torch_tensors(theirs):
        assert torch.equal(torch_tensors(ours)[tensor].bfloat16(), torch_tensors(theirs)[tensor].bfloat16()), tensor
        stored = ours.stored[tensor]
        assert np.array_equal(bfloat16(stored.numbers()), bfloat16(theirs.stored[tensor].numbers())), tensor
    assert parse_config(to_hf_config(ours.config)) == ours.config  # what is written beside the file


_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_LONG = {
    "rope_type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0], "factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LENGTH = {"rope.scaling.original_context_length": 32}
SCALINGS: list[tuple[str, dict[str, Any], dict[str, Any], dict[str, torch.Tensor | None]]] = [
    *(
        (name, _YARN, _LENGTH | {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0}, {})
        for name in ("llama", "qwen2", "qwen3", "mixtral", "qwen3moe")
    ),
    *(
        (name, {"rope_type": "linear", "factor": 2.0}, {"rope.scaling.type": "linear", "rope.scaling.factor": 2.0}, {})
        for name in ("llama", "qwen3")
    ),
    (
        "phi3",
        _LONG,
        _LENGTH | {"rope.scaling.attn_factor": math.sqrt(1 + math.log(4) / math.log(32))},
        {f"rope_factors_{kind}.weight": torch.tensor(_LONG[f"{kind}_factor"]) for kind in ("short", "long")},
    ),
    (
        "llama",
        _LLAMA3 | {"original_max_position_embeddings": 8192, "rope_theta": 5e5},
        {"rope.freq_base": 5e5},
        {"rope_freqs.weight": torch.tensor(llama3_divisors(8.0, 5e5, 4))},
    ),
]
"""A case, its scaling in ``config.json``, and the keys and tensors that llama.cpp's converter makes of it."""


@pytest.mark.parametrize(("name", "scaling", "keys", "tensors"), SCALINGS)
def test_a_scaling_gives_transformers_logits(
    name: str, scaling: dict[str, Any], keys: dict[str, Any], tensors: dict[str, torch.Tensor | None], tmp_path: Path
) -> None:
    raw = raw_config(name) | {"rope_scaling": {"rope_theta": raw_config(name).get("rope_theta", 1e4)} | scaling}
    if name == "phi3":  # whose own key has the say
        raw["original_max_position_embeddings"] = 32
    (tmp_path / "config.json").write_text(json.dumps(raw | {"architectures": [ARCHITECTURES[name]], "pad_token_id": 0}))
    save_file(tensors_of(name), tmp_path / "model.safetensors", metadata={"format": "pt"})
    write_case(tmp_path / "m.gguf", name, keys, tensors)
    checkpoint = open_gguf(tmp_path / "m.gguf")
    config = checkpoint.config
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32, attn_implementation="eager")
    ids = [1, *range(259, 277), *range(40, 40 + config.max_seq_len - 19)][: config.max_seq_len]
    with torch.no_grad():
        expected = theirs(torch.tensor([ids])).logits[0]
    model = LlamaModel(config, torch_tensors(checkpoint), dtype=torch.float32)
    cache = model.new_cache(CacheSpec(max_seq_len=len(ids)))
    found = small_models.feed(model, cache, (cache.allocate(), ids))[0]
    assert config.max_seq_len == (32 if name == "phi3" else 128)
    assert parse_config(to_hf_config(config)) == config
    assert config.rope_scaling["rope_type"] == scaling["rope_type"]
    error = np.abs(np.asarray(found) - expected.numpy()).max() / expected.abs().max().item()
    assert error < 1e-5


def test_every_architecture_has_a_case() -> None:
    elsewhere = {"gemma4", "deepseek2", "mistral4", "gpt-oss", "llama4", *recurrents.CASES}  # in files of their own
    elsewhere |= {case.arch for case in mambas.CASES.values()}
    assert GGUF_FAMILIES.keys() == set(map(arch_of, CASES)) | HYBRIDS.keys() | elsewhere


def test_seed_oss_has_the_biases_that_its_file_has(tmp_path: Path) -> None:
    missing: dict[str, torch.Tensor | None] = {f"blk.{i}.attn_{n}.bias": None for i in (0, 1) for n in "qkv"}
    for name, extra in (("with.gguf", {}), ("without.gguf", missing)):
        write_case(tmp_path / name, "seed_oss", None, extra)
        assert open_gguf(tmp_path / name).config.attention_bias is not bool(extra)
