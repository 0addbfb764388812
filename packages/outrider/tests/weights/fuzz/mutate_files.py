"""Changes to safetensors and GGUF files that know where the fields lie."""

from __future__ import annotations

import json
import random
import struct

from tests.weights.fuzz.mutate_json import mutate

Span = tuple[int, int]  # where a field lies: first byte, length

_WIDTHS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_STRING, _ARRAY = 8, 9
_NUMBERS = (
    0,
    1,
    2,
    3,
    7,
    8,
    9,
    12,
    31,
    32,
    33,
    64,
    127,
    255,
    2**16,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**62,
    2**63,
    2**64 - 1,
)
_FLOATS = (0.0, -1.0, 1.0, 1e-45, 1e30, float("nan"), float("inf"), float("-inf"))


def mutate_safetensors(good: bytes, rng: random.Random) -> bytes:
    """Another header over the same data, or other data under the same header."""
    length = struct.unpack("<Q", good[:8])[0]
    header, data = json.loads(good[8 : 8 + length]), bytearray(good[8 + length :])
    kind = rng.randrange(8)
    text = good[8 : 8 + length]
    if kind < 4:
        text = mutate(header, rng)
    elif kind == 4:
        _move_spans(header, len(data), rng)
        text = json.dumps(header).encode()
    elif kind == 5:
        _spoil_numbers(data, rng)
    elif kind == 6:
        data = data[: rng.randrange(len(data) + 1)] if rng.random() < 0.5 else data + bytes(rng.randrange(100))
    claimed = rng.choice(_NUMBERS) if kind == 7 else len(text)
    return struct.pack("<Q", claimed) + text + bytes(data)


def _move_spans(header: dict[str, dict[str, object]], size: int, rng: random.Random) -> None:
    names = [name for name in header if name != "__metadata__"]
    a, b = rng.choice(names), rng.choice(names)
    change = rng.randrange(5)
    if change == 0:
        header[a]["data_offsets"], header[b]["data_offsets"] = header[b]["data_offsets"], header[a]["data_offsets"]
    elif change == 1:
        header[a]["data_offsets"] = header[b]["data_offsets"]
    elif change == 2:
        header[a]["data_offsets"] = [rng.choice((-1, 0, size, 2**63)), rng.choice((0, size, size + 1, 2**64))]
    elif change == 3:
        header[a]["dtype"] = rng.choice(("F64", "F32", "BF16", "F16", "I64", "I8", "BOOL", "F8_E4M3", "", "bf16"))
    else:
        header[a]["shape"] = rng.choice(
            ([], [0], [1] * 100, [2**32, 2**32], [-1, -4], [4], header[b]["shape"], [0, 2**63])
        )


def _spoil_numbers(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 50))):
        at = rng.randrange(max(1, len(data) - 4))
        data[at : at + 4] = rng.choice(
            (b"\xff\xff\xff\xff", b"\x80\x7f\x80\x7f", b"\x00\x7c\x00\x7c", rng.randbytes(4))
        )


def mutate_gguf(good: bytes, rng: random.Random) -> bytes:
    """Fields of the header overwritten, keys taken out, repeated or moved, the file cut, or numbers spoilt."""
    fields, records, data_start = scan(good)
    content = bytearray(good)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        kind = rng.randrange(12)
        if kind < 8:
            at, width = rng.choice(fields)
            content[at : at + width] = _field(width, rng)
        elif kind == 8:
            rest = content[data_start:]
            _spoil_numbers(rest, rng)
            content[data_start:] = rest
        elif kind == 9:
            return bytes(content[: rng.randrange(len(content))])
        elif kind == 10:
            (a, n), (b, m) = sorted((rng.choice(records), rng.choice(records)))
            if a + n <= b:  # two records change places, and all offsets in the header stay
                one, other, between = content[a : a + n], content[b : b + m], content[a + n : b]
                content[a : b + m] = other + between + one
        else:
            at, width = rng.choice(records)
            count = struct.unpack_from("<Q", content, 16)[0]
            if rng.random() < 0.5:
                struct.pack_into("<Q", content, 16, max(0, count - 1))
                return _aligned(bytes(content[:at] + content[at + width : data_start]), content[data_start:])
            struct.pack_into("<Q", content, 16, count + 1)
            return _aligned(
                bytes(content[:at] + content[at : at + width] + content[at:data_start]), content[data_start:]
            )
    return bytes(content)


def _aligned(header: bytes, data: bytearray) -> bytes:
    header = header.rstrip(b"\x00") if len(header) % 32 else header
    return header + bytes(-len(header) % 32) + bytes(data)


def _field(width: int, rng: random.Random) -> bytes:
    if width == 4 and rng.random() < 0.3:
        return struct.pack("<f", rng.choice(_FLOATS))
    if width in (1, 2, 4, 8) and rng.random() < 0.9:
        number = rng.choice(_NUMBERS) & ((1 << 8 * width) - 1)
        return number.to_bytes(width, "little")
    return rng.randbytes(width)


def scan(data: bytes) -> tuple[list[Span], list[Span], int]:
    """The fields of a sound file's header, its key records, and where its tensors' data start."""
    fields: list[Span] = [(0, 4), (4, 4), (8, 8), (16, 8)]
    records: list[Span] = []
    at = 24
    tensors, keys = struct.unpack_from("<QQ", data, 8)

    def take(width: int) -> int:
        nonlocal at
        fields.append((at, width))
        at += width
        return int.from_bytes(data[at - width : at], "little")

    def string() -> None:
        nonlocal at
        length = take(8)
        if length:
            fields.append((at, min(length, 8)))
        at += length

    def value(kind: int) -> None:
        nonlocal at
        if kind == _STRING:
            string()
        elif kind == _ARRAY:
            inner, count = take(4), take(8)
            if inner == _STRING:
                for _ in range(count):
                    string()
            else:
                fields.append((at, _WIDTHS[inner]))
                at += count * _WIDTHS[inner]
        else:
            take(_WIDTHS[kind])

    for _ in range(keys):
        start = at
        string()
        value(take(4))
        records.append((start, at - start))
    for _ in range(tensors):
        string()
        for _ in range(take(4)):
            take(8)
        take(4)
        take(8)
    return fields, records, -(-at // 32) * 32
