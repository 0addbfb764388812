"""Every refusal of a model folder's files, each with a proof that transformers answers otherwise.

A refusal is a claim: whoever ran the file as the value that Outrider computes would get another model. A row has the
files that are refused and, where that is not the saved model itself, those with the value that would be computed.
``test_refusals.py`` asks transformers for its answers to both, and finds each ``raise`` of the code in the rows.

Where transformers fails too, there is no answer that a refusal could keep from anybody.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from outrider.config.engine import Implementation
from outrider.weights.families import FAMILIES
from outrider.weights.hf_config.keys import EVERYWHERE, GENERATION_REFUSED
from tests.weights.transformers_reference import ABSENT, Files, saved

YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4}
LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
BOTH = ["full_attention", "sliding_attention"]
_PROPORTIONAL = {"rope_type": "proportional", "rope_theta": 1e4}
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "rope_theta": 1e4, "original_max_position_embeddings": 32}
_LONG = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 64, "factor": 2.0}


@dataclass(frozen=True)
class Refusal:
    family: str
    refused: Files
    computed: Files = field(default_factory=Files)
    """The nearest files that are not refused."""
    trusted: bool = False
    """The folder's own code is run for the refused files."""
    adapter: bool = False
    """An ``adapter_config.json`` lies beside the weights, and transformers finds PEFT installed."""
    implementation: Implementation = "auto"
    unasked: str = ""
    """Why transformers is not asked for its answer."""

    def __str__(self) -> str:
        parts = {**self.refused.config, **self.refused.generation, **self.refused.tensors}
        return f"{self.family}: {', '.join(f'{key}={_short(value)}' for key, value in parts.items())}"


def _short(value: Any) -> str:
    return "absent" if value is ABSENT else str(list(value.shape)) if hasattr(value, "shape") else repr(value)[:60]


OF_KEYS: Mapping[str, Any] = {
    "hidden_act": "relu",
    "hidden_activation": "relu",
    "mlp_bias": True,
    "attention_bias": True,
    "use_bias": True,
    "topk_method": "x",
    "mlp_hidden_act": "relu",
    "mamba_hidden_act": "relu",
    "moe_latent_size": 16,
    "rope_interleave": False,
    "clip_qkv": 0.01,
    "is_causal": False,
    "is_encoder_decoder": True,
    "use_bidirectional_attention": True,
    **{"decoder": {"num_layers": 1}, "generator": {"num_layers": 1}, "text_config": {"num_layers": 1}},
    "fusion_config": {"x": True},
    "kv_sharing_modes": [None, "reuse"],
    "transformers_weights": "other.safetensors",
    "vision_feature_select_strategy": "x",
}
"""A refused value of each key in ``EVERYWHERE`` and ``Family.only``."""

OF_GENERATION: Mapping[str, Any] = {
    "suppress_tokens": list(range(20)),
    "begin_suppress_tokens": list(range(20)),
    "bad_words_ids": [[token] for token in range(20)],
    "sequence_bias": [[[token], 5.0] for token in range(20)],
    "forced_bos_token_id": 3,
    "forced_eos_token_id": 3,
    "exponential_decay_length_penalty": [1, 3.0],
    "stop_strings": ["x"],
    "guidance_scale": 1.5,
    "watermarking_config": {"bias": 5.0},
    "token_healing": True,
}
"""A refused value of each key in ``GENERATION_REFUSED``."""


def of_keys() -> Iterator[Refusal]:
    """For each family and key."""
    for family in FAMILIES.values():
        for key in {**EVERYWHERE, **family.only}:
            tensors = _biases(family.name, key) if key.endswith("_bias") else {}
            yield Refusal(family.name, Files({key: OF_KEYS[key]}, {}, tensors))


def of_generation() -> Iterator[Refusal]:
    for key in sorted(GENERATION_REFUSED):
        value = OF_GENERATION[key]
        end = {"eos_token_id": 4}
        yield Refusal("llama", Files(generation={key: value, **end}), Files(generation=end))
        yield Refusal("llama", Files({key: value, **end}), Files(end))


def _biases(family: str, key: str) -> dict[str, Any]:
    """Tensors that transformers looks for if a layer has biases."""
    part = "self_attn" if key == "attention_bias" else "mlp"
    weights = {name: value for name, value in saved(family).tensors.items() if f".{part}." in name and "proj" in name}
    return {f"{name.removesuffix('weight')}bias": torch.ones(len(value)) for name, value in weights.items()}


