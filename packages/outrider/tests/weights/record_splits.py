"""Ask llama.cpp how every ``tokenizer.ggml.pre`` splits text, and where Gemma's texts begin: ``gguf_splits.json``.

    python -m tests.weights.record_splits PYTHON          (PYTHON: one that has llama-cpp-python)

The vocabulary is learnt from the texts themselves without any split, so that where a text is split shows in its ids.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers

from outrider.weights.gguf.splits import SPLITS
from tests.weights.files import VOCABULARY
from tests.weights.gguf_models import write_case
from tests.weights.reference import LlamaCpp

REFERENCE = Path(__file__).with_name("gguf_splits.json")
TEXTS = [
    "Hello, world! It's 12345 and I'LL be 1,234.5 dollars.",
    "  two  spaces\n\n1. item\n\n\n2. item \t tab",
    "def f(x):\n    return x+1 // 3 != 'a'\n",
    "HelloWorld XMLHttp fooBar foo_bar",
    "na\u00efve caf\u00e9 \u4f60\u597d\u4e16\u754c 12\u5e74",
    "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440! \u00bd",
    "...!!! ?? (a) [b] {c} <d> | ~ ^ `e`",
    "a\r\nb\r\n\r\nc   ",
]
GEMMA4_TEXTS = [*TEXTS, "<|turn>user\nHello<|turn>", " a\n\n\nb\n", "\u2581 x\u00ff\U0001f642"]
OTHERS = ("chameleon", "granite-embed-multi-97m")
"""Names that llama.cpp knows and this does not: a few."""


def vocabulary(texts: Sequence[str] = TEXTS, size: int = 700) -> tuple[list[str], list[str]]:
    """Tokens and merges, learnt from ``texts`` without any split."""
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learnt.train_from_iterator(
        [*texts] * 3, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    )
    state = json.loads(learnt.to_str())["model"]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["merges"]]
    return ["<s>", *sorted(state["vocab"], key=state["vocab"].get)], merges


def gemma4() -> dict[str, Any]:
    """A vocabulary of Gemma 4's kind: pieces of text with ``\u2581`` for spaces, and bytes for all others.

    No piece has a line's end beside other characters, as in Google's vocabulary: llama.cpp splits there.
    """
    learnt = Tokenizer(models.BPE())
    learnt.pre_tokenizer = pre_tokenizers.Split(Regex("\n+"), "isolated")
    learnt.normalizer = normalizers.Replace(" ", "\u2581")
    learnt.train_from_iterator(TEXTS[:-2] * 3, trainers.BpeTrainer(vocab_size=300, show_progress=False))
    state = json.loads(learnt.to_str())["model"]
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    tokens = [*pieces, *sorted(state["vocab"], key=state["vocab"].get), "<|turn>"]
    types = [3] * 4 + [6] * 256 + [1] * len(state["vocab"]) + [4]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in state["merges"]]
    return {"tokens": tokens, "token_type": types, "merges": merges}


def write_gemma4(path: Path, table: dict[str, Any]) -> None:
    """A model with a vocabulary of Gemma 4's kind, and the keys that llama.cpp's converter writes with it."""
    keys: dict[str, Any] = {f"tokenizer.ggml.{key}": table[key] for key in ("tokens", "token_type", "merges")}
    ids = {"tokenizer.ggml.bos_token_id": 2, "tokenizer.ggml.eos_token_id": 1, "tokenizer.ggml.unknown_token_id": 3}
    flags = {"tokenizer.ggml.add_space_prefix": False, "tokenizer.ggml.scores": None}
    write_case(path, "llama", {"tokenizer.ggml.model": "gemma4"} | keys | ids | flags)


def write(path: Path, table: dict[str, Any], pre: str) -> None:
    """A model with the table's vocabulary."""
    keys: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre, "tokenizer.ggml.tokens": table["tokens"],
        "tokenizer.ggml.token_type": [3] + [1] * (len(table["tokens"]) - 1), "tokenizer.ggml.scores": None,
        "tokenizer.ggml.merges": table["merges"], "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0,
    }  # fmt: skip
    write_case(path, "llama", keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    tokens, merges = vocabulary()
    table: dict[str, Any] = {"tokens": tokens, "merges": merges, "texts": TEXTS, "ids": {}, "prefix": {}}
    with tempfile.TemporaryDirectory() as folder, LlamaCpp(parser.parse_args().python) as reference:
        path = Path(folder) / "m.gguf"
        for pre in (*SPLITS, *OTHERS):
            write(path, table, pre)
            table["ids"][pre] = reference.tokenize(path, TEXTS)
        for name in ("gemma", "gemma2", "gemma3", "llama", "phi3"):
            for flag in (False, True):
                write_case(path, name, {"tokenizer.ggml.add_space_prefix": flag})
                table["prefix"][f"{name} {flag}"] = reference.tokenize(path, ["hello", " hello", "he</s>lo", "world"])
        for kind in ("bert", "t5", "rwkv", "no_vocab", "sparkle"):
            write_case(path, "llama", {"tokenizer.ggml.model": kind, "vocab_size": len(VOCABULARY)})
            table["prefix"][kind] = reference.tokenize(path, ["hello", " hello", "he</s>lo", "world"])
        write_case(path, "llama", {"tokenizer.ggml.suppress_tokens": [3]})
        table["suppressed"] = reference.suppressed(path)
        table["gemma4"] = gemma4()
        write_gemma4(path, table["gemma4"])
        table["gemma4"]["ids"] = reference.tokenize(path, GEMMA4_TEXTS)
        table["llama_cpp_python"] = reference.version
    REFERENCE.write_text(json.dumps(table, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
