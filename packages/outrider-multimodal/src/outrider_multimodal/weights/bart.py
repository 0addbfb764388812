"""BART (Lewis et al. 2019) and Marian (Junczys-Dowmunt et al. 2018): norms after the blocks, a bias on logits."""

from __future__ import annotations

from typing import Any

from outrider.utils.json_files import merge_ids
from outrider.weights.values import positive_integer
from outrider_multimodal.encoder_decoder import EncoderDecoderConfig
from outrider_multimodal.weights.base import (
    EncoderDecoderFamily,
    Raw,
    bart_dimensions,
    bart_like_names,
    first_id,
)


def _read(raw: Raw) -> dict[str, Any]:
    start = first_id(raw, "decoder_start_token_id")
    positions = positive_integer(raw, "max_position_embeddings")
    return bart_dimensions(raw) | {
        "max_seq_len": positions,
        "max_source_len": positions,
        "norms": "after",
        "final_norm": False,
        "decoder_prompt": (start, *merge_ids(raw.get("forced_bos_token_id"))),
    }


def _read_bart(raw: Raw) -> dict[str, Any]:
    return _read(raw) | {"embedding_norm": True, "position_offset": 2}


def _read_marian(raw: Raw) -> dict[str, Any]:
    bad = raw.get("bad_words_ids") or [[first_id(raw, "pad_token_id")]]
    banned = merge_ids(*(ids for ids in bad if isinstance(ids, list) and len(ids) == 1))
    return _read(raw) | {"banned_ids": banned}


def _names(config: EncoderDecoderConfig) -> dict[str, tuple[str, ...]]:
    names = bart_like_names(config)
    for stack in ("encoder", "decoder"):
        embedding = (f"{stack}.embed_tokens.weight", "shared.weight")
        names[f"{stack}.embed.weight"] = (*(f"model.{own}" for own in embedding), *embedding, "lm_head.weight")
        positions = f"{stack}.embed_positions.weight"
        names[f"{stack}.positions.weight"] = (f"model.{positions}", positions)
        if config.embedding_norm:
            names |= {
                f"{stack}.embedding_norm.{kind}": (
                    f"model.{stack}.layernorm_embedding.{kind}",
                    f"{stack}.layernorm_embedding.{kind}",
                )
                for kind in ("weight", "bias")
            }
    return names | {"lm_head.weight": ("lm_head.weight",), "logit_bias": ("final_logits_bias",)}


BART = EncoderDecoderFamily(
    name="bart",
    differs="norms behind the blocks and the embedding; learned positions",
    read=_read_bart,
    names=_names,
    optional=("lm_head.weight", "logit_bias"),
)
MARIAN = EncoderDecoderFamily(
    name="marian",
    differs="norms behind the blocks; positions of sines; scaled embeddings",
    read=_read_marian,
    names=_names,
    optional=("lm_head.weight", "logit_bias", "encoder.positions.weight", "decoder.positions.weight"),
)
