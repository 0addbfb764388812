"""Changes to the small models of ``gguf_models`` beyond one key: several keys, tensors, tokenizers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from outrider.weights.gguf.rope import llama3_divisors
from tests.weights.files import VOCABULARY

Tensors = dict[str, Tensor | None]


def _random(*shape: int) -> Tensor:
    values = torch.from_numpy(np.random.RandomState(1).randn(*shape)).float()
    return values / shape[-1] ** 0.5 if len(shape) > 1 else values


_DIVISORS = torch.tensor(llama3_divisors(8.0, 5e5, 4))
_FREQS, _SHORT, _LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
_YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32}
_NARROW: Tensors = {
    f"blk.1.ffn_{n}.weight": _random(*s) for n, s in (("gate", (32, 32)), ("up", (32, 32)), ("down", (32, 32)))
}
_WIDE_V: Tensors = {
    f"blk.{i}.attn_{n}.weight": _random(*s) for i in (0, 1) for n, s in (("v", (32, 32)), ("output", (32, 64)))
}
_EXAONE4_SHAPES: dict[str, tuple[int, ...]] = {
    "attn_q": (32, 32), "attn_k": (16, 32), "attn_v": (16, 32), "attn_output": (32, 32),
    "ffn_gate": (48, 32), "ffn_up": (48, 32), "ffn_down": (32, 48),
    "attn_q_norm": (8,), "attn_k_norm": (8,), "post_attention_norm": (32,), "post_ffw_norm": (32,),
}  # fmt: skip
_EXAONE4_BLOCKS: Tensors = {
    f"blk.{i}.{n}.weight": _random(*s) * (0.005 if "post" in n else 1)
    for i in range(2, 64)
    for n, s in _EXAONE4_SHAPES.items()
}
_EXAONE4_KEYS = {
    "block_count": 64,
    "attention.sliding_window": 16,
    "attention.sliding_window_pattern": [True, False] * 32,
}
_SEED_OSS_BIASES: Tensors = {f"blk.{i}.attn_{n}.bias": None for i in (0, 1) for n in "qkv"}

Special = tuple[str, dict[str, Any], Tensors]
SPECIALS: dict[str, Special] = {
    "each layer's value, all alike": ("llama", {"feed_forward_length": [48, 48], "attention.head_count": [4, 4]}, {}),
    "a width for each layer": ("llama", {"feed_forward_length": [48, 32]}, _NARROW),
    "values wider than keys": ("llama", {"attention.value_length": 16}, _WIDE_V),
    "part of a head rotated": ("qwen2", {"rope.dimension_count": 4}, {}),
    "linear scaling": ("llama", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {}),
    "a factor without a type": ("qwen2", {"rope.scaling.factor": 4.0}, {}),
    "an old factor": ("qwen3", {"rope.scale_linear": 4.0}, {}),
    "a factor of no scaling": ("llama", {"rope.scaling.type": "none", "rope.scaling.factor": 4.0}, {}),
    "yarn": ("llama", _YARN, {}),
    "yarn of Qwen2": ("qwen2", _YARN, {}),
    "yarn of Qwen3": ("qwen3", _YARN | {"rope.scaling.attn_factor": 1.2}, {}),
    "yarn with its own constants": (
        "qwen3",
        _YARN | {"rope.scaling.yarn_beta_fast": 16.0, "rope.scaling.yarn_attn_factor": 2.0},
        {},
    ),
    "yarn within the whole context": ("mixtral", {k: v for k, v in _YARN.items() if "original" not in k}, {}),
    "yarn that shrinks": ("llama", _YARN | {"rope.scaling.factor": 0.5}, {}),
    "yarn of Phi-3": ("phi3", _YARN, {}),
    "linear scaling of Phi-3": ("phi3", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {}),
    "linear scaling of Gemma 3": ("gemma3", {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}, {}),
    "linear scaling of Gemma 2": ("gemma2", {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {}),
    "a scaling of no name": ("llama", {"rope.scaling.type": "ntk", "rope.scaling.factor": 4.0}, {}),
    "another magnitude": ("llama", {"rope.scaling.attn_factor": 1.25}, {}),
    "Llama 3's divisors": ("llama", {"rope.freq_base": 5e5}, {_FREQS: _DIVISORS}),
    "Llama 3's divisors in Granite": ("granite", {"rope.freq_base": 5e5}, {_FREQS: _DIVISORS}),
    "Llama 3's divisors in EXAONE 4": ("exaone4", {"rope.freq_base": 5e5}, {_FREQS: _DIVISORS}),
    "EXAONE 4 with 64 blocks": ("exaone4", _EXAONE4_KEYS, _EXAONE4_BLOCKS),
    "EXAONE 4 with 64 blocks and no word of windows": ("exaone4", {"block_count": 64}, _EXAONE4_BLOCKS),
    "a window of an EXAONE 4 with few blocks": ("exaone4", {"attention.sliding_window": 16}, {}),
    "a bias of the output of Seed-OSS": ("seed_oss", {}, {"blk.0.attn_output.bias": _random(32)}),
    "biases of Seed-OSS missing": ("seed_oss", {}, _SEED_OSS_BIASES),
    "a Mistral of mistral3": ("mistral3", {"attention.temperature_scale": None}, {}),
    "another magnitude of mistral3": ("mistral3", {"rope.scaling.yarn_log_multiplier": 0.5}, {}),
    "a temperature without scaling": ("mistral3", {"rope.scaling.type": "none"}, {}),
    "a temperature by the whole context": ("mistral3", {"rope.scaling.original_context_length": None}, {}),
    "divisors of ones": ("llama", {}, {_FREQS: torch.ones(4)}),
    "divisors of nobody's": ("llama", {}, {_FREQS: torch.tensor([1.0, 1.5, 2.0, 3.0])}),
    "divisors and a factor": ("llama", {"rope.freq_base": 5e5, "rope.scaling.factor": 2.0}, {_FREQS: _DIVISORS}),
    "divisors of other heads": ("llama", {}, {_FREQS: torch.ones(8)}),
    "divisors of another family": ("qwen2", {}, {_FREQS: torch.ones(4)}),
    "a base of nothing": ("llama", {"rope.freq_base": 0.0}, {_FREQS: _DIVISORS}),
    "LongRoPE": (
        "phi3",
        {"context_length": 1024, "rope.scaling.original_context_length": 512, "rope.scaling.attn_factor": 1.19},
        {_SHORT: torch.tensor([1.0, 1.5]), _LONG: torch.tensor([2.0, 3.0])},
    ),
    "LongRoPE without short factors": ("phi3", {}, {_LONG: torch.tensor([2.0, 3.0])}),
    "LongRoPE of a Llama": (
        "llama",
        {"rope.scaling.type": "longrope"},
        {_SHORT: torch.linspace(1, 2, 4), _LONG: torch.linspace(2, 4, 4)},
    ),
    "biases of a Llama": ("llama", {}, {"blk.0.attn_q.bias": _random(32)}),
    "a bias of the output": ("qwen2", {}, {"blk.0.attn_output.bias": _random(32)}),
    "a tensor of no name": ("llama", {}, {"blk.0.attn_sparkle.weight": _random(32)}),
    "a tensor missing": ("llama", {}, {"blk.1.ffn_up.weight": None}),
    "an embedding missing": ("llama", {}, {"token_embd.weight": None}),
    "tied": ("llama", {}, {"output.weight": None}),
    "no rotation": ("granite", {"rope.scaling.finetuned": False}, {}),
    "windows of Gemma 3 in a list": (
        "gemma3",
        {"attention.sliding_window_pattern": [True, False, True, True, True, True, False]},
        {},
    ),
    "windows of Gemma 3 in every other layer": ("gemma3", {"attention.sliding_window_pattern": 2}, {}),
    "windows of Gemma 3 in all layers": ("gemma3", {"attention.sliding_window_pattern": 0}, {}),
    "no windows of Gemma 3": ("gemma3", {"attention.sliding_window": None}, {}),
    "another base in windows": ("gemma3", {"rope.freq_base_swa": 500.0}, {}),
    "Gemma 2 without caps": ("gemma2", {"attn_logit_softcapping": None, "final_logit_softcapping": None}, {}),
    "windows of Gemma 2 in two layers of three": ("gemma2", {"attention.sliding_window_pattern": 3}, {}),
    "OLMo 3 by number": ("olmo3", {"attention.sliding_window_pattern": None}, {}),
    "OLMo 3 with a base of windows": ("olmo3", {"rope.freq_base_swa": 500.0}, {}),
    "OLMo 3 without a scaling": ("olmo3", {"rope.scaling.type": None, "rope.scaling.factor": None}, {}),
    "OLMo 2 with a window": ("olmo2", {"attention.sliding_window": 16}, {}),
    "experts by the whole width": ("qwen3moe", {"expert_feed_forward_length": None}, {}),
    "all experts": ("mixtral", {"expert_used_count": 4}, {}),
    "more experts used than there are": ("mixtral", {"expert_used_count": 5}, {}),
    "an adapter": ("llama", {"general.type": "adapter"}, {}),
    "a part of a model": ("llama", {"split.count": 3}, {}),
    "sections of GLM-4's heads": ("glm4", {"rope.dimension_sections": [1, 1, 0, 0]}, {}),
    "inputs of Granite's pictures": ("granite", {"deepstack_mapping": [0, -1]}, {}),
    "a window of Llama's": ("llama", {"attention.sliding_window": 1024}, {}),
    "tokens that are never sampled": ("llama", {"tokenizer.ggml.suppress_tokens": [3]}, {}),
    "a vocabulary of BERT": ("llama", {"tokenizer.ggml.model": "bert"}, {}),
    "a vocabulary of T5": ("llama", {"tokenizer.ggml.model": "t5"}, {}),
    "a vocabulary of RWKV": ("llama", {"tokenizer.ggml.model": "rwkv"}, {}),
    "a vocabulary of no name": ("llama", {"tokenizer.ggml.model": "sparkle"}, {}),
    "no vocabulary": ("llama", {"tokenizer.ggml.model": "no_vocab", "vocab_size": len(VOCABULARY)}, {}),
    "lowercase": ("llama", {"tokenizer.ggml.normalizer.lowercase": True, "tokenizer.ggml.add_sep_token": True}, {}),
}
"""By title: a case, keys that change, tensors that change."""
