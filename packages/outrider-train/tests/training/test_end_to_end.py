"""From data to drafts that are accepted: a target learns, heads learn the target, the engine drafts with them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from outrider import LLM, SamplingParams
from outrider_train.draft_models import DraftOptions, draft_trainers
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_trainer
from outrider_train.setup import DataOptions, TrainingSetup
from tests.training import small


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A two-layer model that has learned to go round the cycle."""
    folder = tmp_path_factory.mktemp("lab")
    options = DraftOptions(hidden_size=48, heads=2, layers=2, loss="ce")
    (made,) = draft_trainers(small.setup(folder), options, small.train_options(epochs=20, lr=1e-2), folder / "learned")
    assert made.run().history[-1]["mean_acceptance_length"] > 5
    return folder / "learned"


@pytest.mark.parametrize(
    ("kind", "own"),
    [
        ("medusa", {}),
        ("eagle3", {}),
        ("eagle3", {"normed": True, "window": 8, "loss": "adaptive"}),
        ("dflash", {"loss": "adaptive"}),
        *(pytest.param(kind, {}, marks=pytest.mark.slow) for kind in ("blockwise", "eagle")),
    ],
    ids=str,
)
def test_a_trained_head_is_accepted_as_its_report_says(
    kind: str, own: dict[str, Any], target: Path, tmp_path: Path
) -> None:
    """A slip of one place between training and drafting would leave training's α high and the engine's low."""
    data = DataOptions((), held_out=0.2, top_k=8, context=8)
    setup = TrainingSetup(str(target), data, 0, small.lines())
    options = HeadOptions(kind=kind, heads=3, depth=3, ttt_steps=3, draft_vocab=64, **own)
    made, _ = head_trainer(setup, options, small.train_options(epochs=12, lr=5e-3), tmp_path / "head")
    assert min(made.run().history[-1]["alpha_by_position"]) > 0.9
    source = kind.rstrip("3")
    llm = LLM(str(target), draft=source, heads=[str(tmp_path / "head")], spec_length=3, dtype="float32", threads=1)
    prompt = list(small.lines()[0].document.ids[:9])  # type: ignore[union-attr]
    params = SamplingParams(max_tokens=16, ignore_eos=True)  # to about the length of the documents that taught it
    out = llm.generate([prompt], params)[0]
    plain = llm.generate([prompt], params, speculation=None)[0]
    assert out.token_ids == plain.token_ids
    assert out.stats.draft_error is None
    assert (out.stats.draft_acceptance_rate or 0) > 0.85
