"""Training of every kind of draft: it learns, measures itself, and goes on after a kill as if nothing had been."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from outrider.drafters.heads.config import HEAD_KINDS
from outrider.drafters.heads.masked import MASKED
from outrider.errors import CapacityError, ConfigError, NumericalError
from outrider_torch.heads import checkpoint, load_head
from outrider_train import trainer as trainer_module
from outrider_train.batches import Batcher
from outrider_train.data.documents import Document
from outrider_train.draft_models import DraftOptions, draft_trainers
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_trainer, medusa2_trainer
from outrider_train.report.card import write_report
from outrider_train.setup import DataOptions, TrainingSetup
from outrider_train.target.features import FeatureSpec, FeatureStore
from outrider_train.target.llama import load_llama
from outrider_train.tasks import HeadTask
from outrider_train.trainer import Trainer
from tests.training import small

TRAINED = [kind for kind in HEAD_KINDS if kind not in MASKED]  # which are read, as others publish them


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("training")


@pytest.fixture(scope="module")
def trained(folder: Path) -> Callable[[str], tuple[Trainer, HeadTask]]:
    """A head of a kind that has learned, in the folder of that name: trained once for all tests."""

    @cache
    def train(kind: str) -> tuple[Trainer, HeadTask]:
        lr = 5e-2 if kind == "pass" else 5e-3
        made, task = small.trainer(folder, kind, kind, train={"epochs": 4, "lr": lr}, head={"ttt_steps": 2})
        made.run()
        return made, task

    return train


@pytest.mark.parametrize("kind", TRAINED)
def test_every_kind_learns(kind: str, folder: Path, trained: Callable[[str], tuple[Trainer, HeadTask]]) -> None:
    made, task = trained(kind)
    progress = made.progress
    assert progress.best_loss is not None
    assert progress.best_loss < 0.9 * progress.history[0]["loss"]
    found = write_report(made, name=kind, about={"seed": 0})
    assert found.loss == pytest.approx(progress.best_loss, rel=0.05)  # saved in bfloat16, and loads as it was
    _, config = load_head(folder / kind)
    assert len(config.acceptance) == task.depth == len(found.alpha)
    assert config.training["metrics"]["mean_acceptance_length"] >= 1
    assert "α" in (folder / kind / "README.md").read_text()
    assert (folder / kind / "training.png").stat().st_size > 1000
    assert json.loads((folder / kind / "report.json").read_text())["history"]


@pytest.mark.parametrize("kind", TRAINED)
def test_a_trained_head_is_trained_further(
    kind: str, folder: Path, trained: Callable[[str], tuple[Trainer, HeadTask]]
) -> None:
    first, _ = trained(kind)
    begin = {"start_from": str(folder / kind), "ttt_steps": 2}
    further, task = small.trainer(folder, kind, f"{kind}-further", head=begin, train={"epochs": 1})
    begun = further.run().history[0]["loss"]
    assert begun == pytest.approx(first.progress.best_loss, rel=0.02, abs=1e-3)  # saved in bfloat16; eagle3 ends near 0
    assert begun < first.progress.history[0]["loss"]
    assert all(p.requires_grad for p in task.module.parameters())


def test_an_eagle3_head_goes_on_as_eagle31(folder: Path, trained: Callable[[str], tuple[Trainer, HeadTask]]) -> None:
    best = trained("eagle3")[0].progress.best_loss
    begin = {"start_from": str(folder / "eagle3"), "normed": True, "ttt_steps": 2}
    further, task = small.trainer(folder, "eagle3", "eagle3-normed", head=begin)
    assert task.config.fc_norm
    assert task.config.norm_output
    begun = further.run().history[0]["loss"]
    assert begun == pytest.approx(best, abs=0.02)  # it was 0.22 before the first training
    load_head(folder / "eagle3-normed")


@pytest.mark.parametrize(
    ("kind", "asked", "said"),
    [
        ("blockwise", {}, "kind medusa, not blockwise"),
        ("medusa", {"heads": 3}, "heads=2, not 3"),
        ("medusa", {"draft_vocab": 50}, "draft_vocab=0, not 50"),
        ("medusa", {"own_lm_head": True}, "no LM head"),
    ],
)
def test_a_head_of_another_shape_is_not_trained_further(kind: str, asked: Any, said: str, folder: Path) -> None:
    _, task = small.trainer(folder, "medusa", "unused")
    task.save(folder / "shape", {})
    with pytest.raises(ConfigError, match=said):
        small.trainer(folder, kind, "never", head={"start_from": str(folder / "shape"), **asked})


class KilledError(Exception):
    """Stands for SIGKILL."""


@pytest.mark.parametrize(
    ("kind", "optimizer"),
    [
        *(pytest.param(kind, "adamw", marks=pytest.mark.slow) for kind in ("eagle", "dflash")),
        ("eagle3", "adamw"),
        pytest.param("eagle3", "muon", marks=pytest.mark.slow),
        ("medusa", "adamw"),
    ],
)
def test_a_killed_run_ends_with_the_same_weights(kind: str, optimizer: str, folder: Path) -> None:
    name, train = f"{kind}-{optimizer}", {"optimizer": optimizer}
    whole, _ = small.trainer(folder, kind, f"{name}-whole", train=train)
    whole.run()

    def kill(step: int) -> None:
        if step == whole.steps // 2 + 1:
            raise KilledError

    first, _ = small.trainer(folder, kind, f"{name}-killed", train=train, checkpoint_seconds=0.0, on_step=kill)
    with pytest.raises(KilledError):
        first.run()
    second, task = small.trainer(folder, kind, f"{name}-killed", train=train, resume=True)
    assert 0 < second.progress.step < second.steps
    second.run()
    for key, value in load_file(folder / f"{name}-whole" / "model.safetensors").items():
        assert torch.equal(value, load_file(folder / f"{name}-killed" / "model.safetensors")[key]), key
    for a, b in zip(whole.task.module.parameters(), task.module.parameters(), strict=True):
        assert torch.equal(a, b)
    assert [e["loss"] for e in whole.progress.history] == [e["loss"] for e in second.progress.history]


def test_epochs_need_not_have_the_same_number_of_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Batcher.plan
    monkeypatch.setattr(Batcher, "plan", lambda self, epoch: plan(self, epoch)[epoch % 2 :])
    seen: list[int] = []
    made, _ = small.trainer(folder, "medusa", "uneven", train={"epochs": 2.5}, on_step=seen.append)
    made.run()
    a, b = (len(made.train.plan(epoch)) for epoch in (0, 1))
    assert made.ends == [a, a + b]
    assert seen == list(range(1, a + b + round(a / 2) + 1))


def test_a_run_that_is_stopped_goes_on_to_the_same_weights(folder: Path) -> None:
    whole, task = small.trainer(folder, "medusa", "whole", train={"epochs": 2})
    whole.run()
    begun, _ = small.trainer(folder, "medusa", "stopped", train={"epochs": 2})

    def stop(step: int) -> None:
        begun.stop = step == 3

    begun.on_step = stop
    progress = begun.run()
    assert (progress.step, progress.finished) == (3, False)
    rest, again = small.trainer(folder, "medusa", "stopped", train={"epochs": 2}, resume=True)
    assert rest.run().finished
    pairs = zip(task.module.state_dict().values(), again.module.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_folder_is_neither_overwritten_nor_resumed_as_something_else(folder: Path) -> None:
    small.trainer(folder, "medusa", "kept", train={"epochs": 1})[0].run()
    with pytest.raises(ConfigError, match="--resume"):
        small.trainer(folder, "medusa", "kept", train={"epochs": 1})
    with pytest.raises(ConfigError, match="lr"):
        small.trainer(folder, "medusa", "kept", train={"epochs": 1, "lr": 0.5}, resume=True)


def test_a_loss_that_is_no_number_stops_and_keeps_the_last_good_draft(folder: Path) -> None:
    made, task = small.trainer(folder, "medusa", "nan", train={"epochs": 4})

    def spoil(step: int) -> None:
        if step == made.steps // 2 + 1:
            with torch.no_grad():
                next(iter(task.module.parameters())).fill_(torch.nan)

    made.on_step = spoil
    with pytest.raises(NumericalError, match=r"step \d+: loss nan.*--lr"):
        made.run()
    module, _ = load_head(folder / "nan")  # refuses what is not a number
    assert all(bool(p.isfinite().all()) for p in module.parameters())


def test_a_full_disk_is_one_clear_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = small.trainer(folder, "medusa", "full")

    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(CapacityError, match="full"):
        made.run()
    assert not list((folder / "full").glob(".*.tmp"))


def test_a_store_that_is_too_small_changes_no_result(folder: Path) -> None:
    losses = []
    for name, size in (("none", 0), ("some", 60_000), ("all", 10**9)):
        data = {"cache": folder / f"cache-{name}", "cache_bytes": size}
        made, _ = small.trainer(folder, "eagle3", f"store-{name}", data=data, train={"epochs": 1})
        stored = made.train.store.stored
        assert (stored == 0, stored == 40) == (name == "none", name == "all")
        losses.append(made.run().history[-1]["loss"])
        again, _ = small.trainer(folder, "eagle3", f"store-{name}-again", data=data, train={"epochs": 1})
        assert again.train.store._done == stored  # found, not computed again
    assert losses == pytest.approx([losses[0]] * 3, rel=0.02)


def test_documents_added_to_a_store_find_what_is_there(folder: Path) -> None:
    def store(documents: list[Document], limit: int = 10**9) -> FeatureStore:
        target = small.setup(folder).target
        return FeatureStore(target, documents, FeatureSpec((1,), 4), folder / "growing", limit, "")

    all_of_them = [line.document for line in small.lines() if line.document]
    first = store(all_of_them[:20])
    first.prepare()
    grown = store(all_of_them)
    assert grown._done == 20
    grown.prepare()
    assert store(all_of_them, limit=5_000)._done == store(all_of_them, limit=5_000).stored < 20
    fresh = FeatureStore(grown.target, all_of_them, FeatureSpec((1,), 4), None, 0, "")
    for found, computed in zip(grown.fetch(range(40)), fresh.fetch(range(40)), strict=True):
        assert torch.allclose(found.rows.float(), computed.rows.float(), atol=0.05)
        assert torch.equal(found.ids[:, 0], computed.ids[:, 0])
    assert store(all_of_them[1:])._done == 0


@pytest.mark.parametrize(
    "loss", [pytest.param("kl", marks=pytest.mark.slow), "ce", pytest.param("alpha", marks=pytest.mark.slow)]
)
def test_drafts_learn(loss: str, folder: Path) -> None:
    options = DraftOptions(truncate=1 if loss == "alpha" else None, hidden_size=32, heads=2, layers=1, loss=loss)
    train = small.train_options(epochs=20 if loss == "ce" else 5, lr=1e-2)
    (made,) = draft_trainers(small.setup(folder), options, train, folder / f"draft-{loss}")
    progress = made.run()
    assert progress.best_loss is not None
    assert progress.best_loss < 0.95 * progress.history[0]["loss"]
    if loss == "ce":  # the documents are a cycle, which any draft can know by heart
        assert write_report(made, name="draft", about={}).tau > 3


@pytest.mark.slow
def test_a_boosted_draft_learns_what_the_first_one_misses(folder: Path) -> None:
    options = DraftOptions(hidden_size=32, heads=2, layers=1, loss="ce")
    found = []
    train = small.train_options(epochs=3)
    for made in draft_trainers(small.setup(folder), options, train, folder / "boost", count=2):
        made.run()
        write_report(made, name="draft", about={})
        found.append(made)
    known = found[1].train.skip
    assert sum(int(rows.sum()) for rows in known.values()) > 20
    assert (folder / "boost" / "draft-2" / "tokenizer.json").exists()


def test_medusa_2_makes_another_target(folder: Path) -> None:
    options = HeadOptions(kind="medusa", heads=2, draft_vocab=0)
    made = medusa2_trainer(small.setup(folder), options, small.train_options(epochs=1), folder / "medusa2")
    made.run()
    assert len(write_report(made, name="medusa2", about={}).alpha) == 3  # the target's own token, then two guesses
    _, config = load_head(folder / "medusa2")
    assert len(config.acceptance) == 2
    assert config.target.digest != small.setup(folder).fingerprint.digest
    again = small.setup(folder).__class__(str(folder / "medusa2" / "target"), made_data(), 0, small.lines())
    config.check_target(again.fingerprint)


def made_data() -> Any:
    from outrider_train.setup import DataOptions

    return DataOptions(())


def test_the_rate_warms_up_and_falls() -> None:
    made = trainer_module.Trainer.__new__(trainer_module.Trainer)
    made.options, made.steps = trainer_module.TrainOptions(lr=1.0, warmup=0.1), 100
    rates = [made.rate(step) for step in range(100)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == pytest.approx(1.0)
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] < 0.06


def one_pass(folder: Path, name: str, count: int, optimizer: str = "adamw", **more: Any) -> tuple[Any, TrainingSetup]:
    """A run in ``folder / name`` that trains once on each of the first ``count`` of 80 documents."""
    made = TrainingSetup(
        small.setup(folder).model,
        DataOptions((), held_out=0.2, top_k=8, context=8),
        0,
        small.lines(80)[:count],
        one_pass_in=folder / name,
    )
    train = small.train_options(epochs=1.0, patience=1, lr=5e-3, optimizer=optimizer)
    options = HeadOptions("medusa", heads=2, draft_vocab=64)
    trainer, _ = head_trainer(made, options, train, folder / name, portions=made.portions, **more)
    return trainer, made


def test_one_pass_goes_on_with_documents_that_came_since(folder: Path) -> None:
    read: list[set[int]] = []

    def run(name: str, count: int, **more: Any) -> Any:
        trainer, _ = one_pass(folder, name, count, **more)
        read.append({window.document for window in trainer.train.windows})
        trainer.run()
        return trainer

    first = run("passes", 40)
    assert first.steps == len(first.train.plan(0))
    vocabulary = first.task.vocabulary.tolist()
    with pytest.raises(KilledError):
        run("passes", 70, resume=True, checkpoint_seconds=0.0, on_step=kill_at(2))
    second = run("passes", 80, resume=True)  # ten more came while it was dead: they are for the next time
    third = run("passes", 80, resume=True)
    assert [min(each) // 40 for each in read[:3]] == [0, 1, 1]
    assert read[0] | read[1] | read[3] <= set(range(80))
    assert read[1] == read[2]
    assert not read[0] & read[1]
    assert not (read[0] | read[1]) & read[3]
    assert max(read[3]) >= 70
    p = third.progress
    assert (p.before, p.tokens > second.progress.tokens) == (first.steps + second.steps, True)
    assert p.history[-1]["step"] == first.steps + second.steps + third.steps
    assert p.history[-1]["loss"] < first.progress.history[-1]["loss"]
    assert third.task.vocabulary.tolist() == vocabulary  # of the first portion: the head keeps it
    done = run("passes", 80, resume=True)
    assert (done.progress.finished, done.progress.step) == (True, third.steps)  # there is nothing new


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_a_portion_that_is_killed_ends_with_the_same_weights(optimizer: str, folder: Path) -> None:
    def run(name: str, count: int, **more: Any) -> Any:
        trainer, _ = one_pass(folder, f"{name}-{optimizer}", count, optimizer, **more)
        trainer.run()
        return trainer

    for name in ("portions-whole", "portions-killed"):
        run(name, 40)
    whole = run("portions-whole", 80, resume=True)
    with pytest.raises(KilledError):
        run("portions-killed", 80, resume=True, checkpoint_seconds=0.0, on_step=kill_at(2))
    second = run("portions-killed", 80, resume=True)
    assert whole.progress.before == second.progress.before > 0
    for a, b in zip(whole.task.module.parameters(), second.task.module.parameters(), strict=True):
        assert torch.equal(a, b)


def test_one_pass_knows_its_documents(folder: Path) -> None:
    one_pass(folder, "known", 40)[0].run()
    with pytest.raises(ConfigError, match="--resume"):
        one_pass(folder, "known", 80)
    with pytest.raises(ConfigError, match="has seen 40 documents"):
        one_pass(folder, "known", 39, resume=True)
    small.trainer(folder, "medusa", "epochs", train={"epochs": 1})[0].run()
    with pytest.raises(ConfigError, match="without --one-pass"):
        one_pass(folder, "epochs", 40, resume=True)


def kill_at(last: int) -> Any:
    def kill(step: int) -> None:
        if step == last:
            raise KilledError

    return kill


def test_a_narrowed_draft_learns_and_is_no_wider_than_the_target(folder: Path) -> None:
    setup, train = small.setup(folder), small.train_options(epochs=3, lr=1e-2)
    (made,) = draft_trainers(setup, DraftOptions(truncate=1, hidden_size=32), train, folder / "narrowed")
    progress = made.run()
    assert progress.best_loss is not None
    assert progress.best_loss < 0.95 * progress.history[0]["loss"]
    again = load_llama(folder / "narrowed", torch.float32)
    assert (again.config.hidden_size, again.config.num_heads) == (32, setup.config.num_heads)
    with pytest.raises(ConfigError, match=r"hidden_size=128: the target has 64"):
        next(draft_trainers(setup, DraftOptions(truncate=1, hidden_size=128), train, folder / "wide"))
