"""The draft head that a model's own files bring (multi-token prediction, "nextn"), and its tensors' names."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from outrider.errors import ConfigError
from outrider.models.base import HeadTarget
from outrider.models.config import ModelConfig
from outrider.models.native_packer import Stored
from outrider.verify.shapes import Acceptance
from outrider.weights.files.layout import expected_shapes

__all__ = ["LEARNED", "PROJECTION", "MtpHead", "layer_config", "mtp_head"]

PROJECTION = "model.fc"
LOWEST, LEARNED = 16384, 2048  # multiples of 16


@dataclass(frozen=True)
class MtpHead:
    """A decoder layer of the target's kind, behind a projection of a token's embedding and a hidden state."""

    config: ModelConfig
    """Of the head's layers alone."""
    tensors: Stored
    """By the names that a model of these layers has, and ``model.fc`` and ``model.pre_fc_norm_*`` before them."""
    lowest: int = LOWEST
    """Of a larger vocabulary the head scores the ids below this, and others from the texts (``mtp_vocabulary``)."""
    acceptance: Acceptance = ()
    """[position][rank], as measured in training; empty: unknown."""

    @property
    def scores_part(self) -> bool:
        """Whether the head scores a part of the vocabulary."""
        return self.config.vocab_size > self.lowest and self.config.logit_cap is None

    @property
    def num_weights(self) -> int:
        """The number of weights in its matrices, and of those rows of the LM head that it copies at most."""
        rows = self.lowest + LEARNED if self.scores_part else 0
        layer = sum(math.prod(shape) for shape in _shapes(self.config).values() if len(shape) > 1)
        return layer + rows * self.config.hidden_size


def mtp_head(target: object) -> MtpHead | None:
    """The head of a model that the native library or torch runs; None without one that it can draft with."""
    found, config = getattr(target, "draft_head", None), getattr(target, "config", None)
    if not found or not isinstance(config, ModelConfig) or config.mtp_layers != 1:
        return None
    tensors = {f"model.{name.removeprefix('mtp.')}": weight for name, weight in found.items()}
    return MtpHead(layer_config(config), tensors)


def require_head(target: HeadTarget, name: str) -> MtpHead:
    """``mtp_head``. Raises ``ConfigError`` if there is none; ``name``: of the model, for the message."""
    found = mtp_head(target)
    if found is not None:
        return found
    layers = target.config.mtp_layers
    if layers > 1:
        why = f"that of {name} has {layers} layers, and one is supported"
    elif layers:
        why = f"that of {name} is not read by the code that runs {name}: use implementation='auto'"
    else:
        why = f"{name} has none: use the files that have it, or draft='suffix'"
    raise ConfigError(f"draft='mtp' needs a draft head (multi-token prediction) in the model's files: {why}")


def layer_config(config: ModelConfig) -> ModelConfig:
    """The configuration of a model of the head's layers: full attention, and experts if the target's last has."""
    experts, last = config.experts, config.num_layers - 1
    experts = replace(experts, layers=()) if experts is not None and config.is_sparse(last) else None
    windows = (False,) if config.window_layers else ()
    return replace(
        config, num_layers=1, recurrent=None, experts=experts, window_layers=windows, rope_layers=(), mtp_layers=0
    )


def _shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    d = config.hidden_size
    own = {name: shape for name, shape in expected_shapes(config).items() if name.startswith("model.layers.")}
    return own | {f"{PROJECTION}.weight": (d, 2 * d)}
