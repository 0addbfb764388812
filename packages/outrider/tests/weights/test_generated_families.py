"""Any ``config.json`` of the families beyond Llama's: the logits are those of transformers, or the file is refused.

The tensors are those that our reading asks for. If transformers asks for others, it says so, and the test fails.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from outrider.errors import ModelFormatError
from outrider.weights.families import FAMILIES
from outrider.weights.files.parts import find_parts
from outrider.weights.hf_config.config import parse_config
from tests.weights.test_generated_configs import LLAMAS, SUPPRESSED, compare, raw_dims

_KINDS = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=2, max_size=2)
_YARN = {"rope_type": "yarn", "factor": 4.0}
_LONG = {"type": "longrope", "short_factor": [1.0, 1.5], "long_factor": [2.0, 3.0]}
_ROPES = st.sampled_from(
    [
        *(None, {"rope_type": "linear", "factor": 3.0}, {"rope_type": "default", "rope_theta": 300.0}),
        *(_YARN, _YARN | {"original_max_position_embeddings": 16, "beta_fast": 4, "attention_factor": 1.5}),
        *(_YARN | {"factor": 0.5}, _YARN | {"truncate": False}, _YARN | {"mscale": 0.7, "mscale_all_dim": 1.0}),
        *(_LONG, _LONG | {"factor": 3.0}, _LONG | {"type": "su"}, {"rope_type": "dynamic", "factor": 2.0}),
        {"rope_type": "default", "partial_rotary_factor": 0.5},
        *({"rope_type": "dynamic", "factor": 1.0, "alpha": 50.0}, _YARN | {"llama_4_scaling_beta": 0.2}),
    ]
)
_NESTED = st.sampled_from(
    [
        {"full_attention": {"rope_type": "linear", "factor": 2.0}},
        {"full_attention": _YARN, "sliding_attention": {"rope_type": "default", "rope_theta": 300.0}},
        {"sliding_attention": {"rope_type": "linear", "factor": 2.0}},
    ]
)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "num_key_value_heads": st.sampled_from([None, 1, 4]),
    "head_dim": st.sampled_from([None, 4, 8]),
    "rope_theta": st.sampled_from([100.0, 5e5]),
    "rope_scaling": _ROPES,
    "rope_parameters": st.one_of(_ROPES, _NESTED),
    "rope_local_base_freq": st.sampled_from([50.0, 10000.0]),
    "partial_rotary_factor": st.sampled_from([1.0, 0.5, 0.75, 0.1]),
    "original_max_position_embeddings": st.sampled_from([48, 64]),
    "max_position_embeddings": st.sampled_from([64, 128]),
    "tie_word_embeddings": st.booleans(),
    "sliding_window": st.sampled_from([None, 3, 16]),
    "use_sliding_window": st.booleans(),
    "layer_types": st.one_of(st.none(), _KINDS),
    "attention_bias": st.booleans(),
    "mlp_bias": st.booleans(),
    "use_bias": st.booleans(),
    "attention_out_bias": st.booleans(),
    "hidden_act": st.sampled_from(["silu", "gelu", "gelu_pytorch_tanh"]),
    "hidden_activation": st.sampled_from([None, "gelu_pytorch_tanh", "relu"]),
    "norm_epsilon": st.sampled_from([1e-6, 1e-2]),
    "rms_norm_eps": st.sampled_from([1e-6, 1e-2]),
    "embedding_multiplier": st.sampled_from([1.0, 12]),
    "residual_multiplier": st.sampled_from([0.22, 1.0]),
    "attention_multiplier": st.sampled_from([0.5, 1]),
    "logits_scaling": st.sampled_from([1.0, 16.0]),
    "no_rope_layers": st.sampled_from([None, [1, 0], [0, 0], [1]]),
    "no_rope_layer_interval": st.sampled_from([1, 2, 4]),
    "query_pre_attn_scalar": st.sampled_from([8, 144]),
    "attn_logit_softcapping": st.sampled_from([None, 2.0]),
    "final_logit_softcapping": st.sampled_from([None, 3.0]),
    "sliding_window_pattern": st.sampled_from([1, 2, 6]),
    "num_experts_per_tok": st.sampled_from([1, 3, 9]),
    "num_experts": st.sampled_from([4, 5]),
    "num_local_experts": st.sampled_from([4, 5]),
    "moe_intermediate_size": st.sampled_from([16, 24]),
    "norm_topk_prob": st.booleans(),
    "swiglu_alpha": st.sampled_from([0.5, 1.702]),
    "swiglu_limit": st.sampled_from([0.1, 7.0]),
    "moe_k": st.sampled_from([1, 3, 9]),
    "moe_topk": st.sampled_from([1, 3, [2, 2], [1, 2], [1]]),
    "moe_num_shared_experts": st.sampled_from([0, 2]),
    "moe_layer_start_index": st.sampled_from([0, 1]),
    "moe_layer_end_index": st.sampled_from([-1, 0, 1]),
    "moe_layer_interval": st.sampled_from([1, 2]),
    "moe_norm_min": st.sampled_from([1e-12, 0.6]),
    "decoder_sparse_step": st.sampled_from([1, 2, 3]),
    "mlp_only_layers": st.sampled_from([None, [], [0]]),
    "eos_token_id": st.sampled_from([None, 3, [3, 4]]),
    "alibi": st.booleans(),
}
COMMON = (
    *("num_key_value_heads", "head_dim", "rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings"),
    *("tie_word_embeddings", "sliding_window", "layer_types", "eos_token_id", "hidden_act"),
)


def small(family: str) -> dict[str, Any]:
    raw = raw_dims() | {"model_type": family, "pad_token_id": None, "num_key_value_heads": 2}
    raw |= {"max_position_embeddings": 128} | ({"head_dim": 8} if "head_dim" in FAMILIES[family].defaults else {})
    if family in ("mixtral", "qwen3_moe", "gpt_oss"):
        raw |= {"num_experts" if family == "qwen3_moe" else "num_local_experts": 5, "num_experts_per_tok": 2}
    if family in ("granitemoe", "minimax_m2"):
        raw |= {"num_local_experts": 5, "num_experts_per_tok": 2}
    if family in ("olmoe", "qwen2_moe"):
        raw |= {"num_experts": 5, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 16}
    if family in ("glm4_moe", "dots1"):
        raw |= {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "n_shared_experts": 1}
        raw |= {"first_k_dense_replace": 1}
    if family == "hunyuan_v1_moe":
        raw |= {"num_experts": 5, "moe_topk": 2}
    if family == "ernie4_5_moe":
        raw |= {"moe_num_experts": 5, "moe_k": 2, "moe_intermediate_size": 24, "moe_num_shared_experts": 1}
    if family in ("lfm2", "lfm2_moe"):
        raw |= {"layer_types": ["conv", "full_attention"]}
    if family == "lfm2_moe":
        raw |= {"num_experts": 5, "num_experts_per_tok": 2, "num_dense_layers": 1}
    if family == "granitemoehybrid":
        raw |= {"num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 16}
        raw |= {"layer_types": ["linear_attention", "full_attention"], "mamba_n_heads": 4, "mamba_d_state": 8}
    if family == "nemotron_h":
        raw |= {"layers_block_type": ["linear_attention", "full_attention", "moe", "mlp"], "n_groups": 2}
        raw |= {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "moe_intermediate_size": 24}
        raw |= {"moe_shared_expert_intermediate_size": 16, "n_routed_experts": 4, "time_step_min": 1e-30}
    if family == "gemma4_text":
        raw |= {
            "global_head_dim": 16,
            "hidden_size_per_layer_input": 8,
            "vocab_size_per_layer_input": raw["vocab_size"],
        }
        raw |= {"layer_types": ["sliding_attention", "full_attention"]}
    if family in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        raw |= {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
        raw |= {"linear_value_head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
        if family != "qwen3_5_text":
            raw |= {"num_experts": 5, "num_experts_per_tok": 2, "shared_expert_intermediate_size": 16}
    if family in ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "mistral4"):
        raw |= {"num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8}
        raw |= {"qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 6, "num_experts_per_tok": 2}
        raw |= {"n_group": 3, "topk_group": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 24}
    return raw | ({"moe_intermediate_size": 24} if "num_experts" in raw else {})


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    family = draw(st.sampled_from(sorted(FAMILIES.keys() - set(LLAMAS))))
    kind = FAMILIES[family]
    read = kind.keys | kind.only.keys() | ({"partial_rotary_factor"} if kind.partial else set())
    own = sorted(VALUES.keys() & read)
    keys = draw(st.lists(st.sampled_from([*own, *own, *COMMON]), unique=True, max_size=5))
    if draw(st.integers(0, 9)) == 0:
        keys.append(draw(st.sampled_from(sorted(VALUES))))  # of another family
    return small(family) | {key: draw(VALUES[key]) for key in keys}


def write(folder: Path, raw: dict[str, Any]) -> None:
    (folder / "config.json").write_text(json.dumps(raw))
    config, kind, generator = parse_config(raw), FAMILIES[raw["model_type"]], torch.Generator().manual_seed(0)
    tensors = {}
    names, paired = kind.names_in(()) if kind.paired_experts else kind.own_name, kind.paired_experts
    for name, shape in find_parts(config, names, interleaved=kind.interleaved, paired_experts=paired)[1].items():
        noise = torch.randn(shape, generator=generator)
        if "norm" in name and name.endswith("weight"):
            tensors[name] = 1 - kind.norm_offset + 0.2 * noise
        elif "embed" in name:
            tensors[name] = 0.1 * noise
        else:
            tensors[name] = noise / shape[-1] ** 0.5 if len(shape) > 1 else 0.3 * noise
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def check(folder: Path, raw: dict[str, Any]) -> str:
    """``compare`` on a model of this configuration, or "refused" before there is one."""
    try:
        write(folder, raw)
    except ModelFormatError as error:
        return "refused" if "\n" not in str(error) else "many lines"
    return compare(folder, str(raw))


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - set(LLAMAS)))
def test_the_small_ones_are_read(family: str, tmp_path: Path) -> None:
    """transformers reads Mistral 4's experts where they are stacked; ``test_latents`` compares those."""
    assert check(tmp_path, small(family)) == ("alone" if family == "mistral4" else "same")


@settings(max_examples=25, deadline=None, suppress_health_check=SUPPRESSED)
@given(raw=configs())
def test_every_config_is_read_as_by_transformers_or_refused(raw: dict[str, Any], tmp_path: Path) -> None:
    event(check(tmp_path, raw))


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=SUPPRESSED)
@given(raw=configs())
def test_many_configs(raw: dict[str, Any], tmp_path: Path) -> None:
    event(check(tmp_path, raw))
