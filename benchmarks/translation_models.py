"""Numbers into German words, and small T5 models that learn to translate them: what ``translation`` measures.

A source names digits by their place, and words come in another order than digits. Several translations are right ("zwo"
or "zwei", "hundert" or "ein hundert"), so that a model has a law and not one answer.

    4e4 2e3 8e2 2e1 1e0    ->    zwei und vierzig tausend acht hundert ein und zwanzig
"""

from __future__ import annotations

import math
import random
import time
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
from tokenizers import models, pre_tokenizers
from transformers import T5Config, T5ForConditionalGeneration

_EINS = ["ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun"]
_ZEHN = ["zehn", "elf", "zwölf", *(f"{word} zehn" for word in (*_EINS[2:5], "sech", "sieb", *_EINS[7:]))]
_ZIG = ["zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig"]
_MORE = ["hundert", "tausend", "und", "eins", "zwo", "million", "millionen"]
_DIGITS = [f"{digit}e{place}" for place in range(9) for digit in range(1, 10)]
PAD, END = 0, 1
WORDS = ["<pad>", "</s>", *_DIGITS, *sorted({*_EINS, *" ".join(_ZEHN).split(), *_ZIG, *_MORE})]
IDS = {word: i for i, word in enumerate(WORDS)}


@dataclass(frozen=True)
class Size:
    """A model's, and how long it learns."""

    width: int
    heads: int
    encoder_layers: int
    decoder_layers: int
    steps: int


TARGET = Size(width=64, heads=2, encoder_layers=1, decoder_layers=8, steps=450)
DRAFTS = {
    "1 layer of 32": Size(width=32, heads=1, encoder_layers=1, decoder_layers=1, steps=450),
    "1 layer of 64": Size(width=64, heads=2, encoder_layers=1, decoder_layers=1, steps=450),
}


def digits(number: int) -> list[str]:
    """What the encoder reads: digits but zeros, the first one first."""
    text = str(number)
    return [f"{digit}e{len(text) - 1 - i}" for i, digit in enumerate(text) if digit != "0"]


def german(number: int, rng: random.Random, last: bool = True) -> list[str]:
    """One of the right translations. ``last``: nothing follows that belongs to the number."""
    millions, rest = divmod(number, 1_000_000)
    thousands, rest = divmod(rest, 1000)
    hundreds, below = divmod(rest, 100)
    words: list[str] = []
    if millions:
        words += [*german(millions, rng, last=False), "million" if millions == 1 else "millionen"]
    if thousands:
        words += ([] if thousands == 1 and rng.random() < 0.5 else german(thousands, rng, last=False)) + ["tausend"]
    if hundreds:
        words += ([] if hundreds == 1 and rng.random() < 0.5 else [_one(hundreds, rng)]) + ["hundert"]
    if 10 <= below < 20:
        return [*words, *_ZEHN[below - 10].split()]
    tens, ones = divmod(below, 10)
    if tens:
        return [*words, *([_one(ones, rng), "und"] if ones else []), _ZIG[tens - 2]]
    return [*words, *(["eins" if ones == 1 and last else _one(ones, rng)] if ones else [])]


def _one(digit: int, rng: random.Random) -> str:
    return "zwo" if digit == 2 and rng.random() < 0.3 else _EINS[digit - 1]


def pair(rng: random.Random) -> tuple[list[int], list[int]]:
    """A source and a translation, as token ids with an end each."""
    number = rng.randrange(1, 10 ** rng.randint(3, 9))
    source, target = digits(number), german(number, rng)
    return [*(IDS[word] for word in source), END], [*(IDS[word] for word in target), END]


def train(size: Size, folder: Path, seed: int = 0, batch: int = 32) -> None:
    """Train a T5 and save it with its tokenizer; says how well it did."""
    torch.manual_seed(seed)
    rng, began = random.Random(seed), time.process_time()
    model = T5ForConditionalGeneration(_config(size))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.0, weight_decay=0.0)
    peak, warm = 4e-3, 40
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda i: peak * min(1.0, (i + 1) / warm) * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * i / size.steps))),
    )
    recent = 0.0
    for i in range(size.steps):
        pairs = [pair(rng) for _ in range(batch)]
        sources, labels = (_padded([each[side] for each in pairs], fill) for side, fill in ((0, PAD), (1, -100)))
        loss = model(input_ids=sources, attention_mask=sources != PAD, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        recent = loss.item() if i == 0 else 0.95 * recent + 0.05 * loss.item()
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_text(_tokenizer(), encoding="utf-8")
    count = sum(p.numel() for p in model.parameters())
    spent = time.process_time() - began
    print(f"{folder.name}: {count:,} parameters, loss {recent:.3f} nats a token, {spent:.0f} processor s", flush=True)


def _config(size: Size) -> T5Config:
    return T5Config(
        vocab_size=len(WORDS), d_model=size.width, d_kv=size.width // size.heads, d_ff=3 * size.width,
        num_layers=size.encoder_layers, num_decoder_layers=size.decoder_layers, num_heads=size.heads, dropout_rate=0.0,
        relative_attention_num_buckets=16, relative_attention_max_distance=32, decoder_start_token_id=PAD,
    )  # fmt: skip


def _padded(rows: list[list[int]], fill: int) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor([row + [fill] * (longest - len(row)) for row in rows])


def _tokenizer() -> str:
    made = tokenizers.Tokenizer(models.WordLevel(IDS, unk_token="<pad>"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens(WORDS[:2])
    return str(made.to_str())
