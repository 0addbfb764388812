"""Two small tokenizers, one of each kind that Llama-family models use, as folders."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from outrider.weights.hub.convert_tokenizer import tokenizer_from_llama2c
from tests.weights.files import SCORES, WORDS

SAMPLE = "hello world, the h\u00e9llo \u65e5\u672c \U0001f600\U0001f3f3\ufe0f and 12 34 of \u1230\u120b\u121d\n" * 3
TEMPLATE = "{{ bos_token }}{% for m in messages %}<|user|>{{ m['content'] }}{{ eos_token }}{% endfor %}"


def byte_level(folder: Path, **config: Any) -> Path:
    """A byte-level BPE with three special tokens, an added token of plain text and one with a space."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=["<|bos|>", "<|eos|>", "<|user|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([SAMPLE], trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False), AddedToken("two words", normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    defaults = {"bos_token": "<|bos|>", "eos_token": "<|eos|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(defaults | config))
    return folder


def sentencepiece(folder: Path) -> Path:
    """A Llama 2 tokenizer with byte fallback and a handful of words."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(bytes([b]) for b in range(256))]
    texts += [word.replace("\u2581", " ").encode() for word in WORDS]
    tokenizer_from_llama2c(list(zip(texts, SCORES, strict=True)), 128, folder)
    return folder
