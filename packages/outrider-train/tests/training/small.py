"""A small target and documents that a draft can learn: a cycle of tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from outrider_train.data.documents import Document, Line
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_trainer
from outrider_train.setup import DataOptions, TrainingSetup
from outrider_train.tasks import HeadTask
from outrider_train.trainer import Trainer, TrainOptions
from tests.model_folders import model_folder

CYCLE = 7


def lines(count: int = 40, *, length: int = 24, vocab: int = 300) -> list[Line]:
    """Documents that go round cycles of tokens, each beginning elsewhere."""
    generator = torch.Generator().manual_seed(5)
    out = []
    for _ in range(count):
        first = int(torch.randint(CYCLE, (1,), generator=generator))
        start = 3 + 2 * int(torch.randint(2, (1,), generator=generator))
        ids = tuple(10 + 3 * ((first + i) % CYCLE) for i in range(length - start))
        out.append(Line(Document(ids, start), ids[:start]))
    return out


def setup(folder: Path, *, seed: int = 0, **changes: Any) -> TrainingSetup:
    target = folder / "target"
    if not target.exists():
        model_folder(target)
    options: dict[str, Any] = {"paths": (), "held_out": 0.2, "top_k": 8, "context": 8}
    return TrainingSetup(str(target), DataOptions(**(options | changes)), seed, lines())


def train_options(**changes: Any) -> TrainOptions:
    return TrainOptions(**({"epochs": 2, "batch_tokens": 256, "lr": 3e-3, "evaluations": 2} | changes))


def trainer(folder: Path, kind: str, name: str = "out", **more: Any) -> tuple[Trainer, HeadTask]:
    options = {"kind": kind, "heads": 2, "depth": 3, **more.pop("head", {})}
    train = train_options(**more.pop("train", {}))
    return head_trainer(setup(folder, **more.pop("data", {})), HeadOptions(**options), train, folder / name, **more)
