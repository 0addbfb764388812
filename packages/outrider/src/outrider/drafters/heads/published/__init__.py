"""Reads published DFlash, DSpark and EAGLE-3 heads, in their authors' format or that of the ``speculators`` library.

A configuration key is read, listed as without effect, or refused by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint, fingerprint_rows
from outrider.drafters.heads.published import dflash, dspark, eagle
from outrider.errors import IncompatibleDraftError, ModelFormatError
from outrider.verify.arrays import Floats

Arrays = Mapping[str, NDArray[Any]]

__all__ = ["is_published", "read_config", "rename"]

_TARGETS = ("embed_tokens.", "lm_head.", "verifier_norm.", "verifier_lm_head.", "t2d", "d2t")


def is_published(raw: Mapping[str, Any]) -> bool:
    """Whether a configuration is of a published head rather than in our own format."""
    return "format" not in raw and (
        any(kind.describes(raw) for kind in (dflash, dspark, eagle)) or "speculators_model_type" in raw
    )


def read_config(raw: Mapping[str, Any], target: TargetFingerprint) -> HeadConfig:
    """The configuration of a published head for ``target``, which the head's files do not identify.

    Raises ``ModelFormatError`` for unknown keys or values, ``IncompatibleDraftError`` for other dimensions.
    """
    if eagle.describes(raw):
        return eagle.read(raw, target)
    if dspark.describes(raw):
        return dspark.read(raw, target)
    return dflash.read(raw, target)


def rename(tensors: Arrays, raw: Mapping[str, Any], config: HeadConfig, embedding: Floats) -> dict[str, NDArray[Any]]:
    """A published head's tensors under our names, without copies of the target's tensors.

    Args:
        raw: the configuration as in the file.
        embedding: rows ``fingerprint_rows`` of the target's embedding, float [n, d].

    Raises ``ModelFormatError`` for tensors of other shapes, ``IncompatibleDraftError`` if the head has an embedding
    other than the target's.
    """
    own = tensors.get("embed_tokens.weight")
    if own is not None:
        if own.shape != (config.vocab_size, config.hidden_size):
            raise ModelFormatError(f"embed_tokens.weight has shape {list(own.shape)}: download the head again")
        if not _alike(own[fingerprint_rows(config.vocab_size)], embedding):
            raise IncompatibleDraftError(
                "the head's embedding is not that of the target: load the target that it was trained for"
            )
    kept = {name.replace("midlayer.", "layers.0."): value for name, value in tensors.items()}
    kept = {name: value for name, value in kept.items() if not name.startswith(_TARGETS)}
    if config.kind == "eagle3" and not config.feature_layers:
        kept.pop("fc.weight", None)  # which is there in some, and not used
    if config.dspark is not None:
        kept = dspark.rename(kept, raw, config)
    if config.own_lm_head:
        kept |= _own_scores(tensors, kept, config)
    return kept


def _own_scores(tensors: Arrays, kept: Arrays, config: HeadConfig) -> dict[str, NDArray[Any]]:
    """The rows of the LM head and of a table of scored tokens, and their target ids, all by ascending id."""
    scores, offsets = tensors.get("lm_head.weight"), tensors.get("d2t")
    if scores is None:
        raise ModelFormatError(f"tensor lm_head.weight is missing: a {config.kind} head of this form has one")
    if config.draft_vocab_size is None:
        return {"lm_head.weight": scores}
    count = config.draft_vocab_size
    if offsets is None or offsets.shape != (count,) or len(scores) != count:
        found = None if offsets is None else list(offsets.shape)
        raise ModelFormatError(f"d2t has shape {found} and lm_head {list(scores.shape)}, but draft_vocab_size={count}")
    ids = offsets.astype(np.int64) + np.arange(count)
    order = ids.argsort(kind="stable")
    others = {name: kept[name][order] for name in (dspark.SCORED,) if name in kept and len(kept[name]) == count}
    return {"lm_head.weight": scores[order], "d2t": ids[order], **others}


def _alike(a: Floats, b: Floats) -> bool:
    """Whether two embeddings are equal up to quantisation, which changes one by several per cent."""
    return a.shape == b.shape and float(np.linalg.norm(a - b)) <= 0.2 * float(np.linalg.norm(b))
