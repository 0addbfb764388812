"""Changes to JSON that keep it mostly what it was: one value, key or place at a time, and then the text itself."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

ODD: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2,
        3,
        7,
        255,
        2**15,
        2**31 - 1,
        2**31,
        2**32,
        2**53,
        2**63 - 1,
        2**63,
        2**64,
        10**30,
    ),
    *(0.0, -0.0, 0.5, 1e-300, 1e308, -1e308, float("nan"), float("inf"), float("-inf"), 5e-324),
    *("", "a", "\x00", "\ud800", "\u2581", "</s>", "a" * 100_000, "%s%n", "../../x", "-1", "1e9", "NaN", "BF16", "F32"),
    *([], {}, [[]], [None], [1, -1], {"a": {}}, [0] * 10_000, {"type": "Sequence"}, [2**63, 2**63]),
)
SPELLINGS = (
    *("BPE", "Unigram", "WordLevel", "WordPiece", "ByteLevel", "Metaspace", "Sequence", "Replace", "Strip", "Fuse"),
    *("ByteFallback", "NFC", "Precompiled", "TemplateProcessing", "Split", "Digits", "Regex", "String", "isolated"),
    *("llama", "mistral", "qwen2", "qwen3", "linear", "llama3", "default", "yarn", "content", "special", "true"),
)


def mutate(value: Any, rng: random.Random) -> bytes:
    """The text of ``value`` after one to four changes."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        value = _change(value, rng)
    text = json.dumps(value, ensure_ascii=rng.random() < 0.9)
    return _spoil(text, rng) if rng.random() < 0.15 else text.encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) below ``value``; long lists by a few of their items."""
    for key in list(value) if isinstance(value, dict) else _some(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from _places(value[key])


def _some(length: int) -> list[int]:
    return list(range(length)) if length < 12 else [0, 1, length // 2, length - 2, length - 1]


def _change(value: Any, rng: random.Random) -> Any:
    if not isinstance(value, dict | list) or not value:
        return copy.deepcopy(rng.choice(ODD))
    places = list(_places(value))
    shallow = places[: len(value)] if isinstance(value, dict) else places
    holder, key = rng.choice(places if rng.random() < 0.7 else shallow)
    kind = rng.randrange(9)
    if kind == 0:
        del holder[key]
    elif kind == 1:
        other, where = rng.choice(places)
        holder[key] = copy.deepcopy(other[where])
    elif kind == 2 and isinstance(holder, dict):
        holder[rng.choice(("", "a", "type", key + "x", *SPELLINGS))] = holder.pop(key)
    elif kind == 3 and isinstance(holder[key], int | float):
        holder[key] = rng.choice((-holder[key], holder[key] + 1, holder[key] * 2, holder[key] / 2, str(holder[key])))
    elif kind == 4 and isinstance(holder, list):
        holder += copy.deepcopy(holder) * rng.choice((1, 3)) if len(holder) < 1000 else []
    elif kind == 5:
        holder[key] = _nested(rng.choice((3, 100, 400)), rng)  # json.dumps recurses; deeper nesting is made of text
    elif kind == 6:
        holder[key] = rng.choice(SPELLINGS)
    else:
        holder[key] = copy.deepcopy(rng.choice(ODD))
    return value


def _nested(depth: int, rng: random.Random) -> Any:
    value: Any = 0
    name = rng.choice(("a", "type", "decoders", "normalizers", "pretokenizers"))
    for _ in range(depth):
        value = [value] if rng.random() < 0.5 else {name: value}
    return value


def _spoil(text: str, rng: random.Random) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    at = rng.randrange(len(data) + 1)
    return rng.choice(
        (
            data[:at],
            data + b"{}",
            b"\xef\xbb\xbf" + data,
            data[:at] + b"\xff\xfe" + data[at:],
            b"[" * 100_000,
            b'{"a":' * 100_000,
            data[:1] + b'"model_type": 1, "vocab": 2, "dtype": 3, ' + data[1:],  # keys that come again
            data.replace(b"1", b"9" * 5000, 1),
            data.replace(b": ", b": -", 1),
            data[:at] + bytes(rng.randrange(256) for _ in range(3)) + data[at + 3 :],
            b"",
        )
    )
