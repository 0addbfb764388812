"""Gemma 4's assistant: a small model that drafts with the target's keys and values, in files of its own.

::

    gemma-4-E2B-it/            gemma-4-E2B-it-assistant/           folders of safetensors, side by side
    gemma-4-E2B-it-Q4_K_M.gguf gemma-4-E2B-it-assistant-Q8_0.gguf  files in one folder
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, IncompatibleDraftError, ModelFormatError
from outrider.models.config import ModelConfig
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.stored import StoredTensor
from outrider.utils.json_files import read_json_object, shown
from outrider.verify.shapes import Acceptance
from outrider.weights.families import FAMILIES
from outrider.weights.files.layout import check_shapes, expected_shapes
from outrider.weights.folder import open_stored
from outrider.weights.gguf.gemma4 import GEMMA4, read_gemma4
from outrider.weights.gguf.names import shortest
from outrider.weights.gguf.reader import map_tensors
from outrider.weights.gguf.shards import read_gguf
from outrider.weights.hf_config.config import parse_config

__all__ = ["AssistantHead", "find_assistant", "has_assistant", "read_assistant", "require_assistant"]

logger = logging.getLogger(__name__)

_ARCH, _TYPE = "gemma4-assistant", "gemma4_assistant"
PRE, POST = "pre_projection", "post_projection"


@dataclass(frozen=True)
class AssistantHead:
    """An assistant's layers, which read keys and values of the target's cache."""

    config: ModelConfig
    """Of the assistant's layers; ``gemma4.reads`` names layers of the target's cache."""
    tensors: Mapping[str, StoredTensor]
    """By canonical names; ``pre_projection`` [hidden, 2 * target's] and ``post_projection`` [target's, hidden] too."""
    acceptance: Acceptance = ()

    @property
    def num_weights(self) -> int:
        """The number of weights in its matrices."""
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values() if len(tensor.shape) > 1)


def find_assistant(model: str) -> Path | None:
    """The assistant beside the model at path ``model``: a folder or a GGUF file; None: there is none."""
    path = Path(model).expanduser()
    if path.is_dir():
        found = path.with_name(f"{path.resolve().name}-assistant")
        return found if (found / "config.json").is_file() else None
    if path.suffix != ".gguf" or not path.is_file():
        return None
    files = sorted(path.parent.glob("*assistant*.gguf"))
    return max(
        (file for file in files if file != path), key=lambda file: _agreement(file.name, path.name), default=None
    )


def has_assistant(model: str, target: object) -> bool:
    """Whether the model at path ``model``, which is loaded as ``target``, has an assistant that can draft for it."""
    path = find_assistant(model) if isinstance(target, NativeLlamaModel) and target.config.gemma4 is not None else None
    if path is None or not isinstance(target, NativeLlamaModel):
        return False
    try:
        read_assistant(path, target)
    except (ModelFormatError, IncompatibleDraftError) as error:
        logger.warning("%s is not used as an assistant: %s", path, error)
        return False
    return True


def require_assistant(model: str, target: object) -> AssistantHead:
    """The assistant of a model. Raises ``ConfigError`` if there is none, and as ``read_assistant``."""
    if not isinstance(target, NativeLlamaModel) or target.config.gemma4 is None:
        raise ConfigError(f"draft='assistant' needs Gemma 4 in the native library, and {model} is not: use 'suffix'")
    path = find_assistant(model)
    if path is None:
        raise ConfigError(
            f"draft='assistant': beside {model} lies no assistant: put its folder, of the model's name with -assistant "
            "behind, or its GGUF file there, or use draft='suffix'"
        )
    return read_assistant(path, target)


def _agreement(name: str, other: str) -> int:
    """The number of first characters that two names share."""
    return next((i for i, (a, b) in enumerate(zip(name, other, strict=False)) if a != b), min(len(name), len(other)))


def read_assistant(path: Path, target: NativeLlamaModel) -> AssistantHead:
    """The assistant in a folder or a GGUF file.

    Raises ``ModelFormatError`` if it is damaged or is none, ``IncompatibleDraftError`` if it is another target's.
    """
    raw, wide, stored = _read_gguf(path) if path.is_file() else _read_folder(path)
    own = target.config.gemma4
    try:
        heads = {"num_key_value_heads": target.config.num_kv_heads, "per_layer_config": _heads(raw, target.config)}
        config = parse_config(raw | {"num_kv_shared_layers": 0} | heads)
    except ModelFormatError as error:
        raise ModelFormatError(f"{path}: {error}") from None
    if own is None or config.gemma4 is None or config.experts is not None or config.gemma4.layer_inputs:
        raise IncompatibleDraftError(f"{path} is an assistant of Gemma 4, and the target is none: use another draft")
    if wide != target.config.hidden_size or config.vocab_size != target.config.vocab_size:
        raise IncompatibleDraftError(
            f"{path} drafts for a hidden size of {shown(wide)} and {config.vocab_size} tokens, and the target has "
            f"{target.config.hidden_size} and {target.config.vocab_size}: use the assistant of this model"
        )
    if (config.head_dim, config.gemma4.full_head_dim) != (target.config.head_dim, own.full_head_dim):
        raise IncompatibleDraftError(f"{path} has heads of other dimensions than the target: use its own assistant")
    reads = tuple(_last_layer(target.config, config.window(layer) is None) for layer in range(config.num_layers))
    gemma4 = replace(config.gemma4, reads=reads, sharing_size=config.intermediate_size)
    config = replace(config, gemma4=gemma4, logit_cap=None, embedding_scale=1.0, tie_embeddings=True)
    d = config.hidden_size
    expected = expected_shapes(config) | {f"{PRE}.weight": (d, 2 * wide), f"{POST}.weight": (wide, d)}
    name = FAMILIES[config.family].own_name
    files = {name(canonical): shape for canonical, shape in expected.items()}
    check_shapes(config, files, {each: tensor.shape for each, tensor in stored.items()}, path)
    return AssistantHead(config, {canonical: stored[name(canonical)] for canonical in expected})


def _heads(raw: Mapping[str, Any], target: ModelConfig) -> dict[str, dict[str, int]] | None:
    """``per_layer_config``: key heads are the target's, whatever the assistant's own file says."""
    kinds, own = raw.get("layer_types"), target.gemma4
    if not isinstance(kinds, list) or own is None:
        return None
    both = {"head_dim": raw.get("global_head_dim", own.full_head_dim), "num_key_value_heads": own.full_kv_heads}
    said = raw.get("per_layer_config") or {}
    full = [str(layer) for layer, kind in enumerate(kinds) if kind == "full_attention" or layer == len(kinds) - 1]
    dims = {layer: (said.get(layer) or said.get(int(layer)) or {}).get("head_dim") for layer in full}
    return {layer: both | ({"head_dim": dims[layer]} if dims[layer] else {}) for layer in full}


def _last_layer(target: ModelConfig, full: bool) -> int:
    """The layer of the target's cache of the last layer of a kind that has keys of its own."""
    layers = [i for i, layer in enumerate(target.cache_layers) if (target.window(layer) is None) == full]
    return layers[-1]


