"""Muon: orthogonal updates of hidden matrices, AdamW for the rest, in runs that learn and can be resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from outrider.errors import ConfigError
from outrider_train.draft_models import DraftOptions, draft_trainers
from outrider_train.optimizers import MUON_LR, Muon, make_optimizer, matrices, orthogonalize
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_task, medusa2_trainer
from outrider_train.report.card import write_report
from tests.training import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("optimizers")


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("precision", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(24, 96), (96, 24), (40, 60)], ids=str)
@pytest.mark.parametrize("scale", [1e-4, 1.0, 1e4])
def test_an_update_is_orthogonal(shape: tuple[int, int], scale: float, precision: torch.dtype) -> None:
    gradient = scale * random(*shape)
    found = orthogonalize(gradient, precision)
    assert (found.shape, found.dtype) == (shape, precision)
    u, _, v = torch.linalg.svd(gradient, full_matrices=False)
    aligned = u.T @ found.float() @ v.T  # the identity, if it were exact
    assert torch.linalg.svdvals(found.float()).sub(1).abs().max() < 0.35
    assert aligned.sub(torch.diag(aligned.diag())).abs().max() < 0.05
    assert aligned.diag().min() > 0.65


def test_a_gradient_of_zeros_moves_nothing() -> None:
    assert not orthogonalize(torch.zeros(8, 4), torch.float32).any()


class Small(nn.Module):
    """Something of each sort."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.embed_tokens = nn.Linear(12, 40), nn.Embedding(20, 12)
        self.norm, self.lm_head = nn.Parameter(torch.ones(12)), nn.Linear(12, 20, bias=False)
        with torch.no_grad():
            for i, parameter in enumerate(self.parameters()):
                parameter.copy_(random(*parameter.shape, seed=i))


def take_steps(module: nn.Module, optimizer: torch.optim.Optimizer, count: int = 5) -> None:
    for step in range(count):
        for i, parameter in enumerate(module.parameters()):
            parameter.grad = random(*parameter.shape, seed=100 * step + i)
        optimizer.step()


def muon(module: nn.Module, precision: torch.dtype = torch.bfloat16) -> torch.optim.Optimizer:
    optimizer = make_optimizer("muon", module, lr=0.01, weight_decay=0.1, precision=precision)
    for group in optimizer.param_groups:
        group["lr"] = 0.01 * group["lr_factor"]  # as the trainer does
    return optimizer


def test_what_is_no_hidden_matrix_is_updated_by_adamw() -> None:
    ours, theirs = Small(), Small()
    take_steps(ours, muon(ours))
    take_steps(theirs, torch.optim.AdamW(theirs.parameters(), lr=0.01, betas=(0.9, 0.95), weight_decay=0.1))
    assert "fc.weight" in dict(ours.named_parameters())
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        assert torch.equal(a, b) == (name != "fc.weight"), name


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has it from 2.9 on")
def test_matrices_are_updated_as_by_torch() -> None:
    ours, theirs = Small(), Small()
    take_steps(ours, muon(ours))
    options: dict[str, Any] = {"lr": 0.01 * MUON_LR, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    take_steps(theirs, torch.optim.Muon([theirs.fc.weight], **options))
    moved = (theirs.fc.weight - Small().fc.weight).abs().mean()
    assert (ours.fc.weight - theirs.fc.weight).abs().mean() < 0.01 * moved  # which rounds before it takes the norm


@pytest.mark.parametrize("shape", [(30, 30), (20, 80), (80, 20)], ids=str)
def test_an_update_is_as_large_as_adams(shape: tuple[int, int]) -> None:
    """Its elements have a root mean square of 0.2, of whatever shape the matrix is (Liu et al. 2025)."""
    weight = nn.Parameter(torch.zeros(shape))
    weight.grad = random(*shape)
    Muon([{"params": [weight], "muon": True}], precision=torch.float32, lr=1.0, weight_decay=0.0).step()
    assert float(weight.detach().square().mean().sqrt()) == pytest.approx(0.2, rel=0.2)
    assert weight.grad is None


def names(module: nn.Module) -> set[str]:
    hidden = set(matrices(module))
    return {name for name, parameter in module.named_parameters() if parameter in hidden}


LAYER = {
    *(f"layers.0.self_attn.{x}_proj.weight" for x in "qkvo"),
    *(f"layers.0.mlp.{x}_proj.weight" for x in ("gate", "up", "down")),
}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("eagle", {"fc.weight", *LAYER}),
        ("eagle3", {"fc.weight", *LAYER}),
        ("dflash", {"fc.weight", *LAYER}),
        ("medusa", {"blocks.0.weight", "blocks.1.weight"}),
        ("blockwise", {"inner.weight"}),
    ],
)
def test_muon_is_for_the_matrices_of_hidden_layers(kind: str, expected: set[str], folder: Path) -> None:
    options = HeadOptions(kind, heads=2, layers=1, draft_vocab=64, own_lm_head=kind in ("eagle3", "medusa"))
    assert names(head_task(small.setup(folder), options, 0).module) == expected


