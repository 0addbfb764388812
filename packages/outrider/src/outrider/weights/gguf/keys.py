"""llama.cpp's keys of an architecture, and the values of unsupported keys that change nothing.

llama.cpp reads a key for some architectures and not for others. ``tests/weights/test_gguf_refusals.py`` keeps
this true of the version in ``tests/weights/gguf_reference.json``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["KNOWN", "OFF", "OWN_OFF"]

_NAMES: Mapping[str, str] = {
    "": (
        "attn_logit_softcapping block_count block_size context_length conv_group_size conv_kernel_size "
        "decoder_block_count decoder_start_token_id deepstack_mapping dense_2_feat_in dense_2_feat_out "
        "dense_3_feat_in dense_3_feat_out embedding_length embedding_length_out "
        "embedding_length_per_layer_input embedding_scale expert_chunk_feed_forward_length expert_count "
        "expert_feed_forward_length expert_gating_func expert_group_count expert_group_scale "
        "expert_group_used_count expert_latent_length expert_shared_count expert_shared_feed_forward_length "
        "expert_used_count expert_weights_norm expert_weights_scale experts_per_group features_length "
        "feed_forward_length final_logit_softcapping full_attention_interval hash_layer_count "
        "hidden_activation interleave_moe_layer_step leading_dense_block_count logit_scale moe_every_n_layers "
        "moe_latent_size n_deepstack_layers nextn_predict_layers norm_before_fc norm_before_residual "
        "num_loops pooling_type rescale_every_n_layers residual_scale router_logit_softcapping selector_rank "
        "selector_top_k skip_loop_final_norm swiglu_clamp_exp swiglu_clamp_shexp swin_norm target_hidden_size "
        "target_layers tensor_data_layout time_decay_extra_dim time_mix_extra_dim token_shift_count "
        "use_parallel_residual vocab_size"
    ),
    "activation": "situ_beta situ_linear_beta",
    "adapters": "count lora_rank router_gain token_ids_activate token_ids_substitute",
    "attention": (
        "causal clamp_kqv compress_ratios compress_rope_freq_base decay_lora_rank gate_lora_rank "
        "group_norm_epsilon group_norm_groups head_count head_count_kv iclr_lora_rank indexer.block_size "
        "indexer.head_count indexer.key_length indexer.kpool indexer.kpool_select_tail indexer.local_blocks "
        "indexer.top_k indexer.types key_length key_length_mla key_length_mla_swa key_length_swa kv_lora_rank "
        "kv_lora_rank_swa layer_norm_epsilon layer_norm_rms_epsilon max_alibi_bias output_group_count "
        "output_lora_rank output_scale q_lora_rank recurrent_layers relative_buckets_count rope_pattern scale "
        "shared_kv_layers sliding_window sliding_window_pattern temperature_length temperature_scale "
        "value_length value_length_mla value_length_mla_swa value_length_swa value_residual_mix_lora_rank "
        "value_scale"
    ),
    "attn_res": "block_size",
    "classifier": "output_labels pooling_type",
    "convnext": "block_count embedding_length",
    "hrm": "h_cycles l_cycles layers_per_stack prefix_lm",
    "hyper_connection": "count epsilon low_rank magnitude sinkhorn_iterations",
    "kda": "gate_lower_bound head_dim safe_gate",
    "ple": (
        "conv_kernel eos_token_id head_offsets head_vocab_sizes heads_per_ngram image_token_id "
        "layer_multipliers layers ngram_size"
    ),
    "posnet": "block_count embedding_length",
    "rope": (
        "dimension_count dimension_count_swa dimension_sections freq_base freq_base_swa scale_linear "
        "scaling.alpha scaling.attn_factor scaling.factor scaling.finetuned scaling.original_context_length "
        "scaling.type scaling.yarn_attn_factor scaling.yarn_beta_fast scaling.yarn_beta_slow "
        "scaling.yarn_ext_factor scaling.yarn_log_multiplier"
    ),
    "shortconv": "l_cache",
    "ssm": "conv_kernel dt_b_c_rms group_count inner_size state_size time_step_rank",
    "wkv": "head_size",
}
KNOWN = frozenset(f"{group}.{name}".lstrip(".") for group, names in _NAMES.items() for name in names.split())
"""llama.cpp's keys of an architecture, without the architecture's name before them."""


OFF: Mapping[str, tuple[Any, ...]] = {
    "attention.causal": (True,),
    "expert_count": (0,),
    "expert_group_count": (0, 1),
    "expert_used_count": (0,),
    "nextn_predict_layers": (0,),
}
"""Keys that llama.cpp reads for every family and that are not computed: the values that leave them off."""

OWN_OFF: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "granite": {"rope.scaling.finetuned": (True,)},
    "glm4": {"rope.dimension_sections": (0,)},
    **{family: {"attention.temperature_scale": (0.0,)} for family in ("deepseek_v2", "deepseek_v3")},
    "hunyuan_v1_dense": {"rope.dimension_sections": (0,), "expert_count": (0, 1)},
}
"""The same for keys that llama.cpp reads for one family, by family."""
