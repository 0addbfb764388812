"""New weights in the place of a loaded model's, without loading anything else again: ``LLM.update_weights``."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outrider.cache.sessions import SessionStore
from outrider.config import EngineConfig
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.errors import ConfigError, InvalidRequestError, ModelFormatError, WeightsReplacedError
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.models.inputs import has_encoder
from outrider.models.native_gemma4 import LAYER_EMBEDDING
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.context import same_context
from outrider.native.stored import StoredTensor
from outrider.sessions import open_sessions
from outrider.utils.json_files import shown
from outrider.weights.folder import has_safetensors
from outrider.weights.given import Weights, open_given, tensors_digest
from outrider.weights.loader import with_context

__all__ = ["NewWeights", "Running", "Weights", "ending", "load_new", "renewed_heads"]

Running = Literal["wait", "abort"]
"""Requests that run or wait go on to their ends with the old weights, or end with ``WeightsReplacedError``."""

_READ_LATER = ("model.embed_tokens.weight", LAYER_EMBEDDING)
"""Tensors whose rows are read, or packed, when a pass needs them; so are those of a draft head."""


@dataclass(frozen=True)
class NewWeights:
    """A model of new weights, which an old one is to adopt."""

    model: Any  # of the old one's class
    digest: str  # of its tensors
    sessions: SessionStore | None  # of the model


def load_new(weights: Weights, config: EngineConfig, folder: Path, old: LoadedModel) -> NewWeights:
    """Load new weights beside those of ``old``, which stays as it is. Their memory may be reused afterwards.

    Raises:
        ConfigError: the weights of this model cannot be replaced.
        ModelNotFoundError, ModelFormatError: as ``open_given``; or numbers are not finite.
    """
    _check_replaceable(config, folder, old)
    checkpoint, options = open_given(weights, folder), config.target_options()
    digest, stored = tensors_digest(checkpoint), dict(checkpoint.stored)
    own = with_context(checkpoint.config, options, folder)
    if old.config.mtp_layers and not own.mtp_layers:  # a trainer's model is without the draft head
        own = replace(own, mtp_layers=old.config.mtp_layers)
        stored |= old.draft_head  # type: ignore[attr-defined]
    if own != old.config:
        names = [name for name in vars(own) if getattr(own, name) != getattr(old.config, name)]
        raise ModelFormatError(f"the new weights are of another model ({shown(', '.join(names))}): load it as one")
    native = isinstance(old, NativeLlamaModel)
    for name, tensor in stored.items():
        if not native or name in _READ_LATER or name.startswith("mtp."):
            stored[name] = _copied(tensor)
    context: AbstractContextManager[None] = (
        same_context(old.context) if isinstance(old, NativeLlamaModel) else nullcontext()
    )
    with context:
        model = make_model(
            own,
            stored,
            dtype=options.dtype,
            kv_cache_dtype=options.kv_cache_dtype,
            device=old.device,
            fixed_shapes=str(old.device) != "cpu" and options.cuda_graphs,
            implementation="native" if native else "torch",
        )
        return NewWeights(model, digest, open_sessions(config, folder, model, digest))


def renewed_heads(heads: Mapping[str, Any], old: object, new: LoadedModel) -> Mapping[str, Any]:
    """Heads of the target by source, with the draft head of the new weights where that of the old ones was.

    ``old``: the draft head of the old model's files (``mtp_head``).
    """
    own, fresh = heads.get("mtp"), mtp_head(new)
    return heads if own is None or own != old or fresh is None else {**heads, "mtp": fresh}


def ending(running: Running) -> WeightsReplacedError | None:
    """The error that ends requests; None if they are waited for. Raises InvalidRequestError for another word."""
    if running not in ("wait", "abort"):
        raise InvalidRequestError(f"running={shown(running)} is not valid: use 'wait' or 'abort'", param="running")
    message = "the model's weights were replaced while this request ran: send it again"
    return WeightsReplacedError(message) if running == "abort" else None


def _check_replaceable(config: EngineConfig, folder: Path, old: LoadedModel) -> None:
    why = None
    if config.tensor_parallel_size > 1:
        why = f"tensor_parallel_size={config.tensor_parallel_size}"
    elif has_encoder(old) or old.implementation not in ("native", "torch") or not hasattr(old, "adopt"):
        why = f"{old.config.family} by {old.implementation}"
    elif not has_safetensors(folder):
        why = "a model of a GGUF file"
    if why is not None:
        raise ConfigError(f"weights cannot be replaced in place with {why}: load {config.model!r} again")


def _copied(tensor: Any) -> Any:
    """A tensor in memory of its own: its file, or the memory that it lies in, may change."""
    if not isinstance(tensor, StoredTensor):
        return tensor
    scales = None if tensor.scales is None else np.array(tensor.scales)
    return replace(tensor, data=np.array(tensor.data), scales=scales)
