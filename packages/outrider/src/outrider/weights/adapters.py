"""Low-rank adapters (LoRA, Hu et al. 2021) from PEFT's ``adapter_config.json`` and ``adapter_model.safetensors``.

An unsupported option or tensor is refused: an adapter that is read in part computes something else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.models.adapters import Adapter, LowRank
from outrider.models.config import ModelConfig
from outrider.native.model_structs import ADAPTED
from outrider.native.stored import StoredTensor
from outrider.utils.json_files import read_json_object, shown
from outrider.weights.families.base import words
from outrider.weights.files.safetensors import read_header, stored_tensors

_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}
_IRRELEVANT = words(
    "base_model_name_or_path revision task_type inference_mode lora_dropout init_lora_weights auto_mapping "
    "target_modules exclude_modules layers_to_transform layers_pattern peft_version megatron_core qalora_group_size "
    "runtime_config loftq_config eva_config corda_config base_model_class parent_library"
)
"""Keys about training, and keys that repeat information of the tensors' names."""
_OF_MLP = ("gate_proj", "up_proj", "down_proj")
_MOST_RANK = 1024
_MOST_ALPHA = 1e18
_MOST_PATTERNS = 2048  # PEFT writes at most one for each linear layer; each is compared with every linear layer
_NAME = re.compile(
    rf"base_model\.model\.model\.layers\.([0-9]{{1,6}})\.\w+\.({'|'.join(ADAPTED)})\.lora_([AB])\.weight"
)
_PATTERN = re.compile(r"\^?((?:[A-Za-z0-9_.]|\\\.)+)\$?")
"""A layer's name; it may have ``^`` before it, ``$`` behind it and backslashes before its dots."""


def load_adapter(name: str, folder: Path, config: ModelConfig) -> Adapter:
    """Read the adapter in ``folder`` for a model with the configuration ``config``.

    Args:
        name: the adapter's name in requests and messages.

    Raises:
        ModelNotFoundError: a file of the adapter is missing.
        ModelFormatError: the adapter is damaged, for another model, or of an unsupported kind.
    """
    told, path = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    for file in (told, path):
        if not os.path.isfile(file):
            raise ModelNotFoundError(f"the adapter {name!r} has no {file.name} in {str(folder)!r}: name PEFT's folder")
    options = AdapterOptions(name, read_json_object(told))
    if not config.is_llama:
        raise ModelFormatError(
            f"the adapter {name!r} is for a model of the family {config.family!r}: adapters are supported for models "
            "with the layers of a Llama"
        )
    infos = read_header(path)
    tensors = stored_tensors(dict.fromkeys(infos, path), infos)
    pairs: dict[tuple[int, str], dict[str, str]] = {}
    for key in tensors:
        found = _NAME.fullmatch(key)
        where = (int(found[1]), found[2]) if found else (0, "")
        if not found or key != _tensor(where, found[3]) or where[0] >= config.num_layers:
            raise ModelFormatError(
                f"the adapter {name!r} holds {shown(key)}, which is not supported: LoRA of {', '.join(ADAPTED)} is"
            )
        pairs.setdefault(where, {})[found[3]] = key
    shapes = {key: info.shape for key, info in infos.items()}
    for where, pair in pairs.items():  # check all pairs before reading any numbers
        _check_pair(options, where, pair, shapes)
    return Adapter(name, config, {where: _matrices(options, where, pair, tensors) for where, pair in pairs.items()})


