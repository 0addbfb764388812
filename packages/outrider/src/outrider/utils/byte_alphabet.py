"""GPT-2's spelling of bytes as printable characters."""

from __future__ import annotations


def byte_alphabet() -> dict[str, int]:
    """The byte of each character: visible Latin-1 stands for itself, the rest follows 255."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [b for b in range(256) if b not in visible]
    return {chr(b): b for b in visible} | {chr(256 + i): b for i, b in enumerate(hidden)}
