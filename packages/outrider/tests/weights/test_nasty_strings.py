"""420 nasty strings by every ``tokenizer.ggml.pre``: the ids are llama.cpp's, or the authors' expression stands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]
from tokenizers import Regex, pre_tokenizers

from outrider.weights.gguf.splits import SPLITS
from tests.weights.nasty import KEPT, digest, encoded, strings
from tests.weights.record_splits import write

TABLE: dict[str, Any] = json.loads(KEPT.read_text(encoding="utf-8"))
REWRITTEN = (
    *("tekken", "youtu", "tiny_aya", "cohere2moe", "kimi-k2", "gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"),
    *("deepseek-coder", "deepseek-llm", "afmoe", "superbpe"),
)
"""Names whose expression llama.cpp rewrites: without marks, cases of letters beyond ASCII, or digits apart."""


@pytest.mark.parametrize("pre", SPLITS)
def test_ids_are_llama_cpps(pre: str, tmp_path: Path) -> None:
    write(tmp_path / "m.gguf", TABLE, pre)
    others, kept = TABLE["pre"][pre]
    assert not others or pre in REWRITTEN
    assert len(others) < 100
    assert digest(encoded(tmp_path / "m.gguf"), others) == kept


def _pieces(expressions: tuple[str, ...], text: str) -> list[str]:
    """Matches and the gaps between them, by Python's ``regex``."""
    pieces = [text]
    for expression in expressions:
        cut: list[str] = []
        for piece in pieces:
            at = 0
            for match in regex.finditer(expression.replace("&&[^", "--["), piece, flags=regex.V1):
                cut += [piece[at : match.start()], match[0]]
                at = match.end()
            cut.append(piece[at:])
        pieces = [piece for piece in cut if piece]
    return pieces


BOUNDARY = ("tiny_aya", "cohere2moe")
"""Names whose expression ends at the boundary of a word, which Python's ``regex`` has at other places."""


@pytest.mark.parametrize(
    "pre",
    sorted({split: name for name, split in SPLITS.items() if name in REWRITTEN and name not in BOUNDARY}.values()),
)
def test_where_llama_cpp_differs_the_words_are_those_of_the_authors_expression(pre: str) -> None:
    splits = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(split), "isolated") for split in SPLITS[pre]])
    texts = [strings()[i] for i in TABLE["pre"][pre][0]]
    assert [[word for word, _ in splits.pre_tokenize_str(text)] for text in texts] == [
        _pieces(SPLITS[pre], text) for text in texts
    ]
