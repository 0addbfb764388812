"""Training beside a device: nothing is left behind on the CPU, and a run there learns what it learns here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from outrider_train import trainer as trainer_module
from outrider_train.draft_models import DraftOptions, draft_trainers
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_trainer
from outrider_train.report.card import write_report
from outrider_train.setup import TrainingSetup
from outrider_train.trainer import Trainer
from tests import other_device
from tests.training import small

KINDS = ("eagle3", "dflash", "muon", "medusa", "eagle", "draft")  # muon: EAGLE-3 with this optimiser


@pytest.fixture(autouse=True)
def full_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stand-in device has no autocast."""
    for module in ("outrider_train.trainer", "outrider_train.setup"):
        monkeypatch.setattr(f"{module}.has_bf16_instructions", lambda: False)
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: False)


def made(folder: Path, kind: str, name: str, device: torch.device) -> Trainer:
    setup: TrainingSetup = small.setup(folder)
    setup.lines = small.lines(10)
    setup.target.to(device)
    optimizer = "muon" if kind == "muon" else "adamw"
    train, out = small.train_options(epochs=0.3, evaluations=1, optimizer=optimizer), folder / f"{name}-{kind}"
    kind = "eagle3" if kind == "muon" else kind
    if kind == "draft":
        return next(draft_trainers(setup, DraftOptions(truncate=1), train, out))
    return head_trainer(setup, HeadOptions(kind=kind, heads=2, depth=3, draft_vocab=64), train, out)[0]


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta:UserWarning")  # the stand-in's name
@pytest.mark.parametrize("kind", [*KINDS[:3], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[3:])])
def test_a_run_on_a_device_of_its_own(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_train.setup.library", lambda: None)  # which rounds in another way
    here = made(tmp_path, kind, "here", torch.device("cpu"))
    here.run()
    with other_device.Elsewhere():  # type: ignore[no-untyped-call]
        there = made(tmp_path, kind, "there", torch.device(other_device.NAME))
        assert all(p.device.type == other_device.NAME for p in there.task.module.parameters())
        there.run()
        write_report(there, name=kind, about={})
    for a, b in zip(here.progress.history, there.progress.history, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], rel=1e-4)


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta:UserWarning")
@pytest.mark.parametrize("kind", ["eagle3", "muon"])
def test_an_optimiser_is_restored_to_its_device(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_train.setup.library", lambda: None)
    with other_device.Elsewhere():  # type: ignore[no-untyped-call]
        there = made(tmp_path, kind, "there", torch.device(other_device.NAME))
        there.steps, there.stop = 2, True  # stops after the first
        assert not there.run().finished
        before = _devices(there)
        there.optimizer.state.clear()
        there.state.load(there.task.module, there.optimizer)
        assert _devices(there) == before
    assert {other_device.NAME, "cpu"} >= set(before.values()) >= {other_device.NAME}


def _devices(trainer: Trainer) -> dict[tuple[str, str], str]:
    """Of each tensor of the optimiser's state, by parameter and name."""
    states = {name: trainer.optimizer.state[p] for name, p in trainer.task.module.named_parameters()}
    return {(name, key): value.device.type for name, state in states.items() for key, value in state.items()}


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_on_a_gpu(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = made(tmp_path, kind, "here", torch.device("cpu"))
    here.run()
    there = made(tmp_path, kind, "there", torch.device("cuda"))
    assert trainer_module.low_precision(there.train.store.device) is not None
    there.run()
    assert there.progress.history[-1]["loss"] == pytest.approx(here.progress.history[-1]["loss"], rel=0.1, abs=0.05)
