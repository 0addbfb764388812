"""Adapters as PEFT writes them: ``adapter_config.json`` beside ``adapter_model.safetensors``.

Whatever is not understood is refused: an adapter that is read in part says something else.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from outrider.checkpoints.families.base import words
from outrider.checkpoints.weights.safetensors import LazyTensors, read_header
from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.kernels.native.model_structs import ADAPTED
from outrider.models.adapters import Adapter, LowRank
from outrider.models.config import ModelConfig
from outrider.utils.json_files import read_json_object

_READ = {"peft_type", "r", "lora_alpha", "use_rslora", "rank_pattern", "alpha_pattern"}
_IRRELEVANT = words(
    "base_model_name_or_path revision task_type inference_mode lora_dropout init_lora_weights auto_mapping "
    "target_modules exclude_modules layers_to_transform layers_pattern peft_version megatron_core qalora_group_size "
    "runtime_config loftq_config eva_config corda_config base_model_class parent_library"
)
"""About training, or said again by the names of the tensors."""
_MOST_RANK = 1024
_NAME = re.compile(
    rf"base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\.({'|'.join(ADAPTED)})\.lora_([AB])\.weight"
)


def load_adapter(name: str, folder: Path, config: ModelConfig) -> Adapter:
    """Read the adapter in ``folder`` for a model of this shape.

    Raises:
        ModelNotFoundError: there is none.
        ModelFormatError: it is damaged, for another model, or does what is not supported.
    """
    told, path = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    for file in (told, path):
        if not file.is_file():
            raise ModelNotFoundError(f"the adapter {name!r} has no {file.name} in {str(folder)!r}: name PEFT's folder")
    options = read_json_object(told)
    _check(name, options)
    if not config.is_llama:
        raise ModelFormatError(
            f"the adapter {name!r} is for a model of the family {config.family!r}: adapters are supported for models "
            "with the layers of a Llama"
        )
    infos = read_header(path)
    tensors = LazyTensors(dict.fromkeys(infos, path), infos)
    pairs: dict[tuple[int, str], dict[str, Tensor]] = {}
    for key in tensors:
        found = _NAME.fullmatch(key)
        if found is None or int(found[1]) >= config.num_layers:
            raise ModelFormatError(
                f"the adapter {name!r} holds {key!r}, which is not supported: LoRA of {', '.join(ADAPTED)} is"
            )
        pairs.setdefault((int(found[1]), found[2]), {})[found[3]] = tensors[key]
    return Adapter(name, config, {where: _pair(name, where, pair, options) for where, pair in pairs.items()})


def _check(name: str, options: Mapping[str, Any]) -> None:
    if options.get("peft_type") != "LORA":
        kind = options.get("peft_type")
        raise ModelFormatError(f"the adapter {name!r} has peft_type={kind!r}: only LORA is supported")
    rank = options.get("r")
    if not isinstance(rank, int) or not 1 <= rank <= _MOST_RANK:
        raise ModelFormatError(f"the adapter {name!r} has r={rank!r}: 1 to {_MOST_RANK} are supported")
    for key, value in options.items():
        if key in _READ or key in _IRRELEVANT or not value or (key == "bias" and value == "none"):
            continue
        raise ModelFormatError(f"the adapter {name!r} has {key}={value!r}, which is not supported: train it without")


def _pair(name: str, where: tuple[int, str], pair: Mapping[str, Tensor], options: Mapping[str, Any]) -> LowRank:
    """A [rank, inputs] and B [outputs, rank] as ``Adapter`` takes them, with PEFT's scale."""
    layer, part = where
    if set(pair) != {"A", "B"}:
        raise ModelFormatError(f"the adapter {name!r} has only one of lora_A and lora_B for {part} of layer {layer}")
    block = "mlp" if part in ("gate_proj", "up_proj", "down_proj") else "self_attn"
    module = f"model.layers.{layer}.{block}.{part}"
    rank = _by_pattern(options.get("rank_pattern"), module, options["r"])
    alpha = _by_pattern(options.get("alpha_pattern"), module, options.get("lora_alpha", 8))
    a, b = pair["A"].float(), pair["B"].float()
    if a.dim() != 2 or b.dim() != 2 or a.shape[0] != rank or b.shape[1] != rank:
        raise ModelFormatError(
            f"the adapter {name!r} has matrices of {list(a.shape)} and {list(b.shape)} for {module}, and says that "
            f"their rank is {rank}: it is damaged"
        )
    scale = alpha / rank**0.5 if options.get("use_rslora") else alpha / rank
    return a.T, b.T * scale


def _by_pattern(patterns: Any, module: str, usual: Any) -> Any:
    """The value of the first pattern that the module's name ends with, as PEFT has it."""
    for pattern, value in (patterns or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return usual
