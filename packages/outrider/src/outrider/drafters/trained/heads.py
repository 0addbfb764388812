"""Loads an engine's trained heads: the heads that its configuration names, and the project's own."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outrider.cache.pool import itemsize, token_bytes
from outrider.config import SOURCES, EngineConfig
from outrider.config.combination import AUTO, WITH_OWN_HEAD, check_known
from outrider.config.sources import head_sources
from outrider.drafters.heads.checkpoint import is_gguf_head, read_head, read_head_config
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.find import find_head, shipped_for_others, shipped_heads, shipped_kinds
from outrider.drafters.heads.fingerprint import TargetFingerprint, fingerprint_rows, target_fingerprint
from outrider.drafters.heads.weights import NATIVE_KINDS
from outrider.drafters.trained.mtp_files import is_mtp, read_mtp
from outrider.drafters.trained.mtp_head import MtpHead
from outrider.errors import ConfigError
from outrider.extensions import extension
from outrider.models.base import HeadTarget, LoadedModel
from outrider.models.config import ModelConfig
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.library import library
from outrider.native.weights import Target
from outrider.verify.arrays import host
from outrider.weights.hub.trained import fetched


def head_format(target: HeadTarget, kind: str = "") -> Target:
    """The native format of matrices of a head of ``kind``.

    float32 for a float32 target, else 8 bits, as drafts need not be exact; but 16 for DSpark, whose tables lose by 8.
    """
    if target.precision == "float32":
        return "float32"
    return "bfloat16" if kind == "dspark" else "q8_0"


def bytes_of_a_weight(target: HeadTarget, kind: str = "") -> float:
    """Bytes per weight of a head of ``target``; 8-bit formats include a float16 scale per 32 weights."""
    native = str(target.device) == "cpu" and library() is not None
    if not native or head_format(target, kind) == "float32":
        return itemsize(target.dtype)
    return 34 / 32 if head_format(target, kind) == "q8_0" else 2.0


def source_of_head(head: Any) -> str:
    """The name of the draft source that uses ``head``."""
    if isinstance(head, MtpHead):
        return "mtp"
    config = head.config
    assert isinstance(config, HeadConfig)
    return _source_of_kind(config.kind)


def sources_with_shipped_heads(model: str) -> list[str]:
    """The draft sources with a head trained for the built-in model ``model``."""
    return list(dict.fromkeys(_source_of_kind(kind) for kind in shipped_kinds(model)))


def load_heads(config: EngineConfig, target: HeadTarget, *, progress: bool = False) -> tuple[str, dict[str, Any]]:
    """The draft sources of ``config`` for this target (``auto`` resolved), and the heads by source, not yet packed.

    ``config`` names heads, or sources that draft with one.

    Raises:
        ModelFormatError: a head's folder is damaged.
        IncompatibleDraftError: a head was trained for another target.
        ConfigError: a source has two heads, or has none.
        ModelNotFoundError, DownloadError: a head that the project trained cannot be fetched.
    """
    fingerprint = target_fingerprint(target, config.model)
    heads: dict[str, Any] = {}
    for folder in config.heads:
        head = _load(find_head(folder), target, fingerprint)
        source = source_of_head(head)
        if source in heads:
            raise ConfigError(f"heads={config.heads!r} has two for draft={source!r}: name one")
        heads[source] = head
    shipped = _preferred(shipped_heads(fingerprint))
    draft = config.speculation.draft
    if draft == AUTO:
        draft = next((name for name in head_sources() if name in heads), WITH_OWN_HEAD)
    for name in check_known(draft).names:
        if name in head_sources() and name not in heads:
            if name not in shipped:
                raise ConfigError(_none_is_shipped(name, config, fingerprint))
            heads[name] = _load(fetched(shipped[name], progress=progress), target, fingerprint)
    return draft, heads


def load_head(folder: Path, target: HeadTarget, model: str) -> Any:
    """The head in ``folder`` for the target that is loaded from ``model``. Errors as of ``load_heads``."""
    return _load(folder, target, target_fingerprint(target, model))


def _none_is_shipped(draft: str, config: EngineConfig, found: TargetFingerprint) -> str:
    own = f"name its folder with heads (--heads), or train one with `outrider train {draft}`"
    others = shipped_for_others(found, SOURCES[draft].head_kinds)
    if not others:
        return f"draft={draft!r} needs a head trained for {config.model}, and none is shipped: {own}"
    differs = "other weights" if config.dtype == "auto" else f"other weights than dtype={config.dtype!r} gives"
    remedy = "" if config.dtype == "auto" else "use dtype='auto' (as stored) or 'bfloat16', "
    return f"draft={draft!r}: the head that is shipped for {others[0]} was trained for {differs}: {remedy}{own}"


def head_memory(heads: Mapping[str, Any], target: LoadedModel) -> tuple[int, int]:
    """Bytes of the heads' weights, and bytes of their cache rows per token."""
    weights, row = 0.0, 0
    for head in heads.values():
        c = head.config
        size = bytes_of_a_weight(target, getattr(c, "kind", ""))
        weights += head.num_weights * size
        if isinstance(c, HeadConfig) and c.draft_vocab_size is not None and not c.own_lm_head:
            weights += c.draft_vocab_size * c.hidden_size * size
        sizes = {"kv_heads": c.num_kv_heads, "head_dim": c.head_dim, "value_dim": getattr(c, "value_dim", 0)}
        layers = len(c.cache_layers) if isinstance(c, ModelConfig) else c.num_layers  # an assistant has none
        row += token_bytes(layers=layers, **sizes, dtype=target.cache_dtype)
    return math.ceil(weights), row


def _source_of_kind(kind: str) -> str:
    return next(name for name, source in SOURCES.items() if kind in source.head_kinds)


def _preferred(folders: Mapping[str, Path]) -> dict[str, Path]:
    """The preferred head's folder of each source, from folders by kind; a source may have heads of several kinds."""
    return {
        name: folders[kind]
        for name, source in SOURCES.items()
        for kind in reversed(source.head_kinds)  # the preferred kind comes last and overwrites the others
        if kind in folders
    }


def _load(folder: Path, target: HeadTarget, fingerprint: TargetFingerprint) -> Any:
    if not is_gguf_head(folder) and is_mtp(folder):
        return read_mtp(folder, target, fingerprint)
    config = read_head_config(folder, fingerprint)
    config.check_target(fingerprint)
    known = fingerprint, host(target.embed(fingerprint_rows(target.config.vocab_size)))
    if is_native(config, target):
        return read_head(folder, known)
    torch = extension("backends", "torch", f"a head of kind {config.kind} on {target.device}")
    return torch.load_head_for(folder, target, known)


def is_native(config: HeadConfig, target: HeadTarget | None) -> bool:
    """Whether the native library runs this head for ``target``; otherwise a backend runs it."""
    fits = config.kind in NATIVE_KINDS and config.head_dim <= 256 and config.head_dim % 2 == 0
    return fits and isinstance(target, NativeLlamaModel)


def native_target(target: HeadTarget | None) -> NativeLlamaModel:
    """``target`` as a native model. Requires a head that ``is_native``."""
    assert isinstance(target, NativeLlamaModel)
    return target
