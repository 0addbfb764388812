"""Whisper (Radford et al. 2022): from a spectrogram to text with time stamps."""

from __future__ import annotations

from typing import Any

from outrider.utils.json_files import merge_ids
from outrider.weights.values import positive_integer
from outrider_multimodal.encoder_decoder import EncoderDecoderConfig
from outrider_multimodal.weights.base import EncoderDecoderFamily, Raw, bart_dimensions, bart_like_names


def _read(raw: Raw) -> dict[str, Any]:
    return bart_dimensions(raw) | {
        "max_seq_len": positive_integer(raw, "max_target_positions"),
        "max_source_len": positive_integer(raw, "max_source_positions"),
        "mel_bins": positive_integer(raw, "num_mel_bins"),
        "decoder_prompt": merge_ids(raw.get("decoder_start_token_id")),
    }


def _names(config: EncoderDecoderConfig) -> dict[str, tuple[str, ...]]:
    names = bart_like_names(config)
    names = {name: own for name, own in names.items() if not name.endswith("attn.k.bias")}  # keys have no bias
    for stack in ("encoder", "decoder"):
        names[f"{stack}.positions.weight"] = (f"model.{stack}.embed_positions.weight",)
        names |= {f"{stack}.norm.{kind}": (f"model.{stack}.layer_norm.{kind}",) for kind in ("weight", "bias")}
    for i in (1, 2):
        names |= {f"encoder.conv{i}.{kind}": (f"model.encoder.conv{i}.{kind}",) for kind in ("weight", "bias")}
    return names | {
        "decoder.embed.weight": ("model.decoder.embed_tokens.weight",),
        "lm_head.weight": ("proj_out.weight",),
    }


WHISPER = EncoderDecoderFamily(
    name="whisper",
    differs="hears sound; learned positions",
    read=_read,
    names=_names,
    optional=("lm_head.weight",),
)
