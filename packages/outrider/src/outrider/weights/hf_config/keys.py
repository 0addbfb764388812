"""Classifies each key of ``config.json`` and ``generation_config.json``: read, without effect, or refused.

A value is refused only if transformers, the reference, computes something else with it than with a supported value;
``tests/weights/refusals.py`` proves this for each. transformers does not read the keys that are not listed here: they
change nothing, and ``unread_keys`` names them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.families.base import Family, words

__all__ = [
    "EVERYWHERE",
    "GENERATION_IGNORED",
    "GENERATION_REFUSED",
    "HARMLESS",
    "check_config_keys",
    "check_generation_config",
    "check_safe",
    "unread_keys",
]

READ = words(
    "model_type architectures vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters "
    "original_max_position_embeddings tie_word_embeddings sliding_window layer_types bos_token_id eos_token_id"
)
"""Keys that ``hf_config`` reads."""

HARMLESS: Mapping[str, frozenset[str]] = {
    "the file's origin, and the tools that wrote it": words(
        "_name_or_path name_or_path _commit_hash transformers_version transformers.js_config unsloth_version "
        "unsloth_fixed is_llama_config tokenizer_class"
    ),
    "the dtype to load in: here dtype is an option, and the file's own by default": frozenset(["dtype", "torch_dtype"]),
    "training only": words(
        "initializer_range attention_dropout hidden_dropout residual_dropout resid_pdrop embd_pdrop attn_pdrop "
        "pretraining_tp neftune_noise_alpha gradient_checkpointing use_bfloat16 tf_legacy_loss torchscript"
    ),
    "how transformers runs and what it returns, not what it computes": words(
        "_attn_implementation attn_implementation _attn_implementation_internal _experts_implementation "
        "_attn_implementation_autoset _flash_attn_2_enabled return_dict chunk_size_feed_forward is_decoder "
        "number_of_conv_states"
    ),
    "of classifiers, whose tensors are refused": words(
        "id2label label2id num_labels problem_type finetuning_task task_specific_params"
    ),
    "tokens that a decoder neither starts nor ends with": words("sep_token_id unk_token_id eod_token_id"),
    "other names of a length that max_position_embeddings bounds": words(
        "max_sequence_length model_max_length tokenizer_model_max_length seq_length"
    ),
}
"""Keys of ``config.json`` without effect on the output, by reason; those of generation may stand there too."""

_OF_OTHERS = words(
    "rope_interleaved use_mrope add_cross_attention tie_encoder_decoder pruned_heads lm_head_bias "
    "partial_rotary_factor full_attn_mod interpolate_factor norm_type mlp_type mlp_bias attention_bias "
    "use_sliding_window max_window_layers _sliding_window_pattern hidden_act hidden_activation "
    "use_bidirectional_attention attn_logit_softcapping attention_chunk_size mtp_layer_types mlp_layer_types "
    "num_heads vision_aspect_ratio vision_feature_layer"
)
"""Keys without effect on families that do not list them, though transformers' code looks at some of them."""

GENERATION_REFUSED = words(
    "suppress_tokens begin_suppress_tokens bad_words_ids sequence_bias forced_bos_token_id forced_eos_token_id "
    "exponential_decay_length_penalty stop_strings guidance_scale watermarking_config "
    "token_healing"
)
"""Keys of ``generation_config.json`` that force or forbid tokens: without them the model's outputs differ."""

GENERATION_IGNORED: Mapping[str, frozenset[str]] = {
    "suggestions for sampling and for the length of an answer: here the request says them": words(
        "do_sample temperature top_k top_p min_p top_h typical_p epsilon_cutoff eta_cutoff repetition_penalty "
        "encoder_repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
        "diversity_penalty renormalize_logits remove_invalid_values num_beams num_beam_groups early_stopping "
        "penalty_alpha dola_layers constraints force_words_ids num_return_sequences max_length max_new_tokens "
        "min_length min_new_tokens max_time low_memory"
    ),
    "how transformers drafts: here an option": words(
        "is_assistant num_assistant_tokens num_assistant_tokens_schedule assistant_confidence_threshold "
        "prompt_lookup_num_tokens max_matching_ngram_size assistant_early_exit assistant_lookbehind "
        "assistant_ensemble_weight speculation_type target_lookbehind use_mtp"
    ),
    "how transformers runs, what it returns, and tokens that a decoder neither starts nor ends with": words(
        "use_cache cache_implementation cache_config compile_config disable_compile prefill_chunk_size "
        "return_dict_in_generate return_legacy_cache output_attentions output_hidden_states output_scores "
        "output_logits pad_token_id bos_token_id decoder_start_token_id generation_kwargs transformers_version "
        "_from_model_config continuous_batching_config max_cache_len forced_decoder_ids"
    ),
}
"""Keys of ``generation_config.json`` that are not applied, by reason. Of the others, ``eos_token_id`` is read."""

