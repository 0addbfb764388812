"""A model file in brief: what a list of models shows, from the first bytes of its header."""

from __future__ import annotations

import hashlib
import mmap
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.errors import ModelFormatError
from outrider.weights.gguf.families import GGUF_FAMILIES
from outrider.weights.gguf.header import HeaderScanner
from outrider.weights.gguf.hybrid import NEXTN

__all__ = ["FILE_TYPES", "GGUFBrief", "read_brief", "type_in_name"]

FILE_TYPES = {
    0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S", 12: "Q3_K_M",
    13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K", 19: "IQ2_XXS", 20: "IQ2_XS",
    21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL", 26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S",
    29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16", 36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4",
}  # fmt: skip
"""Names of types by ``general.file_type``, llama.cpp's number for the mix of types in a file."""

_TYPE = re.compile(
    r"(?:^|[-._/])((?:UD-)?(?:I?Q\d(?:_[A-Z0-9]+)*|T?Q\d_\d|F16|FP16|F32|BF16|MXFP4(?:_MOE)?|NVFP4))$", re.IGNORECASE
)

_FILE_TYPE, _VOCABULARY = "general.file_type", "tokenizer.ggml.tokens"
_UINT32, _STRING, _ARRAY = 4, 8, 9
_MOST = 1 << 20  # bytes of a key's value, and of all keys before the vocabulary
_LONG = 1000  # items of an array that ends the start of a header; of strings a tenth
_SEARCHED = 64 << 20  # bytes behind the start in which the type is looked for
_COMPARED = 1 << 16  # bytes of a vocabulary


@dataclass(frozen=True)
class GGUFBrief:
    """One model file. ``runs``: its architecture is one that the native library computes."""

    architecture: str | None
    type: str | None
    vocabulary: tuple[int, str] | None
    """The number of tokens, and a digest of the first ones, which files of one vocabulary share."""
    own_head: bool
    """The file has a draft head of the model's own."""

    @property
    def runs(self) -> bool:
        return self.architecture in GGUF_FAMILIES


def read_brief(path: Path, file_type: str | None = None) -> GGUFBrief:
    """The model at ``path``, whose type is ``file_type`` if that is known.

    Raises ``ModelFormatError`` if it is no GGUF file or damaged, ``OSError`` if it cannot be read.
    """
    if not path.is_file():
        raise ModelFormatError(f"{path} is no file")
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            metadata, vocabulary = _StartScanner(path, data).start(file_type is None)
    except ValueError as error:  # an empty file cannot be mapped
        raise ModelFormatError(f"{path} is damaged: {error}; download it again") from None
    architecture, number = metadata.get("general.architecture"), metadata.get(_FILE_TYPE)
    return GGUFBrief(
        architecture if isinstance(architecture, str) else None,
        file_type or (FILE_TYPES.get(number) if isinstance(number, int) else None),
        vocabulary,
        metadata.get(f"{architecture}.{NEXTN}") == 1,
    )


def type_in_name(stem: str) -> str | None:
    """The type of weights that a file's name ends with, as ``Q4_K_M``; None: it ends with none."""
    found = _TYPE.search(stem)
    return found[1].upper() if found else None


class _StartScanner(HeaderScanner):
    """Reads the keys before the vocabulary, in a millisecond: a whole header takes fifty, most of them for tokens."""

    def take(self, count: int, what: str) -> bytes:
        if count > _MOST:
            raise self.damaged(f"{what} at byte {self.at} takes {count:,} bytes")
        return super().take(count, what)

    def start(self, search: bool) -> tuple[dict[str, Any], tuple[int, str] | None]:
        """The keys, and the vocabulary as in ``GGUFBrief``.

        ``search``: look for ``general.file_type`` behind the vocabulary too, where ``llama-quantize`` writes it.
        """
        metadata: dict[str, Any] = {}
        vocabulary = None
        for _ in range(self.counts()[1]):
            key, kind = self.string("a key"), self.number("<I", "a type")
            if self.at > _MOST or (kind == _ARRAY and self.is_long()):
                vocabulary = self.vocabulary() if key == _VOCABULARY else None
                break
            metadata[key] = self.value(kind, key)
        if search and _FILE_TYPE not in metadata:
            mark = struct.pack("<Q", len(_FILE_TYPE)) + _FILE_TYPE.encode() + struct.pack("<I", _UINT32)
            place = self.data.find(mark, self.at, self.at + _SEARCHED)
            if place >= 0:
                self.at = place + len(mark)
                metadata[_FILE_TYPE] = self.number("<I", _FILE_TYPE)
        return metadata, vocabulary

    def is_long(self) -> bool:
        """Whether the array that begins here has many items."""
        kind, count = struct.unpack("<IQ", self.take(12, "an array"))
        self.at -= 12
        return bool(count > (_LONG // 10 if kind == _STRING else _LONG))

    def vocabulary(self) -> tuple[int, str]:
        """Of the array of tokens that begins here: each takes 8 bytes at least, so those compared are its own."""
        count: int = struct.unpack("<IQ", self.take(12, "an array"))[1]
        first = self.data[self.at : self.at + min(_COMPARED, 8 * count)]
        return count, hashlib.sha256(first).hexdigest()[:16]
