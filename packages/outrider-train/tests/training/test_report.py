"""What a run says of its draft: calibration, where it is accepted, and what its draft vocabulary covers."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from outrider.drafters.heads.calibration import calibrated
from outrider.errors import ConfigError
from outrider_torch.heads import load_head
from outrider_train.data.documents import Document
from outrider_train.metrics import JudgedRows
from outrider_train.options import HeadOptions
from outrider_train.recipes import head_task
from outrider_train.report.breakdown import breakdown, table, warnings
from outrider_train.report.calibration import calibrate, expected_error
from outrider_train.report.card import write_report
from tests.training import small

RANKS = 4


def rows(count: int, *, slope: float, offset: float, seed: int = 0) -> JudgedRows:
    """Guesses whose chance to be right is σ(slope · logit(p) + offset) for the best one; the others are wrong."""
    generator = torch.Generator().manual_seed(seed)
    p = torch.rand(count, generator=generator) * 0.9 + 0.05
    chance = torch.sigmoid(slope * torch.logit(p) + offset)
    right = torch.rand(count, generator=generator) < chance
    scores = torch.full((count, RANKS), -30.0)
    scores[:, 0] = p.log()
    ranks = torch.where(right, 0, RANKS)
    documents = torch.arange(count) % 40
    return JudgedRows(documents, torch.full((count,), 100), ranks, torch.ones(count, dtype=torch.bool), scores)


def test_what_guesses_are_worth_is_found() -> None:
    report = calibrate([rows(20_000, slope=2.0, offset=0.7), rows(20_000, slope=0.6, offset=-0.4, seed=1)])
    assert report is not None
    first, second = report.calibration
    assert first[:2] == pytest.approx((2.0, 0.7), abs=0.1)
    assert second[:2] == pytest.approx((0.6, -0.4), abs=0.1)
    assert report.before > 0.07
    assert report.after < 0.02


def test_few_rows_are_not_fitted() -> None:
    many, few = rows(5000, slope=2.0, offset=0.0), rows(50, slope=1.0, offset=3.0)
    assert calibrate([few]) is None
    report = calibrate([many, few])
    assert report is not None
    assert report.calibration[1] == report.calibration[0]  # as the position before


def test_rows_that_no_chain_gets_to_do_not_count() -> None:
    own, other = rows(5000, slope=1.0, offset=0.0), rows(5000, slope=1.0, offset=5.0, seed=2)
    both = {name: torch.cat([getattr(own, name), getattr(other, name)]) for name in ("documents", "lengths", "ranks")}
    reached = torch.arange(10_000) < 5000
    mixed = JudgedRows(**both, reached=reached, scores=torch.cat([own.scores, other.scores]))
    alone, found = calibrate([own]), calibrate([mixed])
    assert alone is not None
    assert found is not None
    assert found.calibration == alone.calibration


def test_the_expected_error_by_hand() -> None:
    chances = torch.tensor([0.91, 0.95, 0.32, 1.0])
    hits = torch.tensor([True, False, True, True])
    assert expected_error(chances, hits) == pytest.approx((abs(0.91 + 0.95 + 1.0 - 2) + abs(0.32 - 1)) / 4)


def test_calibrated_scores_by_hand() -> None:
    fit = ((2.0, 0.5, 0.5, -1.0), (1.0, 0.0, 1.0, 9.0))
    best, other = (1 / (1 + math.exp(-x)) for x in (2 * math.log(0.7 / 0.3) + 0.5, 0.5 * math.log(0.2 / 0.8) - 1))
    guesses = [math.log(0.7), math.log(0.2)]
    found = calibrated([guesses, [], guesses[:1]], fit, 0)
    assert [pytest.approx(row) for row in found] == [[math.log(best), math.log(other)], [], [math.log(best)]]
    for depth in (1, 7):  # beyond the last: as the last; no guess is worth more than the best of its row
        assert calibrated([guesses], fit, depth) == [pytest.approx([math.log(0.7)] * 2)]
    ((high,), (low,)) = calibrated([[0.0], [-1e3]], fit, 0)
    assert math.isfinite(low)
    assert low < high <= 0


def test_a_weak_place_is_told() -> None:
    """Twice 300 rows with α 0.8 and 0.4, by context length as by tag; too few rows are no reason to worry."""
    tags = ("first turn", "category {a|b}"), ("later turns", "category chat"), ()
    documents = [Document((1, 2), 1, own) for own in tags]
    which = torch.tensor([0] * 300 + [1] * 300 + [2] * 10)
    lengths = torch.tensor([255] * 300 + [1024] * 300 + [2048] * 10)
    ranks = torch.cat([(torch.arange(300) % 5 == 0).long(), (torch.arange(300) % 5 > 1).long(), torch.ones(10).long()])
    found = breakdown(JudgedRows(which, lengths, ranks, ranks >= 0, torch.zeros(610, RANKS)), documents)
    assert found["context length"] == {
        "<256": {"rows": 300, "alpha": 0.8},
        "1k to 2k": {"rows": 300, "alpha": 0.4},
        "2k and more": {"rows": 10, "alpha": 0.0},
    }
    assert found["chat"] == {"first turn": {"rows": 300, "alpha": 0.8}, "later turns": {"rows": 300, "alpha": 0.4}}
    assert found["category"] == {"{a|b}": {"rows": 300, "alpha": 0.8}, "chat": {"rows": 300, "alpha": 0.4}}
    assert [line.partition(",")[0] for line in warnings(found)] == [
        f"α is 0.400 for {place}" for place in ("contexts of 1k to 2k tokens", "later turns", "category chat")
    ]
    assert table(found)[-2:] == ["| category chat | 300 | 0.400 |", "| category {a\\|b} | 300 | 0.800 |"]


def test_a_run_writes_all_of_it(tmp_path: Path) -> None:
    said: list[str] = []
    made, _ = small.trainer(
        tmp_path, "medusa", head={"draft_vocab": 0.9}, train={"epochs": 1}, data={"held_out": 0.5}, log=said.append
    )
    made.run()
    write_report(made, name="x", about={})
    _, config = load_head(tmp_path / "out")
    assert config.draft_vocab_size == 64  # seven tokens are enough, and it is a multiple of this
    assert len(config.calibration) == 2
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert report["metrics"]["held_out_coverage"] == 1.0
    assert report["metrics"]["calibration_error_after_calibration"] <= report["metrics"]["calibration_error"]
    assert report["buckets"]["context length"]["<256"] == report["buckets"]["overall"]
    card = (tmp_path / "out" / "README.md").read_text()
    for line in ("| context <256 |", "- draft vocabulary: 64", "- held out coverage: 1.0", "- calibration error:"):
        assert line in card


def test_a_draft_vocabulary_by_its_coverage(tmp_path: Path) -> None:
    setup = small.setup(tmp_path)
    setup.log = (said := list[str]()).append
    seen, _ = setup._token_counts
    ids = setup.frequent(0.6)
    assert len(ids) == 64
    assert int(seen[ids].sum()) >= 0.6 * int(seen.sum())
    assert "64 draft tokens cover 100.00% of the answers, 100.00% of those held out" in said[-1]
    assert setup.frequent(3).tolist() == sorted(seen.argsort(descending=True, stable=True)[:3].tolist())
    for wrong in (1.5, 70000, -3.0):
        with pytest.raises(ConfigError, match=f"draft_vocab={wrong}"):
            head_task(setup, HeadOptions("medusa", draft_vocab=wrong), 0)
