"""The fingerprint that identifies a head's target."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outrider.errors import ModelFormatError
from outrider.models.base import HeadTarget
from outrider.models.config import ModelConfig
from outrider.utils.json_files import shown
from outrider.verify.arrays import Array, bfloat16, host

_LARGEST = 2**31 - 1
_ROWS = 64  # embedding rows that go into a fingerprint


@dataclass(frozen=True)
class TargetFingerprint:
    """Identifies a head's target by its dimensions and a digest of embedding rows."""

    family: str
    hidden_size: int
    num_layers: int
    vocab_size: int
    digest: str
    name: str = ""  # for messages only

    def __post_init__(self) -> None:
        for name in ("hidden_size", "num_layers", "vocab_size"):
            check_positive(name, getattr(self, name))
        for name in ("family", "digest", "name"):
            if not isinstance(getattr(self, name), str):
                raise ModelFormatError(f"{name}={shown(getattr(self, name))} is no text: train the head again")

    @classmethod
    def of(cls, config: ModelConfig, rows: Array, name: str = "") -> TargetFingerprint:
        """``rows``: the embedding's rows ``fingerprint_rows(vocab_size)``, float [n, d], in any dtype."""
        digest = hashlib.sha256(bfloat16(host(rows)).tobytes()).hexdigest()[:16]
        return cls(config.family, config.hidden_size, config.num_layers, config.vocab_size, digest, name)

    def is_alike(self, other: TargetFingerprint) -> bool:
        """Whether the dimensions are equal: perhaps the same model in another weight format."""
        return replace(self, digest="", name="") == replace(other, digest="", name="")

    def facts(self) -> str:
        """A one-line description for messages."""
        name = f"{self.name:.150}, " if self.name else ""
        return (
            f"{name}{self.family:.20}, hidden size {self.hidden_size}, {self.num_layers} layers, "
            f"{self.vocab_size} tokens, digest {self.digest:.20}"
        )


def fingerprint_rows(vocab_size: int) -> NDArray[np.int64]:
    """The token ids of a fingerprint's embedding rows, spread evenly over the vocabulary: int64 [n]."""
    return np.arange(min(_ROWS, vocab_size)) * (vocab_size // min(_ROWS, vocab_size))


def check_positive(name: str, value: object) -> None:
    """Raise ``ModelFormatError`` naming ``name`` unless ``value`` is an integer from 1 to 2**31 - 1."""
    if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= _LARGEST:
        raise ModelFormatError(f"{name}={shown(value)} is not a positive integer: train the head again")


def target_fingerprint(target: HeadTarget, name: str = "") -> TargetFingerprint:
    """The fingerprint that a head must have been trained for to draft for ``target``."""
    rows = target.embed(fingerprint_rows(target.config.vocab_size))
    return TargetFingerprint.of(target.config, rows, name)