def _config(family: str, instead: Mapping[str, Any] | None = None, **refused: Any) -> Refusal:
    return Refusal(family, Files(refused), Files(instead or {}))


def _tensor(family: str, name: str, value: Any, **config: Any) -> Refusal:
    return Refusal(family, Files(config, {}, {name: value}))


_Q = "model.layers.0.self_attn.q_proj.weight"

OTHERS: tuple[Refusal, ...] = (
    # Code of the model's own, and numbers in another form
    Refusal("llama", Files({"auto_map": {"AutoModelForCausalLM": "modeling_mine.Doubled"}}), trusted=True),
    Refusal("gpt2", Files({"auto_map": {"AutoModelForCausalLM": "modeling_mine.Doubled"}}), trusted=True),
    _config("llama", quantization_config={"quant_method": "gptq", "bits": 4}),
    _config("gpt2", quantization_config={"quant_method": "gptq", "bits": 4}),
    _config("smolvlm", quantization_config={"quant_method": "gptq", "bits": 4}),
    # Sizes and other numbers
    _config("glm4_moe", n_group=3),
    _config("hunyuan_v1_moe", moe_topk=[2, 1]),
    _config("llama", hidden_size="many"),
    _config("llama", num_key_value_heads=3),
    _config("llama", head_dim=7),
    Refusal("llama", Files({"num_hidden_layers": 10**9}), unasked="it makes layers for hours"),
    _config("llama", tie_word_embeddings="yes"),
    _config("llama", eos_token_id="x"),
    _config("llama", rms_norm_eps="x"),
    _config("llama", model_type="nonsense"),
    # Rotary position
    _config("llama", rope_parameters="linear"),
    _config("llama", rope_parameters={"rope_type": "linear", "rope_theta": 1e4}),
    _config("llama", rope_parameters={"rope_type": "nonsense", "rope_theta": 1e4}),
    _config("llama", rope_parameters=LINEAR | {"rope_type": "proportional"}),
    _config("llama", rope_parameters=_LONG | {"short_factor": [1.5] * 4, "long_factor": [2.0] * 4}),
    _config("llama", {"rope_parameters": LINEAR}, rope_parameters=LINEAR | {"partial_rotary_factor": 0.5}),
    _config("llama", rope_parameters=_LLAMA3 | {"low_freq_factor": 4.0, "high_freq_factor": 1.0}),
    _config("glm", rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.375}),
    _config("phi3", rope_parameters=LINEAR),
    _config("phi3", rope_parameters=_LONG | {"short_factor": None, "long_factor": [2.0] * 4}),
    _config("phi3", rope_parameters=_LONG | {"short_factor": [1.5] * 3, "long_factor": [2.0] * 4}),
    _config("gemma3_text", rope_parameters=dict.fromkeys(BOTH, LINEAR)),
    # Windows
    _config("llama", sliding_window=3),
    _config("llama", layer_types=["sliding_attention"] * 2),
    _config("llama", layer_types=["chunked_attention"] * 2),
    _config("llama", layer_types=["full_attention"]),
    _config("phi3", layer_types=BOTH),
    _config("mixtral", layer_types=["sliding_attention"] * 2, sliding_window=None),
    _config("qwen2", layer_types=BOTH),
    _config("mistral", layer_types=BOTH, sliding_window=None),
    _config("llama", attention_chunk_size=3),
    # Of some families
    _config("smollm3", no_rope_layers=[1]),
    _config("llama4_text", no_rope_layers=[1]),
    _config("llama4_text", layer_types=["full_attention"]),
    _config("llama4_text", moe_layers=1),
    _config("hunyuan_v1_dense", head_dim=2, rope_parameters=YARN | {"rope_type": "dynamic", "alpha": 50.0}),
    _config("ministral3", rope_parameters=YARN),
    _config("mixtral", num_experts_per_tok=9),
    _config("gpt_oss", num_experts_per_tok=9),
    _config("qwen3_moe", mlp_only_layers=3),
    _config("qwen3_next", layer_types=["linear_attention"]),
    _config("qwen3_5_text", linear_num_key_heads=3),
    _config("qwen3_5_text", linear_conv_kernel_dim=1),
    _config("qwen3_5_text", layer_types=["linear_attention"] * 2),
    _config("qwen3_5_moe_text", num_experts_per_tok=9),
    _config("qwen3_next", mlp_only_layers=3),
    _config("qwen3_5_text", model_type="qwen3_5", text_config=3),
    _config("qwen3_5_text", model_type="qwen3_5", text_config={"model_type": "llama"}),
    _config("gemma4_text", rope_parameters=dict.fromkeys(BOTH, _PROPORTIONAL | {"partial_rotary_factor": 1.5})),
    _config("gemma4_text", layer_types=["full_attention"] * 2),
    _config("gemma4_text", per_layer_config={"1": {"head_dim": 15}}),
    _config("gemma4_text", vocab_size_per_layer_input=20),
    _config("gemma4_text", per_layer_config=3),
    _config("gemma4_text", per_layer_config={"0": {"head_dim": 16}}),
    _config("gemma4_text", per_layer_config={"1": {"hidden_size": 8}}),
    _config("gemma4_text", num_kv_shared_layers=2),
    _config("gemma4_text", enable_moe_block=True, num_experts=2, top_k_experts=3, moe_intermediate_size=8),
    _config("deepseek_v3", qk_rope_head_dim=7),
    _config("deepseek_v3", first_k_dense_replace=-1),
    _config("deepseek_v3", n_group=4),
    _config("deepseek_v3", num_experts_per_tok=9),
    _config("glm4_moe_lite", mlp_layer_types=["dense"]),
    _config("mistral4", rope_parameters=YARN),
    _config("lfm2", layer_types=["conv"]),
    _config("lfm2", layer_types=["conv"] * 2),
    _config("lfm2", conv_L_cache=1),
    _config("lfm2", layer_types=ABSENT, full_attn_idxs=3),
    _config("lfm2_moe", layer_types=ABSENT),
    _config("granitemoehybrid", layer_types=["linear_attention"]),
    _config("granitemoehybrid", layer_types=["linear_attention"] * 2),
    _config("granitemoehybrid", mamba_d_head=8),
    _config("granitemoehybrid", mamba_n_groups=3),
    _config("granitemoehybrid", mamba_d_conv=1),
    _config("granitemoehybrid", time_step_limit=[0.0, 0.1]),
    _config("nemotron_h", layers_block_type=["mamba", "conv"]),
    _config("nemotron_h", layers_block_type=["mamba", "mlp"]),
    Refusal("nemotron_h", Files({"mlp_bias": True}, {}, {"backbone.layers.3.mixer.up_proj.bias": torch.ones(48)})),
    _config("nemotron_h", n_group=3),
    # Tensors
    _tensor("llama", _Q, ABSENT),
    _tensor("llama", _Q, torch.ones(7, 7)),
    _tensor("llama", "lm_head.weight", torch.ones(7, 32), tie_word_embeddings=True),
    _config("llama", num_hidden_layers=60),
    _config("mixtral", num_local_experts=1025),
    _config("mixtral", num_local_experts=4),
    # Through transformers' code
    _config("gpt2", n_head=5),
    _config("gpt2", n_embd="x"),
    _config("gpt2", suppress_tokens=list(range(50))),
    Refusal("gpt2", Files(generation={"suppress_tokens": list(range(50))})),
    _config("gpt2", n_layer=60),
    _config("bert", is_decoder=False),
    Refusal("gpt2", Files({"model_type": "nonsense"}), implementation="transformers"),
    Refusal("gpt2", Files(), adapter=True),
    Refusal("openai-gpt", Files(), unasked="it keeps nothing from token to token, which Outrider builds on"),
    _tensor("gpt2", "transformer.h.1.mlp.c_fc.weight", ABSENT),
    # Encoder–decoders
    _config("bart", activation_function="tanh"),
    _config("bart", decoder_start_token_id=None),
    _config("bart", encoder_attention_heads=2),
    _config("bart", d_model=[48]),
    _config("t5", feed_forward_proj="tanh", dense_act_fn=ABSENT),
    _tensor("t5", "encoder.block.1.layer.0.SelfAttention.q.weight", ABSENT),
    _tensor("t5", "encoder.block.1.layer.0.SelfAttention.q.weight", torch.ones(7, 7)),
    # Models that see images
    _config("smolvlm", text_config=[1]),
    _config("smolvlm", text_config={"model_type": "gpt2", "n_embd": 32, "n_layer": 2, "n_head": 2, "vocab_size": 300}),
    _config("smolvlm", vision_config=3),
)


def every() -> list[Refusal]:
    return [*of_keys(), *of_generation(), *OTHERS]