def test_draft_models_and_medusa_2_have_them_too(folder: Path) -> None:
    (made,) = draft_trainers(small.setup(folder), DraftOptions(truncate=1), small.train_options(), folder / "unused")
    assert names(made.task.module) == {f"model.{name}" for name in LAYER}
    options = HeadOptions("medusa", heads=2, draft_vocab=0)
    both = medusa2_trainer(small.setup(folder), options, small.train_options(), folder / "unused")
    found = names(both.task.module)
    assert {"heads.blocks.0.weight", *(f"target.model.{name}" for name in LAYER)} < found
    assert not any("embed" in name or "lm_head" in name or "norm" in name for name in found)


@pytest.mark.parametrize("kind", ["eagle3", "medusa", "draft"])
def test_drafts_learn_with_muon(kind: str, folder: Path) -> None:
    train: dict[str, Any] = {"epochs": 3, "lr": 3e-3, "optimizer": "muon"}
    if kind == "draft":
        options = DraftOptions(hidden_size=32, heads=2, layers=1)
        (made,) = draft_trainers(small.setup(folder), options, small.train_options(**train), folder / kind)
    else:
        made, _ = small.trainer(folder, kind, kind, train=train, head={"ttt_steps": 2})
    progress = made.run()
    assert progress.best_loss is not None
    assert progress.best_loss < 0.9 * progress.history[0]["loss"]
    write_report(made, name=kind, about={})
    said = "Muon (learning rate 0.03) for matrices, AdamW (learning rate 0.003) for the rest"
    assert json.loads((folder / kind / "report.json").read_text())["optimizer"] == said
    assert f"- optimizer: {said}" in (folder / kind / "README.md").read_text()


def test_the_rates_of_both_rise_and_fall_together(folder: Path) -> None:
    made, _ = small.trainer(folder, "medusa", "rates", train={"optimizer": "muon", "epochs": 1})
    seen: list[list[float]] = []
    made.on_step = lambda step: seen.append([group["lr"] for group in made.optimizer.param_groups])
    made.run()
    assert [pytest.approx([MUON_LR * made.rate(step), made.rate(step)]) for step in range(made.steps)] == seen


def test_optimisers_that_cannot_be_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="optimizer='sgd' is unknown: use adamw or muon"):
        small.train_options(optimizer="sgd")
    with pytest.raises(ConfigError, match=r"optimizer='muon' updates .* use adamw"):
        small.trainer(folder, "pass", "none", train={"optimizer": "muon"})


def begun(folder: Path, name: str, **train: Any) -> Path:
    """A run that was stopped after its third step; where its ``state.json`` is."""
    made, _ = small.trainer(folder, "medusa", name, train=train)
    made.on_step = lambda step: setattr(made, "stop", step == 3)
    made.run()
    return folder / name / "state" / "state.json"


def test_a_run_from_before_there_was_a_choice_goes_on(folder: Path) -> None:
    path = begun(folder, "older")
    state = json.loads(path.read_text())
    del state["job"]["optimizer"]
    path.write_text(json.dumps(state))
    with pytest.raises(ConfigError, match="optimizer='adamw', not 'muon'"):
        small.trainer(folder, "medusa", "older", train={"optimizer": "muon"}, resume=True)
    rest, _ = small.trainer(folder, "medusa", "older", resume=True)
    assert rest.progress.step == 3
    assert rest.run().finished


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_killed_before_its_first_step_goes_on(optimizer: str, folder: Path) -> None:
    train = {"optimizer": optimizer, "epochs": 1}
    made, _ = small.trainer(folder, "medusa", f"early-{optimizer}", train=train)
    made._evaluate()  # what saves the first state
    again, _ = small.trainer(folder, "medusa", f"early-{optimizer}", train=train, resume=True)
    assert (again.progress.step, len(again.optimizer.state)) == (0, 0)
    assert again.run().finished


def test_gradients_are_clipped_over_all_parameters(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, _ = small.trainer(folder, "eagle3", "clipped", train={"optimizer": "muon", "epochs": 0.2})
    clipped: list[list[Tensor]] = []
    clip = torch.nn.utils.clip_grad_norm_

    def record(parameters: Any, most: float) -> Tensor:
        clipped.append(list(parameters))
        return clip(parameters, most)

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", record)
    made.run()
    assert clipped
    assert all(set(each) == set(made.task.module.parameters()) for each in clipped)
