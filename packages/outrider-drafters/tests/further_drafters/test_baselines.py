"""Sources that cost nothing: random, unigram and bigram, live or from a trained table."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.drafters.api import Drafter
from outrider.errors import ConfigError, ModelFormatError
from outrider.verify.draft import EMPTY
from outrider_drafters.baselines import RandomDrafter, bigram, unigram
from outrider_drafters.draft_table import DraftTable, count
from tests.arrays import softmax
from tests.drafters.views import grow, propose, request

VOCAB = 10
TEXT = [1, 2, 1, 2, 1, 3, 4, 1]


def drafted(drafter: Drafter, tokens: list[int], budget: int = 3) -> tuple[int, ...]:
    view = request(tokens)
    drafter.start(view)
    return propose(drafter, view, budget).tokens


def test_live_unigram() -> None:
    drafter, view = unigram(VOCAB), request([3, 4, 4])
    drafter.start(view)
    assert propose(drafter, view, 3).tokens == (4, 4, 4)
    grow(drafter, view, [3])
    assert propose(drafter, view, 2).tokens == (3, 3)  # the later of equals
    assert propose(drafter, view, 2).source == "unigram"


def test_live_bigram() -> None:
    assert drafted(bigram(VOCAB), TEXT) == (2, 1, 2)
    assert drafted(bigram(VOCAB), [1, 2]) == ()


def test_trained_tables_do_not_look_at_the_request() -> None:
    table = count(TEXT, VOCAB)
    assert drafted(unigram(VOCAB, table), [9, 9, 9]) == (1, 1, 1)
    assert drafted(bigram(VOCAB, table), [3, 9, 3]) == (4, 1, 2)
    view = request([9])
    drafter = bigram(VOCAB, table)
    drafter.start(view)
    assert propose(drafter, view, 3) is EMPTY  # nothing ever followed it


@pytest.mark.parametrize("trained", [False, True])
def test_counts_as_q(trained: bool) -> None:
    table = count(TEXT, VOCAB) if trained else None
    view = request(TEXT, temperature=1.0, speculation={"verifier": "rejection", "counts_as_q": True})
    for drafter, expected in (
        (unigram(VOCAB, table), {1: 0.5, 2: 0.25, 3: 0.125, 4: 0.125}),
        (bigram(VOCAB, table), {2: 2 / 3, 3: 1 / 3}),
    ):
        drafter.start(view)
        draft = propose(drafter, view, 1)
        assert draft.q_logits is not None
        q = softmax(draft.q_logits[0])
        assert {i: float(x) for i, x in enumerate(q) if x} == pytest.approx(expected)


def test_random_tokens_are_uniform() -> None:
    drafter = RandomDrafter(VOCAB)
    seen = np.zeros(VOCAB)
    for seed in range(300):
        view = request([1], seed=seed, speculation={"verifier": "rejection"})
        draft = propose(drafter, view, 4)
        assert draft.q_logits is not None
        assert np.array_equal(softmax(draft.q_logits), np.full((4, VOCAB), 1 / VOCAB))
        seen[list(draft.tokens)] += 1
    assert seen.sum() > 300
    assert propose(drafter, request([1]), 3).q_logits is None  # with shared noise none is needed
    assert propose(drafter, request([1]), 0) is EMPTY


def test_a_table_survives_its_file(tmp_path: Path) -> None:
    table = count(TEXT, VOCAB)
    table.save(tmp_path / "t.safetensors")
    again = DraftTable.load(tmp_path / "t.safetensors")
    assert again.trained_on == len(TEXT)
    assert np.array_equal(again.unigram, table.unigram)
    for token in range(VOCAB):
        assert again.bigrams.followers([token]) == table.bigrams.followers([token])
    again.check_vocabulary(VOCAB)
    with pytest.raises(ConfigError, match="counts 10 tokens, but the model has 11"):
        again.check_vocabulary(11)


def test_rare_followers_are_left_out() -> None:
    table = count([0, 1, 0, 1, 0, 2, 0, 3], VOCAB, keep=2)
    assert table.bigrams.followers([0]) == {1: 2, 2: 1}


def test_what_cannot_be_counted() -> None:
    with pytest.raises(ConfigError, match="no text"):
        count([], VOCAB)
    with pytest.raises(ConfigError, match="outside the vocabulary of 10"):
        count([1, 10], VOCAB)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="outrider train table"):
        DraftTable.load(tmp_path / "none")


SOUND = {
    "unigram": np.array([1, 2]),
    "bigram_starts": np.array([0, 1, 2]),
    "bigram_tokens": np.array([1, 0]),
    "bigram_counts": np.array([1, 1]),
}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"unigram": np.array([0, 0])}, "all zero"),
        ({"unigram": np.array([-1, 3])}, "negative"),
        ({"unigram": np.array([1, 2, 3])}, "do not fit"),
        ({"unigram": np.array([1.0, 2.0])}, "int64"),
        ({"unigram": np.array([[1, 2]])}, "vectors"),
        ({"bigram_starts": np.array([0, 2, 1])}, "does not divide"),
        ({"bigram_starts": np.array([0, 1, 3])}, "does not divide"),
        ({"bigram_tokens": np.array([1, 2])}, "outside its vocabulary"),
        ({"bigram_tokens": np.array([1, -1])}, "outside its vocabulary"),
        ({"bigram_counts": np.array([1, 0])}, "never seen"),
        ({"bigram_counts": np.array([1])}, "do not fit"),
    ],
)
def test_damaged_tables_are_refused(tmp_path: Path, changes: dict[str, NDArray[Any]], why: str) -> None:
    file = tmp_path / "t.safetensors"
    DraftTable(**SOUND, trained_on=3).save(file)
    DraftTable.load(file)
    DraftTable(**SOUND | changes, trained_on=3).save(file)
    with pytest.raises(ModelFormatError, match=why):
        DraftTable.load(file)


def test_other_files_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "t.safetensors"
    header = json.dumps({"__metadata__": {"format": "pt"}}).encode()
    file.write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(ModelFormatError, match="not a draft table"):
        DraftTable.load(file)
    file.write_bytes(b"\x80\x04pickle?")
    with pytest.raises(ModelFormatError):
        DraftTable.load(file)
