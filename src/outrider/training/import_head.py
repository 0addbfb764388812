"""EAGLE-3 heads of the ``speculators`` library, in the layout that ``export`` writes, as heads of our own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from outrider.checkpoints.weights import open_checkpoint
from outrider.checkpoints.weights.checkpoint import Checkpoint
from outrider.errors import ConfigError, IncompatibleDraftError, ModelFormatError
from outrider.heads import HeadConfig, TargetFingerprint, make_head, save_head
from outrider.heads.config import fingerprint_rows
from outrider.heads.eagle import EagleLayer
from outrider.utils.json_files import read_json_object, shown

_THEIRS = ("embed_tokens.weight", "t2d", "d2t", "lm_head.weight")  # kept otherwise, or not at all
_SAME: Mapping[str, Any] = {"norm_before_residual": False, "norm_before_fc": False, "target_hidden_size": None}
_LAYER: Mapping[str, Any] = {
    "model_type": "llama", "num_hidden_layers": 1, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
    "rope_scaling": None,
}  # fmt: skip


def from_speculators(folder: Path, target: Path, out: Path) -> HeadConfig:
    """Write the head in ``folder``, which drafts for the model in ``target``, to ``out``; its configuration.

    Raises:
        ModelFormatError: the folder holds no such head, or one that computes what ours do not.
        IncompatibleDraftError: its embedding is not the target's.
    """
    raw = read_json_object(folder / "config.json")
    tensors = _read(folder / "model.safetensors")
    checkpoint = open_checkpoint(target)
    embedding = checkpoint.tensors["model.embed_tokens.weight"].to(torch.bfloat16)
    own = tensors.get("embed_tokens.weight")
    if own is not None and not torch.equal(own.to(torch.bfloat16), embedding):
        raise IncompatibleDraftError(
            f"{folder} has embeddings that are not those of {target}: name the target it was trained for"
        )
    ids = _draft_ids(tensors, raw, folder)
    scores = _require(tensors, "lm_head.weight", folder).to(torch.bfloat16)
    full = embedding if checkpoint.config.tie_embeddings else checkpoint.tensors["lm_head.weight"].to(torch.bfloat16)
    if ids is not None:
        order = ids.argsort()
        ids, scores, full = ids[order], scores[order], full[ids[order]]
    fingerprint = TargetFingerprint.of(checkpoint.config, embedding[fingerprint_rows(len(embedding))], target.name)
    config = head_config(raw, checkpoint, fingerprint, own_lm_head=not torch.equal(scores, full))
    module = make_head(config)
    assert isinstance(module, EagleLayer)
    state = {name: value for name, value in tensors.items() if name not in _THEIRS and not name.startswith("verifier_")}
    state |= {"lm_head.weight": scores} if config.own_lm_head else {}
    state |= {} if ids is None else {"d2t": ids}
    try:
        module.load_state_dict(state)
    except RuntimeError as error:
        raise ModelFormatError(f"{folder} is no head of this form: {shown(str(error))}") from None
    if ids is not None:
        module.set_draft_ids(ids)
    save_head(out, module, config)
    return config


def head_config(
    raw: Mapping[str, Any], checkpoint: Checkpoint, fingerprint: TargetFingerprint, *, own_lm_head: bool
) -> HeadConfig:
    """Our configuration of the head that an ``Eagle3SpeculatorConfig`` describes, or ``ModelFormatError``."""
    layer = raw.get("transformer_layer_config")
    if raw.get("speculators_model_type") != "eagle3" or not isinstance(layer, dict):
        raise ModelFormatError(
            f"speculators_model_type={shown(raw.get('speculators_model_type'))}: only eagle3 heads can be read"
        )
    for names, given in ((_SAME, raw), (_LAYER, layer)):
        for name, value in names.items():
            if given.get(name, value) != value:
                raise ModelFormatError(f"{name}={shown(given[name])}: only heads with {name}={value} can be read")
    target, layers = checkpoint.config, checkpoint.config.num_layers
    kinds = layer.get("layer_types") or ["full_attention"]
    rope = layer.get("rope_parameters") or {}
    try:
        return HeadConfig(
            kind="eagle3",
            target=fingerprint,
            hidden_size=layer["hidden_size"],
            vocab_size=target.vocab_size,
            feature_layers=tuple(raw.get("eagle_aux_hidden_state_layer_ids") or (2, layers // 2, layers - 3)),
            draft_vocab_size=None if raw["draft_vocab_size"] == target.vocab_size else raw["draft_vocab_size"],
            fc_norm=raw.get("fc_norm", False),
            norm_output=raw.get("norm_output", False),
            window=layer["sliding_window"] if kinds == ["sliding_attention"] else 0,
            own_lm_head=own_lm_head,
            num_heads=layer["num_attention_heads"],
            num_kv_heads=layer["num_key_value_heads"],
            head_dim=layer.get("head_dim") or layer["hidden_size"] // layer["num_attention_heads"],
            intermediate_size=layer["intermediate_size"],
            rope_theta=layer.get("rope_theta", rope.get("rope_theta", 10000.0)),
            rms_norm_eps=layer["rms_norm_eps"],
            max_seq_len=layer["max_position_embeddings"],
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(f"config.json describes no eagle3 head ({shown(str(error))})") from None


def _draft_ids(tensors: Mapping[str, Tensor], raw: Mapping[str, Any], folder: Path) -> Tensor | None:
    """int64 [draft]: the target id of each row of the head's LM head; None: all."""
    offsets = tensors.get("d2t")
    if offsets is None:
        return None
    if offsets.dtype != torch.int64 or offsets.shape != (raw.get("draft_vocab_size"),):
        raise ModelFormatError(
            f"{folder}: d2t is {offsets.dtype} {list(offsets.shape)}, but "
            f"draft_vocab_size={shown(raw.get('draft_vocab_size'))}"
        )
    ids = offsets + torch.arange(len(offsets))
    rows = len(_require(tensors, "embed_tokens.weight", folder))
    if int(ids.min()) < 0 or int(ids.max()) >= rows:
        raise ModelFormatError(f"{folder}: d2t names tokens {int(ids.min())} to {int(ids.max())}, of {rows}")
    return None if len(ids) == rows else ids


def _require(tensors: Mapping[str, Tensor], name: str, folder: Path) -> Tensor:
    if name not in tensors:
        raise ModelFormatError(f"{folder}: tensor {name} is missing")
    return tensors[name]


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise ConfigError(f"{path} is not there: name the folder of a speculators head") from None
    except (SafetensorError, OSError) as error:
        raise ModelFormatError(f"{path} cannot be read: {shown(str(error))}") from None
