"""Opens a folder of an encoder–decoder model; presence and shape of every tensor are checked before any is read."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.config import ModelOptions
from outrider.errors import ModelFormatError
from outrider.models.base import LoadedModel
from outrider.utils.json_files import read_json_object, shown
from outrider.weights.folder import open_stored
from outrider.weights.loader import with_context
from outrider_multimodal.encoder_decoder import EncoderDecoderConfig
from outrider_multimodal.weights.bart import BART, MARIAN
from outrider_multimodal.weights.base import EncoderDecoderFamily
from outrider_multimodal.weights.t5 import MT5, T5
from outrider_multimodal.weights.whisper import WHISPER

if TYPE_CHECKING:
    from torch import Tensor

ENCODER_DECODERS: dict[str, EncoderDecoderFamily] = {family.name: family for family in (T5, MT5, BART, MARIAN, WHISPER)}


def load(folder: Path, options: ModelOptions, device: str) -> LoadedModel:
    """Load a folder. Errors as for ``open_encoder_decoder`` and ``make_encoder_decoder``."""
    from outrider_multimodal.encoder_decoder.factory import make_encoder_decoder  # torch

    config, tensors = open_encoder_decoder(folder)
    config = with_context(config, options, folder)
    return make_encoder_decoder(
        config, tensors, dtype=options.dtype, kv_cache_dtype=options.kv_cache_dtype, device=device
    )


def open_encoder_decoder(folder: Path) -> tuple[EncoderDecoderConfig, Mapping[str, Tensor]]:
    """Configuration and tensors by their canonical names; tensors are read at access.

    Raises ``ModelFormatError`` naming the key or the tensor at fault.
    """
    from outrider_multimodal.weights.renamed import Renamed  # torch
    from outrider_torch.models.stored import StoredTensors

    config = read_encoder_decoder_config(folder)
    family = ENCODER_DECODERS[config.family]
    held = open_stored(folder)
    places: dict[str, str] = {}
    for name, candidates in family.names(config).items():
        place = next((own for own in candidates if own in held), None)
        if place is not None:
            places[name] = place
        elif name not in family.optional:
            raise ModelFormatError(f"{folder} has no tensor {shown(candidates[0])}: download the model again")
    tensors = Renamed(places, StoredTensors(held), config)
    _check_shapes(config, tensors, folder)
    head = "lm_head.weight"
    if head in tensors and not tensors[head].equal(tensors["decoder.embed.weight"]):
        config = replace(config, tie_embeddings=False)
    return config, tensors


def read_encoder_decoder_config(folder: Path) -> EncoderDecoderConfig:
    """``config.json``, with the first and last tokens of outputs from ``generation_config.json``."""
    raw = read_json_object(folder / "config.json")
    generation = folder / "generation_config.json"
    own = read_json_object(generation) if generation.exists() else {}
    keys = ("eos_token_id", "decoder_start_token_id", "forced_bos_token_id", "bad_words_ids")
    raw |= {key: own[key] for key in keys if own.get(key) is not None}
    family = ENCODER_DECODERS[raw["model_type"]]
    try:
        return EncoderDecoderConfig(**family.read(raw))
    except ModelFormatError as error:
        raise ModelFormatError(f"{folder / 'config.json'}: {error}") from None


def _check_shapes(config: EncoderDecoderConfig, tensors: Mapping[str, Tensor], folder: Path) -> None:
    for name in tensors:
        found, expected = tuple(tensors[name].shape), _shape(config, name)
        if expected is not None and found != expected:
            raise ModelFormatError(f"{folder}: tensor {name} is {list(found)}, expected {list(expected)}")


def _shape(c: EncoderDecoderConfig, name: str) -> tuple[int, ...] | None:
    """The shape of a tensor by its canonical name; None: not known beforehand."""
    stack, _, rest = name.partition(".")
    part, _, kind = rest.rpartition(".")
    d, inner = c.hidden_size, c.intermediate_size if stack == "decoder" else c.encoder_intermediate_size
    if part.endswith("norm") or (kind == "bias" and part.endswith(("down", "out"))):
        return (d,)
    heads = c.num_heads * c.head_dim
    sizes = {"q": (heads, d), "k": (heads, d), "v": (heads, d), "out": (d, heads), "down": (d, inner)}
    sizes |= {"up": (inner, d), "gate": (inner, d), "embed": (c.vocab_size, d)}
    sizes["relative"] = (c.relative_buckets, c.num_heads)
    sizes["positions"] = ((c.max_seq_len if stack == "decoder" else c.max_source_len) + c.position_offset, d)
    if name == "lm_head.weight":
        return c.vocab_size, d
    if name == "logit_bias":
        return (c.vocab_size,)
    if "conv" in part:
        own = (d, (c.mel_bins or 0) if part == "conv1" else d, 3)
        return own if kind == "weight" else own[:1]
    size = sizes.get(part.rpartition(".")[2])
    return size if kind == "weight" or size is None else (math.prod(size) // size[1],)
