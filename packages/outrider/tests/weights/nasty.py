"""420 strings that splits of text have gone wrong on, and llama.cpp's ids of them: ``gguf_nasty.json``.

    python -m tests.weights.nasty PYTHON          (PYTHON: one that has llama-cpp-python)

The vocabulary is learnt from the strings without any split. Of each ``tokenizer.ggml.pre`` the file has the strings at
which llama.cpp's ids are others than ours, and a digest of its ids of all others.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from outrider.weights.gguf.header import read_gguf_header
from outrider.weights.gguf.splits import SPLITS
from outrider.weights.gguf.tokenizer_json import gguf_tokenizer
from tests.weights.record_splits import vocabulary, write
from tests.weights.reference import LlamaCpp

KEPT = Path(__file__).with_name("gguf_nasty.json")
_PARTS = [
    *("hello", " Hello", "HELLO", "helloWorld", "IIx", " ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\r"),
    *("'s", "'S", "'ll", "'LL", "'Ve", "'", '"', "'\u017f", "'m", "'d", "can't", "CAN'T", "I'M"),
    *("12", "123", "1234", "12345678", "3.14", "\u00bd", "\u00b2", "\u0663", "\u2167", "\u2460", "0x1F", "1e-5"),
    *("\u00e9", "e\u0301", "\u00e4", "\u00df", "\u017f", "\u01c5", "\u00aa", "\u00ba", "\u02b0", "\u0300"),
    *("\u0301\u0302", "\u4f60\u597d", "\u4e16\u754c", "\u3072\u3089\u304c\u306a", "\u30ab\u30bf\u30ab\u30ca"),
    *("\ud55c\uad6d\uc5b4", "\u0e40\u0e02\u0e35\u0e22\u0e19", "\u0939\u093f\u0928\u094d\u0926\u0940"),
    *("\u0440\u0443\u0441\u0441\u043a\u0438\u0439", "\u041f\u0440\u0438\u0432\u0435\u0442", "\u05e2\u05d1"),
    *("\u03b5\u03bb\u03bb\u03b7", "\u0627\u0644\u0639", "\u4e2d\u6587abc", "abc\u4e2d\u6587"),
    *("\U0001f642", "\U0001f468\u200d\U0001f469", "\u200b", "\ufeff", "\u00a0", "\u3000", "\u2028", "\x00", "\x7f"),
    *("...", "!!!", "?!", "--", "->", "=>", "//", "/*", "{}", "[]", "()", "</", "<|", "|>", "@", "#", "$", "%", "^"),
    *("&", "*", "_", "__init__", "a_b", "foo.bar", "http://x.y/z?a=b&c", "\u3002", "\uff0c", "\u3001", "\u2026"),
]  # fmt: skip


def strings() -> list[str]:
    """Each part, and parts at random one behind the other."""
    chosen = random.Random(5)
    made = list(_PARTS)
    while len(made) < 420:
        made.append("".join(chosen.choice(_PARTS) for _ in range(chosen.randint(2, 9))))
    return made


def encoded(path: Path) -> list[list[int]]:
    """Our ids of all strings by the tokenizer of a file."""
    backend = Tokenizer.from_str(json.dumps(gguf_tokenizer(read_gguf_header(path))))
    return [backend.encode(text).ids for text in strings()]


def digest(ids: Sequence[Sequence[int]], but: Collection[int]) -> str:
    """Of the ids of all strings but some."""
    kept = [list(row) for i, row in enumerate(ids) if i not in but]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    tokens, merges = vocabulary(strings(), 1500)
    table: dict[str, Any] = {"tokens": tokens, "merges": merges, "pre": {}}
    with tempfile.TemporaryDirectory() as folder, LlamaCpp(parser.parse_args().python) as reference:
        path = Path(folder) / "m.gguf"
        for pre in SPLITS:
            write(path, table, pre)
            theirs, ours = reference.tokenize(path, strings()), encoded(path)
            others = [i for i, (a, b) in enumerate(zip(ours, theirs, strict=True)) if a != b]
            assert not isinstance(theirs, str), theirs
            table["pre"][pre] = [others, digest(theirs, others)]
        table["llama_cpp_python"] = reference.version
    KEPT.write_text(json.dumps(table, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
