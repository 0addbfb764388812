"""Small models of Gemma 4: transformers' folders, and GGUF files as llama.cpp's converter writes them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from torch import Tensor

from tests.weights.files import SCORES, TOKEN_TYPES, VOCABULARY, add_keys, add_tensors, finish

_KINDS = ["sliding_attention", "sliding_attention", "full_attention"] * 2
_DIMS: dict[str, Any] = {
    **{"vocab_size": len(VOCABULARY), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 6},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0, "global_head_dim": 32, "sliding_window": 20},
    **{"layer_types": _KINDS, "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0},
}
_KEYED = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
CASES: dict[str, dict[str, Any]] = {
    "layer embeddings": {
        **{"hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": len(VOCABULARY)},
        **{"num_kv_shared_layers": 3, "use_double_wide_mlp": True, "num_key_value_heads": 1},
    },
    "values that are keys": _KEYED,
    "experts": _KEYED | {"enable_moe_block": True, "num_experts": 6, "top_k_experts": 2, "moe_intermediate_size": 32},
}
"""By what the models E2B and E4B, 31B, and 26B-A4B have beyond ``_DIMS``."""


def build(case: str, **changes: Any) -> Any:
    """A model of transformers in float32, of which every part counts."""
    config = transformers.Gemma4TextConfig(**_DIMS | CASES[case] | changes)
    config._attn_implementation = config._experts_implementation = "eager"
    torch.manual_seed(0)
    model = transformers.Gemma4ForCausalLM(config).eval()
    scalars = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
    for name, tensor in [*model.named_parameters(), *scalars]:
        noise = torch.randn_like(tensor)
        if name.endswith(("norm.weight", "_1.weight", "_2.weight", ".scale", "expert_scale", "layer_scalar")):
            tensor.data = 1.0 + 0.2 * noise
        elif tensor.dim() > 1:
            tensor.data = noise / tensor.shape[-1] ** 0.5
    return model


def converted(model: Any) -> dict[str, Tensor]:
    """As llama.cpp's converter writes the tensors of a model."""
    names, out = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, 6), dict[str, Tensor]()
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        stem = name.removesuffix(".weight")
        if stem.endswith("router.scale"):
            out[f"blk.{stem.split('.')[2]}.ffn_gate_inp.scale"] = tensor
        elif stem.endswith("per_expert_scale"):
            out[f"blk.{stem.split('.')[2]}.ffn_down_exps.scale"] = tensor
        else:
            found = names.get_name(stem)
            assert found is not None, name
            out[f"{found}.weight"] = tensor
    return out | {"rope_freqs.weight": torch.tensor([1.0] * 4 + [1e30] * 12)}


def write_gguf(path: Path, model: Any, changes: Mapping[str, Any] | None = None) -> None:
    """A GGUF file of a model. ``changes``: keys to add or (None) to leave out."""
    c, tensors = model.config, converted(model)
    heads = c.to_dict()["num_key_value_heads"]  # of layers with a window
    first, shared = c.intermediate_size, c.num_kv_shared_layers
    inner = [first * (2 if c.use_double_wide_mlp and i >= 6 - shared else 1) for i in range(6)]
    full = 1 if c.attention_k_eq_v else heads
    header: dict[str, Any] = {
        **{"context_length": 128, "embedding_length": 64, "block_count": 6, "feed_forward_length": inner},
        **{"attention.head_count": 4, "attention.key_length": 32, "attention.value_length": 32},
        **{"attention.key_length_swa": 16, "attention.value_length_swa": 16, "rope.dimension_count": 32},
        **{"rope.dimension_count_swa": 16, "rope.freq_base": 1e6, "rope.freq_base_swa": 1e4},
        **{"attention.layer_norm_rms_epsilon": 1e-6, "attention.sliding_window": 20},
        **{"attention.head_count_kv": [full if i % 3 == 2 else heads for i in range(6)]},
        **{"attention.sliding_window_pattern": [i % 3 != 2 for i in range(6)]},
        **{"attention.shared_kv_layers": shared, "final_logit_softcapping": 30.0},
        **{"embedding_length_per_layer_input": c.hidden_size_per_layer_input},
        **{"tokenizer.ggml.model": "llama", "tokenizer.ggml.scores": SCORES, "tokenizer.ggml.tokens": VOCABULARY},
        **{"tokenizer.ggml.token_type": TOKEN_TYPES, "tokenizer.ggml.bos_token_id": 1},
        **{"tokenizer.ggml.eos_token_id": 2},
    }
    if c.enable_moe_block:
        header |= {"expert_count": 6, "expert_used_count": 2, "expert_feed_forward_length": 32}
    writer = gguf.GGUFWriter(path, "gemma4")
    add_keys(writer, "gemma4", header | dict(changes or {}))
    add_tensors(writer, tensors)
    finish(writer)


def build_assistant(target: Any) -> Any:
    """transformers' assistant of a model."""
    heads = target.config.to_dict()["num_key_value_heads"]
    text = _DIMS | {
        **{"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "vocab_size_per_layer_input": 0},
        **{"layer_types": _KINDS[:3], "num_kv_shared_layers": 3, "final_logit_softcapping": None},
        "num_key_value_heads": heads,
    }
    text |= {"attention_k_eq_v": True, "num_global_key_value_heads": 1} if target.config.attention_k_eq_v else {}
    config = transformers.Gemma4AssistantConfig(
        text_config=transformers.Gemma4TextConfig(**text), backbone_hidden_size=64
    )
    config._attn_implementation = "eager"
    torch.manual_seed(1)
    model = transformers.Gemma4AssistantForCausalLM(config).eval()
    scalars = [(name, buffer) for name, buffer in model.named_buffers() if name.endswith("layer_scalar")]
    for _, tensor in [*model.named_parameters(), *scalars]:
        noise = torch.randn_like(tensor)
        tensor.data = 1.0 + 0.2 * noise if tensor.dim() == 1 else noise / tensor.shape[-1] ** 0.5
    return model


def write_assistant(path: Path, model: Any) -> None:
    """A GGUF file of an assistant, as llama.cpp's converter writes it."""
    c = model.config.text_config
    heads = c.to_dict()["num_key_value_heads"]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GEMMA4, 3)
    writer = gguf.GGUFWriter(path, "gemma4-assistant")
    header: dict[str, Any] = {
        **{"context_length": 128, "embedding_length": 32, "embedding_length_out": 64, "block_count": 3},
        **{"feed_forward_length": 48, "attention.head_count": 4, "attention.head_count_kv": heads},
        **{"attention.key_length": 32, "attention.value_length": 32, "attention.key_length_swa": 16},
        **{"attention.value_length_swa": 16, "rope.dimension_count": 32, "rope.dimension_count_swa": 16},
        **{"rope.freq_base": 1e6, "rope.freq_base_swa": 1e4, "attention.layer_norm_rms_epsilon": 1e-6},
        **{"attention.sliding_window": 20, "attention.sliding_window_pattern": [True, True, False]},
        **{"attention.shared_kv_layers": 3, "nextn_predict_layers": 3, "embedding_length_per_layer_input": 0},
    }
    add_keys(writer, "gemma4-assistant", header)
    writer.add_tensor("rope_freqs.weight", torch.tensor([1.0] * 4 + [1e30] * 12).numpy())
    for name, tensor in model.state_dict().items():
        stem = name.removesuffix(".weight")
        if stem == "lm_head":
            continue
        found = f"nextn.{stem}" if stem.endswith("_projection") else names.get_name(stem)
        assert found is not None, name
        writer.add_tensor(f"{found}.weight", tensor.float().contiguous().numpy())
    finish(writer)
