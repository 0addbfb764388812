"""What each key of ``config.json`` and ``generation_config.json`` means here: read, without effect, or refused.

A key that is not listed is refused by name, because nobody can know that it changes nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from outrider.checkpoints.families.base import Family, words
from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown

__all__ = [
    "GENERATION_IGNORED",
    "GENERATION_REFUSED",
    "HARMLESS",
    "check_config_keys",
    "check_generation_config",
    "check_safe",
]

READ = words(
    "model_type architectures vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads "
    "num_key_value_heads head_dim max_position_embeddings rms_norm_eps rope_theta rope_scaling rope_parameters "
    "original_max_position_embeddings tie_word_embeddings sliding_window layer_types bos_token_id eos_token_id"
)
"""Keys that ``hf_config`` reads."""

HARMLESS: Mapping[str, frozenset[str]] = {
    "who wrote the file, and with what": words(
        "_name_or_path name_or_path _commit_hash transformers_version transformers.js_config unsloth_version "
        "unsloth_fixed is_llama_config tokenizer_class"
    ),
    "the dtype to load in: here dtype is an option, and the file's own by default": frozenset(["dtype", "torch_dtype"]),
    "training only": words(
        "initializer_range attention_dropout hidden_dropout resid_pdrop embd_pdrop attn_pdrop pretraining_tp "
        "neftune_noise_alpha gradient_checkpointing use_bfloat16 tf_legacy_loss torchscript"
    ),
    "how transformers runs and what it returns, not what it computes": words(
        "_attn_implementation attn_implementation _attn_implementation_internal _experts_implementation "
        "_attn_implementation_autoset _flash_attn_2_enabled return_dict chunk_size_feed_forward is_decoder"
    ),
    "of classifiers, whose tensors are refused": words(
        "id2label label2id num_labels problem_type finetuning_task task_specific_params"
    ),
    "tokens that a decoder neither starts nor ends with": words("sep_token_id unk_token_id"),
    "other names of a length that max_position_embeddings bounds": words(
        "max_sequence_length model_max_length tokenizer_model_max_length seq_length"
    ),
}
"""Keys of ``config.json`` without effect on the output, by reason; those of generation may stand there too."""

GENERATION_REFUSED = words(
    "suppress_tokens begin_suppress_tokens bad_words_ids sequence_bias forced_bos_token_id forced_eos_token_id "
    "forced_decoder_ids exponential_decay_length_penalty stop_strings guidance_scale watermarking_config "
    "token_healing"
)
"""Keys of ``generation_config.json`` that force or forbid tokens: a model that needs them is not this one without."""

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
        "_from_model_config continuous_batching_config max_cache_len"
    ),
}
"""Keys of ``generation_config.json`` that are not applied, by reason. Of the others, ``eos_token_id`` is read."""

_ONLY: Mapping[str, tuple[Any, ...]] = {  # what Llama does not do, and the value that leaves it off
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "attention_bias": (False,),
    "partial_rotary_factor": (1,),
    "rope_interleaved": (False,),
    "use_mrope": (False,),
    "is_causal": (True,),
    "use_bidirectional_attention": (False,),
    "is_encoder_decoder": (False,),
    "tie_encoder_decoder": (False,),
    "add_cross_attention": (False,),
    "pruned_heads": ({},),
}
_QUANTISED = ("quantization_config", "quantization", "compression_config")
_KNOWN = (
    frozenset().union(*HARMLESS.values(), *GENERATION_IGNORED.values())
    | (READ | GENERATION_REFUSED | _ONLY.keys())
    | {*_QUANTISED, "auto_map"}
)


def check_config_keys(raw: Mapping[str, Any], family: Family) -> None:
    """Raise ``ModelFormatError`` naming a key of ``config.json`` that may change the arithmetic and is not computed."""
    check_safe(raw, family.own_code)
    read = family.keys | ({"partial_rotary_factor"} if family.partial else frozenset())
    for key, values in {**_ONLY, **family.only}.items():
        value = raw.get(key)
        if key not in read and value is not None and value not in values:
            wanted = " or ".join(repr(v) for v in values)
            raise ModelFormatError(f"{key}={shown(value)} is not supported for {family.name}: only {wanted} is")
    check_generation_config(raw)  # older files keep these keys here
    for key, value in raw.items():
        if value is not None and key not in _KNOWN | read | family.only.keys():
            raise ModelFormatError(
                f"{shown(key)}: {shown(value)} is not known here and may change what the model computes: "
                "if it does not, remove it"
            )


def check_safe(raw: Mapping[str, Any], own_code: Collection[str]) -> None:
    """Raise ``ModelFormatError`` for quantised weights, and for code of a model's own but the classes ``own_code``."""
    for key in _QUANTISED:
        if raw.get(key):
            raise ModelFormatError(
                f"quantised checkpoints ({key}) are not supported: use the bfloat16 weights or a GGUF file"
            )
    if raw.get("auto_map") and not _names_known_classes(raw["auto_map"], own_code):
        raise ModelFormatError("auto_map says that this model brings its own code, which is never run: use another")


def _names_known_classes(auto_map: object, own_code: Collection[str]) -> bool:
    """Whether transformers would take its own classes in place of the model's code, as it does by default.

    A tokenizer's code is no matter: tokenizer.json has the say.
    """
    if not isinstance(auto_map, dict):
        return False
    named = [str(value).rpartition(".")[2] for key, value in auto_map.items() if key != "AutoTokenizer"]
    return bool(named) and set(named) <= set(own_code)


def check_generation_config(raw: Mapping[str, Any]) -> None:
    """Raise ``ModelFormatError`` for a key that forces or forbids tokens."""
    for key in sorted(GENERATION_REFUSED & raw.keys()):
        value = raw[key]
        if value and not (key == "guidance_scale" and value == 1):
            raise ModelFormatError(
                f"{key}={shown(value)} is not applied here: remove it, and let requests say logit_bias or stop"
            )
