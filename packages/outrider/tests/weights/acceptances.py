"""Files that look as if they asked for another model: what transformers never reads, and what both read alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from outrider.weights.families import FAMILIES
from tests.weights.refusals import BOTH, LINEAR, YARN, Refusal
from tests.weights.transformers_reference import ABSENT, Files, saved

_ANYWHERE: Mapping[str, Any] = {
    **{"rope_interleaved": True, "use_mrope": True, "tie_encoder_decoder": True, "add_cross_attention": True},
    **{"pruned_heads": {"0": [1]}, "lm_head_bias": True, "full_attn_mod": 2, "interpolate_factor": 2},
    **{"norm_type": "rms_norm", "mlp_type": "gated", "_sliding_window_pattern": 2, "is_decoder": True},
    **{"quantization": {"bits": 4}, "compression_config": {"bits": 4}, "query_scale": 2.0, "alibi": True},
    **{"mtp_layer_types": BOTH, "mlp_layer_types": ["sparse"] * 2, "num_heads": 2, "vision_feature_layer": 1},
    **{"vision_aspect_ratio": "x", "attention_chunk_size": 64},
    **{"architectures": ["LlamaForSequenceClassification"], "forced_decoder_ids": [[1, 3]]},
    **{"auto_map": {"AutoTokenizer": "mine.Mine", "AutoModelForSequenceClassification": "mine.Mine"}},
}
"""Keys that no family's code reads, but those of which it says so."""

_OWN: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("llama", {"hidden_act": "swish"}),
    ("llama", {"sliding_window": 64}),
    ("llama", {"layer_types": ["full_attention"] * 2, "sliding_window": 3}),
    ("llama", {"partial_rotary_factor": 0.5}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mscale": 2.0, "mrope_section": [1]}}),
    ("llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    ("llama", {"rope_parameters": {"full_attention": LINEAR, "rope_theta": 1e4}}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 3}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}),
    ("qwen3_moe", {"use_sliding_window": True}),
    ("phi3", {"attention_bias": True}),
    ("mistral", {"mlp_bias": True, "attention_bias": True}),
    ("starcoder2", {"attention_bias": True}),
    ("phi3", {"layer_types": ["sliding_attention"] * 2}),
    ("gemma", {"hidden_activation": "relu"}),
    ("gemma", {"hidden_act": "gelu_new"}),
    ("gemma2", {"hidden_act": "silu"}),
    ("gemma2", {"use_bidirectional_attention": True}),
    ("gemma3_text", {"hidden_act": "silu", "attn_logit_softcapping": 2.0}),
    ("mixtral", {"num_experts": 5, "num_local_experts": 4}),
    ("mixtral", {"num_experts": 5, "num_local_experts": ABSENT}),
    ("qwen3_moe", {"num_experts": 4, "num_local_experts": 5}),
    ("gpt_neox", {"is_decoder": False}),
    ("gpt2", {"architectures": ["GPT2DoubleHeadsModel"]}),
    ("gpt2", {"auto_map": {"AutoTokenizer": "mine.Mine"}}),
    ("bart", {"normalize_before": True, "add_final_layer_norm": True, "architectures": ["BartModel"]}),
    ("t5", {"feed_forward_proj": "tanh"}),
)

_Q = "model.layers.0.self_attn.q_proj.bias"


def unread() -> Iterator[Refusal]:
    """With these transformers answers as without."""
    for family, kind in FAMILIES.items():
        taken = {"attention_chunk_size"} if family == "gemma4_text" else set()  # transformers fails with it
        keys = {key: value for key, value in _ANYWHERE.items() if key not in kind.keys | taken}
        yield Refusal(family, Files(keys))
    for family, config in _OWN:
        yield Refusal(family, Files(config))
    yield Refusal("llama", Files({}, {}, {_Q: torch.ones(32), "vision_tower.weight": torch.ones(3)}))


READ: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("llama", {"rope_parameters": YARN | {"truncate": False}}),
    ("llama", {"rope_parameters": YARN | {"mscale": 0.7}}),
    ("llama", {"rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.3}}),
    ("llama", {"rope_scaling": LINEAR, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}),
    ("smollm3", {"layer_types": BOTH, "sliding_window": 3}),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 3, "no_rope_layers": [1, 0], "layer_types": ABSENT}),
    ("qwen3_moe", {"use_sliding_window": True, "sliding_window": 3}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1, "layer_types": ABSENT}),
    ("qwen3", {"use_sliding_window": True, "sliding_window": 8, "layer_types": BOTH}),
    ("mistral", {"sliding_window": 8, "layer_types": ["full_attention"] * 2}),
    ("mistral", {"sliding_window": 8, "layer_types": BOTH}),
    ("starcoder2", {"sliding_window": 8, "layer_types": ["full_attention"] * 2}),
    ("olmo3", {"rope_parameters": ABSENT, "rope_theta": 1e3}),
    ("olmo3", {"rope_parameters": {"full_attention": YARN | {"truncate": False}}}),
    ("olmo3", {"rope_parameters": {"full_attention": YARN, "truncate": False}}),
    ("gemma3_text", {"rope_scaling": LINEAR}),
    ("exaone4", {"layer_types": ["full_attention"] * 2}),
    ("exaone4", {"layer_types": ["full_attention"] * 2, "sliding_window": None}),
    ("exaone4", {"layer_types": ABSENT, "sliding_window_pattern": 1}),
    ("hunyuan_v1_dense", {"rope_parameters": YARN | {"rope_type": "dynamic", "alpha": 50.0}}),
    ("ministral3", {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.5, "original_max_position_embeddings": 8}}),
    ("ministral3", {"rope_parameters": YARN | {"llama_4_scaling_beta": 0.0}}),
    ("ernie4_5", {"use_bias": False, "rope_theta": 1e3, "rope_parameters": ABSENT}),
    ("t5", {"dense_act_fn": "gelu"}),
)
"""With these it answers otherwise, and so does Outrider."""


def without_prefix() -> Files:
    """A tied model as its base class saves it."""
    tensors = saved("llama").tensors
    own = {name.removeprefix("model."): value for name, value in tensors.items() if name != "lm_head.weight"}
    return Files({"tie_word_embeddings": True}, {}, {**dict.fromkeys(tensors, ABSENT), **own})
