"""The keywords of llama-cpp-python's ``Llama`` as options of ``LLM``: translated, without effect, or refused."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, ModelFormatError
from outrider.weights.hf_config.config import read_config
from outrider_llama.llama_speculative import draft_options

_PLACEMENT: Mapping[str, Any] = {
    "n_gpu_layers": 0,
    "split_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "use_mmap": True,
    "use_mlock": False,
    "n_ubatch": 512,
    "n_threads_batch": None,
    "offload_kqv": True,
    "flash_attn": False,
    "op_offload": None,
    "swa_full": None,
    "no_perf": False,
    "numa": False,
}
"""Options with their defaults that place or speed up the work of llama.cpp, and change no output."""

_REFUSED: Mapping[str, tuple[Any, str]] = {
    "kv_overrides": (None, "change the file's metadata instead"),
    "rope_scaling_type": (-1, "the file's own rope is used"),
    "attention_type": (-1, "the model's own attention is used"),
    "rope_freq_base": (0.0, "the file's own rope is used"),
    "rope_freq_scale": (0.0, "the file's own rope is used"),
    "yarn_ext_factor": (-1.0, "the file's own rope is used"),
    "yarn_attn_factor": (1.0, "the file's own rope is used"),
    "yarn_beta_fast": (32.0, "the file's own rope is used"),
    "yarn_beta_slow": (1.0, "the file's own rope is used"),
    "yarn_orig_ctx": (0, "the file's own rope is used"),
    "lora_base": (None, "adapters are added to the model as it is loaded"),
    "lora_scale": (1.0, "the adapter's own scale (lora_alpha) is used"),
    "chat_handler": (None, "use outrider.LLM.chat, whose models see images too"),
    "tokenizer": (None, "the model's own tokenizer is used"),
    "spm_infill": (False, "suffix is not supported"),
}
"""Options that would change the output, with their defaults, and why or what instead."""

_CACHE_TYPES: Mapping[int | None, str] = {None: "auto", 0: "float32", 8: "int8", 30: "bfloat16"}
"""``kv_cache_dtype`` by the number of a GGML type: F32, Q8_0 and BF16."""

POOLING_UNSPECIFIED, POOLING_MEAN = -1, 1


def engine_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of ``LLM`` for the arguments of ``Llama(...)``, and its further keywords unchanged.

    Options without effect give one warning for all of them. Raises ``ConfigError`` for what cannot be honoured.
    """
    for name, (default, remedy) in _REFUSED.items():
        if given[name] != default and given[name] is not None:
            raise ConfigError(f"{name}={given[name]!r} cannot be used: leave it out ({remedy})")
    moot = [name for name, default in _PLACEMENT.items() if given[name] != default]
    if moot:
        warnings.warn(f"{', '.join(moot)}: without effect, Outrider places its work itself", UserWarning, stacklevel=4)
    options: dict[str, Any] = {
        "max_seq_len": given["n_ctx"] or None,
        "max_batched_tokens": given["n_batch"],
        "max_batch_size": 1,
        "threads": given["n_threads"],
        "kv_cache_dtype": _cache_dtype(given["type_k"], given["type_v"]),
        "progress": bool(given["verbose"]),
    }
    if given["lora_path"]:
        options |= {"enable_lora": True, "lora_modules": {"lora": given["lora_path"]}}
    return {**options, **draft_options(given["draft_model"]), **given["kwargs"]}


def fitting_context(folder: Path, wanted: int | None) -> int | None:
    """``n_ctx``, or with a warning the context that the model in ``folder`` was made for, if that is less."""
    try:
        most = read_config(folder).max_seq_len
    except ModelFormatError:  # a family that another implementation runs, and checks
        return wanted
    if wanted is None or wanted <= most:
        return wanted
    warnings.warn(f"n_ctx={wanted}: the model was made for {most} tokens, which are used", UserWarning, stacklevel=4)
    return most


def check_chat_format(name: str | None) -> None:
    """Raise ``ConfigError`` for a chat format other than the model's own."""
    if name not in (None, "chat_template.default"):
        raise ConfigError(f"chat_format={name!r} cannot be used: leave it out, as the model's own template is rendered")


def check_pooling(pooling: int) -> None:
    """Raise ``ConfigError`` for another pooling of embeddings than the mean."""
    if pooling not in (POOLING_UNSPECIFIED, POOLING_MEAN):
        raise ConfigError(f"pooling_type={pooling} cannot be used: embeddings are means ({POOLING_MEAN})")


def _cache_dtype(keys: int | None, values: int | None) -> str:
    if keys != values or keys not in _CACHE_TYPES:
        raise ConfigError(
            f"type_k={keys}, type_v={values} cannot be used: give both, as 0 (float32), 8 (8 bits) or 30 (bfloat16)"
        )
    return _CACHE_TYPES[keys]