EVERYWHERE: Mapping[str, tuple[Any, ...]] = {
    "is_causal": (True,),  # null is false there
    "is_encoder_decoder": (False, None),
    **dict.fromkeys(("decoder", "generator", "text_config"), (None,)),  # taken for the model's own configuration
    **dict.fromkeys(("fusion_config", "kv_sharing_modes", "transformers_weights"), (None,)),
    "vision_feature_select_strategy": (None, "default", "full"),  # others are an error
}
"""Keys that transformers reads for every family, and the values that are computed; ``Family.only`` has the others."""

_QUANTISED = "quantization_config"
_KNOWN = (
    frozenset().union(*HARMLESS.values(), *GENERATION_IGNORED.values())
    | (READ | _OF_OTHERS | GENERATION_REFUSED | EVERYWHERE.keys())
    | {_QUANTISED, "auto_map"}
)


def check_config_keys(raw: Mapping[str, Any], family: Family) -> None:
    """Raise ``ModelFormatError`` naming a key of ``config.json`` with an unsupported value."""
    check_safe(raw, family.own_code, takes_mxfp4=family.paired_experts == "alternate")
    for key, values in {**EVERYWHERE, **family.only}.items():
        if key in raw and raw[key] not in values:
            wanted = " or ".join(repr(v) for v in values if v is not None) or "null"
            raise ModelFormatError(f"{key}={shown(raw[key])} is not supported for {family.name}: only {wanted} is")
    check_generation_config(raw)  # older files keep these keys here


def unread_keys(raw: Mapping[str, Any], family: Family) -> list[str]:
    """Sorted keys of ``config.json`` that neither Outrider nor transformers' code for the family reads."""
    known = _KNOWN | family.keys | family.only.keys() | family.defaults.keys()
    return sorted(key for key, value in raw.items() if value is not None and key not in known)


def check_safe(
    raw: Mapping[str, Any],
    own_code: Collection[str],
    loader: str = "AutoModelForCausalLM",
    *,
    takes_mxfp4: bool = False,
) -> None:
    """Raise ``ModelFormatError`` for quantised weights, and for a model's own code except the classes ``own_code``.

    ``loader``: the class of transformers by which a folder of this kind is loaded. ``takes_mxfp4``: experts may be
    blocks of MXFP4.
    """
    quantised = raw.get(_QUANTISED)
    if quantised and not (takes_mxfp4 and isinstance(quantised, dict) and quantised.get("quant_method") == "mxfp4"):
        raise ModelFormatError(
            f"quantised checkpoints ({_QUANTISED}) are not supported: use the bfloat16 weights or a GGUF file"
        )
    if not _runs_as_here(raw.get("auto_map"), own_code, loader):
        raise ModelFormatError("auto_map says that this model brings its own code, which is never run: use another")


def _runs_as_here(auto_map: object, own_code: Collection[str], loader: str) -> bool:
    """Whether the classes for configuration and ``loader`` are transformers' own, ``own_code``.

    Classes in other entries never run: tokens come from tokenizer.json.
    """
    if not isinstance(auto_map, dict):
        return True
    named = [auto_map[key] for key in ("AutoConfig", loader) if auto_map.get(key)]
    return all(str(value).rpartition(".")[2] in own_code for value in named)


def check_generation_config(raw: Mapping[str, Any]) -> None:
    """Raise ``ModelFormatError`` for a key that forces or forbids tokens."""
    for key in sorted(GENERATION_REFUSED & raw.keys()):
        value = raw[key]
        if value and not (key == "guidance_scale" and value == 1):
            raise ModelFormatError(
                f"{key}={shown(value)} is not applied here: remove it, and let requests say logit_bias or stop"
            )