def _read_folder(folder: Path) -> tuple[dict[str, Any], Any, dict[str, StoredTensor]]:
    raw = read_json_object(folder / "config.json")
    text = raw.get("text_config")
    if raw.get("model_type") != _TYPE or not isinstance(text, dict):
        raise ModelFormatError(f"{folder}: model_type={shown(raw.get('model_type'))} is no {_TYPE}")
    stored = open_stored(folder)
    kept = {name: tensor for name, tensor in stored.items() if not name.startswith(("masked_embedding.", "lm_head."))}
    return {**text, "model_type": "gemma4_text"}, raw.get("backbone_hidden_size", 1536), kept


def _read_gguf(path: Path) -> tuple[dict[str, Any], Any, dict[str, StoredTensor]]:
    header = read_gguf(path)
    get = header.scalar
    if get("general.architecture") != _ARCH or "token_embd.weight" not in header.tensors:
        raise ModelFormatError(f"{path}: architecture {shown(get('general.architecture'))} is no {_ARCH}")
    raw = read_gemma4(_ARCH, header) | {
        "model_type": "gemma4_text",
        "vocab_size": header.tensors["token_embd.weight"].shape[0],
        "hidden_size": get(f"{_ARCH}.embedding_length"),
        "num_hidden_layers": get(f"{_ARCH}.block_count"),
        "num_attention_heads": get(f"{_ARCH}.attention.head_count"),
        "max_position_embeddings": get(f"{_ARCH}.context_length"),
        "rms_norm_eps": shortest(get(f"{_ARCH}.attention.layer_norm_rms_epsilon")),
    }
    names = {f"nextn.{part}.weight": f"{part}.weight" for part in (PRE, POST)}
    weights = [name for name in header.tensors if not name.startswith(("rope_freqs", "masked_embd"))]
    own = {names.get(name, GEMMA4.family_name(name)): name for name in weights}
    return raw, get(f"{_ARCH}.embedding_length_out"), map_tensors(header, own)
