"""Model folders of foreign families: transformers' own classes read them, and the bridge runs them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from outrider.config import ModelOptions
from outrider.errors import ModelFormatError
from outrider.models.base import LoadedModel
from outrider.models.config import ModelConfig
from outrider.utils.json_files import merge_ids, read_json_object, shown
from outrider.weights.files.safetensors import read_header
from outrider.weights.folder import weight_files
from outrider.weights.hf_config.keys import check_generation_config, check_safe
from outrider.weights.loader import with_context

TILE = 16
"""Rows of a call by transformers' code (``models.bridge``); contexts are multiples of it."""

_LONGEST = 32768
"""Context of a model without a configured one, such as a recurrent model."""

_CONTEXT_KEYS = (
    *("max_position_embeddings", "max_target_positions", "n_positions", "max_seq_len", "seq_length", "context_length"),
    "max_sequence_length",
)


def knows(family: str) -> bool:
    """Whether transformers has a causal language model of ``model_type`` ``family``."""
    return family in _classes()


def foreign_config(folder: Path) -> ModelConfig:
    """A foreign model's configuration, without loading the model, which adds details of its caches.

    Raises:
        ModelFormatError: the folder has its own code, is quantised, is no causal language model, or is damaged.
    """
    return described(_read_config(folder), folder)


def load(folder: Path, options: ModelOptions, device: str) -> LoadedModel:
    """Load a folder by transformers' code, and choose the bridge's way to run it.

    Raises:
        ModelFormatError: as ``foreign_config``; tensors are missing; or no way runs the model exactly.
        ConfigError: an option needs the native library.
    """
    from outrider_torch.kernels.torch_processor import use_chosen_threads
    from outrider_torch.models.factory import torch_dtype
    from outrider_transformers.calls import register
    from outrider_transformers.check import bridged
    from outrider_transformers.errors import NotBridgedError
    from outrider_transformers.network import Network

    use_chosen_threads()
    dtype = torch_dtype(options.dtype, options.kv_cache_dtype, device, "which transformers does not use")
    hf_config = _read_config(folder)
    config = with_context(described(hf_config, folder), options, folder)
    _check_layers(folder)
    register()
    module = _load_module(folder, hf_config, dtype).to(device).eval()
    try:
        network = Network(module)
    except NotBridgedError as error:
        raise ModelFormatError(f"{folder.name} ({config.family}) cannot be run: {error}") from None
    return bridged(network, config)


def _check_layers(folder: Path) -> None:
    """Refuse damaged files, and layers larger than the files: constructing them would take very long."""
    tensors = sum(len(read_header(path)) for path in weight_files(folder))
    for key, value in _integers(read_json_object(folder / "config.json")):
        if "layer" in key and value > tensors:
            raise ModelFormatError(
                f"{folder}: {key}={value}, but the files hold {tensors} tensors: download them again"
            )


def _integers(raw: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    for key, value in raw.items():
        if isinstance(value, Mapping):
            yield from _integers(value)
        elif isinstance(value, int):
            yield key, value


def _classes() -> Mapping[str, str]:
    """Names of the classes of transformers' causal language models, by ``model_type``."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    classes: Mapping[str, str] = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return classes


def _read_config(folder: Path) -> Any:
    """The folder's configuration as an object of transformers, whose code defines its keys."""
    path = folder / "config.json"
    raw = read_json_object(path)
    family, known = raw.get("model_type"), _classes()
    if not isinstance(family, str) or family not in known:
        raise ModelFormatError(f"{path}: model_type={shown(family)} is no causal language model of transformers")
    own = known[family]
    try:
        check_safe(raw, (own, f"{own.removesuffix('ForCausalLM')}Config"))
        check_generation_config(raw)
    except ModelFormatError as error:
        raise ModelFormatError(f"{path}: {error}") from None
    if (folder / "adapter_config.json").exists():
        raise ModelFormatError(f"{folder} has an adapter_config.json: merge the adapter into the weights")
    from transformers import AutoConfig

    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # noqa: BLE001 - any error of foreign code is a fault of the file
        raise ModelFormatError(f"{path}: transformers refuses it: {_line(error)}") from None


def described(config: Any, folder: Path) -> ModelConfig:
    """The ``ModelConfig`` of a transformers configuration and the folder's ``generation_config.json``."""
    text = config.get_text_config(decoder=True)
    generation = folder / "generation_config.json"
    extra = read_json_object(generation) if generation.exists() else {}
    try:
        check_generation_config(extra)
    except ModelFormatError as error:
        raise ModelFormatError(f"{generation}: {error}") from None
    hidden, heads = _number(text, "hidden_size"), _number(text, "num_attention_heads")
    return ModelConfig(
        family=str(config.model_type),
        vocab_size=_number(text, "vocab_size"),
        hidden_size=hidden,
        intermediate_size=_number(text, "intermediate_size", 4 * hidden),
        num_layers=_number(text, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=_number(text, "num_key_value_heads", heads),
        head_dim=_number(text, "head_dim", max(1, hidden // heads)),
        max_seq_len=_context(text),
        tie_embeddings=bool(getattr(text, "tie_word_embeddings", False)),
        eos_token_ids=merge_ids(getattr(text, "eos_token_id", None), extra.get("eos_token_id")),
        bos_token_id=next(iter(merge_ids(getattr(text, "bos_token_id", None))), None),
    )


def _number(config: Any, name: str, default: int = 1) -> int:
    """An attribute if it is a positive integer, else ``default``: it may be missing, or differ by layer."""
    try:
        value = getattr(config, name, None)
    except Exception:  # noqa: BLE001 - configurations of mixed layers refuse to name one
        return default
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else default


def _context(config: Any) -> int:
    """Positions that the model was made for, in whole tiles, as tables of positions end there.

    With LongRoPE a longer text would have other rotations from its first token on.
    """
    own = [_number(config, key, 0) for key in _CONTEXT_KEYS]
    longest = next((value for value in own if value), _LONGEST)
    originals = list(_longrope(getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None)))
    if originals:
        originals.append(_number(config, "original_max_position_embeddings", longest))
    length = min([longest, *originals])
    return length if length < TILE else length - length % TILE


def _longrope(parameters: Any) -> list[int]:
    if not isinstance(parameters, Mapping):
        return []
    if parameters.get("rope_type", parameters.get("type")) == "longrope":
        return [int(parameters.get("original_max_position_embeddings") or _LONGEST)]
    return [length for inner in parameters.values() for length in _longrope(inner)]


def _load_module(folder: Path, config: Any, dtype: Any) -> Any:
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    try:
        module, report = AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            attn_implementation="eager",
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except Exception as error:  # noqa: BLE001 - as in _read_config
        raise ModelFormatError(f"{folder}: transformers cannot load it: {_line(error)}") from None
    missing = sorted(map(str, [*report["missing_keys"], *report.get("mismatched_keys", ())]))
    if missing:
        raise ModelFormatError(
            f"{folder} has no tensor {shown(missing[0])} of the right shape ({len(missing)} are missing): download the "
            "model again"
        )
    return module


def _line(error: Exception) -> str:
    return re.sub(r"\s+", " ", str(error))[:200]
