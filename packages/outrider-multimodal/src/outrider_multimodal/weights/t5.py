"""T5 (Raffel et al. 2020), version 1.0 and the gated 1.1 (also FLAN-T5 and mT5)."""

from __future__ import annotations

from typing import Any

from outrider.utils.json_files import merge_ids
from outrider.weights.families.base import flag
from outrider.weights.values import positive, positive_integer
from outrider_multimodal.encoder_decoder import EncoderDecoderConfig
from outrider_multimodal.weights.base import EncoderDecoderFamily, Raw, activation_of, first_id

_DEFAULTS: Raw = {
    "vocab_size": 32128,
    "d_model": 512,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 6,
    "num_heads": 8,
    "relative_attention_num_buckets": 32,
    "relative_attention_max_distance": 128,
    "layer_norm_epsilon": 1e-6,
    "feed_forward_proj": "relu",
    "eos_token_id": 1,
    "pad_token_id": 0,
}
_LONGEST_SOURCE = 4096  # limited only by memory: scores of all pairs of positions
_LONGEST_OUTPUT = 1024


def _read(given: Raw) -> dict[str, Any]:
    raw = {**_DEFAULTS, **{key: value for key, value in given.items() if value is not None}}
    hidden, heads = positive_integer(raw, "d_model"), positive_integer(raw, "num_heads")
    form = str(raw["feed_forward_proj"])
    said = {
        "is_gated_act": form.startswith("gated-"),
        "dense_act_fn": "gelu_new" if form == "gated-gelu" else form.rpartition("-")[2],
    } | {key: raw[key] for key in ("is_gated_act", "dense_act_fn") if key in raw}  # these keys take precedence
    start = {"decoder_start_token_id": first_id(raw, "pad_token_id"), **raw}
    scaled = raw.get("scale_decoder_outputs", raw.get("tie_word_embeddings") is not False)
    return {
        "family": raw["model_type"],
        "vocab_size": positive_integer(raw, "vocab_size"),
        "hidden_size": hidden,
        "num_layers": positive_integer({"num_decoder_layers": raw["num_layers"], **raw}, "num_decoder_layers"),
        "encoder_layers": positive_integer(raw, "num_layers"),
        "num_heads": heads,
        "num_kv_heads": heads,
        "encoder_heads": heads,
        "head_dim": positive_integer(raw, "d_kv"),
        "intermediate_size": positive_integer(raw, "d_ff"),
        "encoder_intermediate_size": positive_integer(raw, "d_ff"),
        "max_seq_len": max(positive_integer({"n_positions": 512, **raw}, "n_positions"), _LONGEST_OUTPUT),
        "max_source_len": _LONGEST_SOURCE,
        "rms_norm_eps": positive(raw, "layer_norm_epsilon"),
        "gated": flag(said, "is_gated_act"),
        "activation_function": activation_of(said, "dense_act_fn", "relu"),
        "positions": "relative",
        "relative_buckets": positive_integer(raw, "relative_attention_num_buckets"),
        "relative_distance": positive_integer(raw, "relative_attention_max_distance"),
        "attention_scale": 1.0,
        "logit_scale": hidden**-0.5 if scaled else 1.0,
        "tie_embeddings": True,
        "eos_token_ids": merge_ids(raw.get("eos_token_id")),
        "decoder_prompt": (first_id(start, "decoder_start_token_id"),),
    }


def _names(config: EncoderDecoderConfig) -> dict[str, tuple[str, ...]]:
    names: dict[str, str] = {}
    for stack, layers in (("encoder", config.encoder_layers), ("decoder", config.num_layers)):
        for i in range(layers):
            ours, theirs = f"{stack}.layers.{i}.", f"{stack}.block.{i}.layer."
            blocks = ["SelfAttention"] + (["EncDecAttention"] if stack == "decoder" else [])
            for place, own in enumerate(blocks):
                block = "cross_attn" if place else "self_attn"
                names |= {f"{ours}{block}.{x}": f"{theirs}{place}.{own}.{x}" for x in "qkv"}
                names[f"{ours}{block}.out"] = f"{theirs}{place}.{own}.o"
                names[f"{ours}{block}_norm"] = f"{theirs}{place}.layer_norm"
            mlp = f"{theirs}{len(blocks)}."
            inner = {"gate": "wi_0", "up": "wi_1"} if config.gated else {"up": "wi"}
            names |= {f"{ours}{x}": f"{mlp}DenseReluDense.{own}" for x, own in (inner | {"down": "wo"}).items()}
            names[f"{ours}mlp_norm"] = f"{mlp}layer_norm"
        names[f"{stack}.norm"] = f"{stack}.final_layer_norm"
        names[f"{stack}.relative"] = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias"
    found: dict[str, tuple[str, ...]] = {f"{name}.weight": (f"{own}.weight",) for name, own in names.items()}
    for stack in ("encoder", "decoder"):
        found[f"{stack}.embed.weight"] = ("shared.weight", f"{stack}.embed_tokens.weight")
    return found | {"lm_head.weight": ("lm_head.weight",)}


def _family(name: str, differs: str) -> EncoderDecoderFamily:
    return EncoderDecoderFamily(name=name, differs=differs, read=_read, names=_names, optional=("lm_head.weight",))


T5 = _family("t5", "relative positions; RMS norms; gated since version 1.1")
MT5 = _family("mt5", "T5 1.1 of another vocabulary")