class AdapterOptions:
    """The checked content of ``adapter_config.json``."""

    def __init__(self, name: str, raw: Mapping[str, Any]) -> None:
        self.name = name
        if raw.get("peft_type") != "LORA":
            raise self.wrong("peft_type", raw.get("peft_type"), "only LORA is supported")
        for key, value in raw.items():
            if not (key in _READ or key in _IRRELEVANT or not value or (key == "bias" and value == "none")):
                raise self.wrong(shown(key).strip("'"), value, "it is not supported, train without")
        self._rank = self._checked_rank("r", raw.get("r"))
        self._alpha = self._checked_alpha("lora_alpha", raw.get("lora_alpha", 8))
        self._rooted = raw.get("use_rslora") or False
        if not isinstance(self._rooted, bool):
            raise self.wrong("use_rslora", self._rooted, "true and false are supported")
        self._ranks = [(p, self._checked_rank("rank_pattern", v)) for p, v in self._patterns(raw, "rank_pattern")]
        self._alphas = [(p, self._checked_alpha("alpha_pattern", v)) for p, v in self._patterns(raw, "alpha_pattern")]

    def rank(self, module: str) -> int:
        """The rank r of the matrices of the linear layer ``module``."""
        return next((rank for pattern, rank in self._ranks if _names(pattern, module)), self._rank)

    def scale(self, module: str) -> float:
        """PEFT's factor of the product B A: alpha / r, or alpha / sqrt(r) with ``use_rslora``."""
        alpha = next((alpha for pattern, alpha in self._alphas if _names(pattern, module)), self._alpha)
        rank = self.rank(module)
        return alpha / rank**0.5 if self._rooted else alpha / rank

    def wrong(self, key: str, value: object, remedy: str) -> ModelFormatError:
        return ModelFormatError(f"the adapter {self.name!r} has {key}={shown(value)}: {remedy}")

    def _checked_rank(self, key: str, value: object) -> int:
        if type(value) is not int or not 1 <= value <= _MOST_RANK:
            raise self.wrong(key, value, f"ranks from 1 to {_MOST_RANK} are supported")
        return value

    def _checked_alpha(self, key: str, value: object) -> float:
        if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < _MOST_ALPHA:
            raise self.wrong(key, value, "a number is needed")
        return value

    def _patterns(self, raw: Mapping[str, Any], key: str) -> Iterator[tuple[str, object]]:
        """Names of linear layers with their values, in the file's order."""
        patterns = raw.get(key) or {}
        if not isinstance(patterns, dict) or len(patterns) > _MOST_PATTERNS:
            raise self.wrong(key, patterns, f"an object of at most {_MOST_PATTERNS} names is needed")
        for pattern, value in patterns.items():
            for name in pattern.split("|"):
                if not _PATTERN.fullmatch(name):
                    remedy = "names and ends of names of linear layers are supported, other regular expressions are not"
                    raise self.wrong(key, pattern, remedy)
                yield name, value


def _names(pattern: str, module: str) -> bool:
    """Whether PEFT's regular expression ``(.*\\.)?(pattern)$`` matches ``module``, for a pattern that is a name.

    A file's text never runs as a regular expression: its backtracking might not end.
    """
    end = pattern.removeprefix("^").removesuffix("$").replace("\\.", "\0")
    begin = len(module) - len(end)
    if begin < 0 or (begin and (pattern.startswith("^") or module[begin - 1] != ".")):
        return False
    return all(p in (m, ".") or (p == "\0" and m == ".") for p, m in zip(end, module[begin:], strict=True))


def _module(where: tuple[int, str]) -> str:
    layer, part = where
    return f"model.layers.{layer}.{'mlp' if part in _OF_MLP else 'self_attn'}.{part}"


def _tensor(where: tuple[int, str], side: str) -> str:
    return f"base_model.model.{_module(where)}.lora_{side}.weight"


def _check_pair(
    options: AdapterOptions, where: tuple[int, str], pair: Mapping[str, str], shapes: Mapping[str, tuple[int, ...]]
) -> None:
    """Raise ``ModelFormatError`` unless ``pair`` has an A of [rank, inputs] and a B of [outputs, rank]."""
    module = _module(where)
    if set(pair) != {"A", "B"}:
        raise ModelFormatError(f"the adapter {options.name!r} has only one of lora_A and lora_B for {module}")
    rank, a, b = options.rank(module), shapes[pair["A"]], shapes[pair["B"]]
    if len(a) != 2 or len(b) != 2 or a[0] != rank or b[1] != rank:
        raise ModelFormatError(
            f"the adapter {options.name!r} has matrices of {shown(list(a))} and {shown(list(b))} for {module}, and "
            f"says that their rank is {rank}: it is damaged"
        )


def _matrices(
    options: AdapterOptions, where: tuple[int, str], pair: Mapping[str, str], tensors: Mapping[str, StoredTensor]
) -> LowRank:
    """A transposed, [inputs, rank], and B transposed, [rank, outputs], times PEFT's scale; both float32."""
    a, b = (tensors[pair[side]].numbers() for side in "AB")  # copies: the file is mapped, and may change
    return a.T, b.T * np.float32(options.scale(_module(where)))
