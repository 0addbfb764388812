"""Recurrent layers: their numbers against NumPy in float64, and their bits against one another."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec
from outrider.config.engine import Implementation
from outrider.models.base import LoadedModel
from outrider.models.batch import ForwardBatch, Span
from outrider.models.config import Experts, ModelConfig
from outrider.models.factory import make_model
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.context import NativeContext
from outrider.native.library import library, native_library
from outrider.verify.arrays import host
from tests.hybrid.reference import random_weights, reference_logits, tiny_config
from tests.hybrid.sequence import Floats, SlotSequence

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

TOKENS = [(7 * i * i + 3 * i + 5) % 70 for i in range(48)]
OTHERS = [(11 * i + 29) % 70 for i in range(48)]
"""Drafts that are dropped."""


def sized(**changes: Any) -> ModelConfig:
    """The tiny model with other sizes of its recurrent layers."""
    config = tiny_config()
    assert config.recurrent is not None
    return replace(config, recurrent=replace(config.recurrent, **changes))


SHORT: dict[str, Any] = {"kind": "short", "key_heads": 1, "value_heads": 1, "key_dim": 0, "value_dim": 48}
MAMBA: dict[str, Any] = {"kind": "mamba2", "value_heads": 6, "convolution_bias": True}

CONFIGS = {
    "tiny": tiny_config(),
    "real heads": sized(key_dim=128, value_dim=128),
    "wide values": sized(key_dim=32, value_dim=96, convolution=2),
    "tiled": sized(tiled=True, value_heads=6),
    "one head of values each": sized(value_heads=2, value_dim=32, convolution=5),
    "short convolution": sized(**SHORT, convolution=3),
    "short convolution with biases": sized(**SHORT, convolution_bias=True, projection_bias=True),
    "mamba": sized(**MAMBA),
    "mamba with one key": sized(**MAMBA, key_heads=1, key_dim=32, value_dim=32, projection_bias=True),
    "experts": replace(tiny_config(), experts=Experts(count=5, used=2, size=32, normalised=True, shared_size=32)),
}


def made(name: str, implementation: Implementation) -> LoadedModel:
    config = CONFIGS[name]
    return make_model(config, random_weights(config), dtype="float32", implementation=implementation)


@pytest.fixture(scope="module", params=CONFIGS)
def native(request: pytest.FixtureRequest) -> NativeLlamaModel:
    model = made(request.param, "native")
    assert isinstance(model, NativeLlamaModel)
    return model


@pytest.fixture(
    scope="module",
    params=[
        *(pytest.param((name, "native"), id=f"{name}, native") for name in CONFIGS),
        *(pytest.param((name, "torch"), id=f"{name}, torch", marks=pytest.mark.slow) for name in CONFIGS),
    ],
)
def model(request: pytest.FixtureRequest) -> LoadedModel:
    return made(*request.param)


@pytest.fixture(scope="module", params=["native", "torch"])
def tiny(request: pytest.FixtureRequest) -> LoadedModel:
    return made("tiny", request.param)


@pytest.fixture(scope="module")
def whole(tiny: LoadedModel) -> Floats:
    """Logits of all tokens in one pass."""
    return SlotSequence(tiny).feed(TOKENS)


# ---- Numbers --------------------------------------------------------------------------------------------------------


def test_logits_are_those_of_float64(model: LoadedModel) -> None:
    expected = reference_logits(model.config, random_weights(model.config), TOKENS)
    found = SlotSequence(model).feed(TOKENS)
    assert np.abs(found - expected).max() < 4e-6 * np.abs(expected).max()
    assert np.sqrt(np.mean((found - expected) ** 2)) < 4e-7 * np.abs(expected).max()


def test_a_chain_has_the_logits_of_float64(tiny: LoadedModel, whole: Floats) -> None:
    expected = reference_logits(tiny.config, random_weights(tiny.config), TOKENS)
    assert np.abs(whole - expected).max() < 4e-6 * np.abs(expected).max()


def parts_of(name: str) -> list[tuple[str, str]]:
    """The weights of a recurrent layer of a configuration."""
    stem = "model.layers.1.linear_attn."
    return [(name, part.removeprefix(stem)) for part in random_weights(CONFIGS[name]) if part.startswith(stem)]


@pytest.mark.parametrize(
    ("which", "part"),
    [*parts_of("tiny"), *parts_of("short convolution with biases"), *parts_of("mamba with one key")],
)
def test_each_weight_matters(which: str, part: str) -> None:
    config = CONFIGS[which]
    weights = random_weights(config)
    expected = reference_logits(config, weights, TOKENS)
    weights[f"model.layers.1.linear_attn.{part}"] *= np.float32(1.25)
    found = SlotSequence(NativeLlamaModel(config, weights, target="float32")).feed(TOKENS)
    assert np.abs(found - expected).max() > 1e-3 * np.abs(expected).max()


# ---- Bits -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pieces", [(1,) * 48, (3, 45), (7, 1, 1, 39), (16, 16, 16), (2, 46)])
def test_a_prompt_in_pieces_has_the_bits_of_one_in_one_piece(model: LoadedModel, pieces: tuple[int, ...]) -> None:
    one, several = SlotSequence(model).feed(TOKENS), SlotSequence(model)
    parts = [
        several.feed(TOKENS[end - count : end]) for count, end in zip(pieces, itertools.accumulate(pieces), strict=True)
    ]
    assert np.array_equal(np.concatenate(parts), one)


@pytest.mark.parametrize("kept", [0, 1, 3])
@pytest.mark.parametrize("accepted", range(8))
def test_a_draft_that_was_dropped_leaves_no_trace(tiny: LoadedModel, whole: Floats, accepted: int, kept: int) -> None:
    """Seven drafted rows behind the kept ones, of which some were right; twice, then plain rows."""
    sequence = SlotSequence(tiny)
    sequence.feed(TOKENS[:5])
    for _ in range(2):
        start = sequence.length
        right = TOKENS[start : start + kept + accepted]
        found = sequence.feed(right + OTHERS[: 7 - accepted], kept)
        assert np.array_equal(found[: len(right)], whole[start : start + len(right)])
        sequence.roll_back(start + len(right))
    rest = sequence.feed(TOKENS[sequence.length :])
    assert np.array_equal(rest, whole[-len(rest) :])


def test_a_state_that_was_rolled_back_one_row_too_few_is_seen(tiny: LoadedModel, whole: Floats) -> None:
    sequence = SlotSequence(tiny)
    sequence.feed(TOKENS[:5])
    sequence.feed(TOKENS[5:8] + OTHERS[:4], 1)
    sequence.roll_back(9)  # one dropped row stays
    positions = list(range(8, 20))
    found = sequence.run(TOKENS[8:20], positions, sequence.span(12))
    assert not np.array_equal(found[0], whole[8])


@pytest.mark.parametrize("count", [1, 4, 9])
def test_nothing_is_settled_where_kept_is_minus_one(tiny: LoadedModel, whole: Floats, count: int) -> None:
    sequence = SlotSequence(tiny, pending=24)
    sequence.feed(TOKENS[:6])
    sequence.feed(TOKENS[6:9], 1)
    before = [host(array).copy() for array in sequence.cache.states.state]  # type: ignore[union-attr]
    for start in range(9, 9 + 2 * count, count):
        found = sequence.feed(TOKENS[start : start + count], -1)
        assert np.array_equal(found, whole[start : start + count])
    after = sequence.cache.states.state  # type: ignore[union-attr]
    assert all(np.array_equal(one, host(other)) for one, other in zip(before, after, strict=True))
    for length in (sequence.length, 9 + count, 8):
        sequence.roll_back(length)
        assert np.array_equal(sequence.feed(TOKENS[length : length + 2], -1), whole[length : length + 2])
    sequence.roll_back(8)
    assert np.array_equal(sequence.feed(TOKENS[8:]), whole[8:])


def test_a_draft_before_anything_else_can_be_dropped(tiny: LoadedModel, whole: Floats) -> None:
    for kept in (0, -1):
        sequence = SlotSequence(tiny)
        for array in sequence.cache.states.state + sequence.cache.states.inputs:  # type: ignore[union-attr]
            array[:] = np.nan  # of an earlier sequence
        sequence.feed(TOKENS[:2] + OTHERS[:3], kept)
        sequence.roll_back(2)
        assert np.array_equal(sequence.feed(TOKENS[2:]), whole[2:])


TREE = [-1, 0, 1, 0, 3, -1, 5, 5, 3, 2, 9, 6, -1, 12]
"""Parents of a tree's nodes."""


def path_of(node: int) -> list[int]:
    return [] if node < 0 else [*path_of(TREE[node]), node]


@pytest.mark.parametrize("chain", [0, 1, 4])
@pytest.mark.parametrize("kept", [0, 1])
@pytest.mark.parametrize("waiting", [0, 2])
def test_a_path_of_a_tree_has_the_bits_of_a_chain(model: LoadedModel, waiting: int, kept: int, chain: int) -> None:
    """``waiting`` rows are pending before the tree."""
    if kept > chain:
        pytest.skip("rows of a tree are never kept")
    drawn = [OTHERS[i] for i in range(len(TREE))]
    assert drawn
    tree = SlotSequence(model, pending=24)
    tree.feed(TOKENS[:9])
    tree.feed(TOKENS[9:12], 3 - waiting)
    found = tree.feed_tree([*TOKENS[12 : 12 + chain], *drawn], TREE, kept, chain)
    for leaf in range(len(TREE)):
        path = path_of(leaf)
        plain = SlotSequence(model).feed([*TOKENS[: 12 + chain], *(drawn[node] for node in path)])
        assert np.array_equal(found[[chain + node for node in path]], plain[12 + chain :])


@pytest.mark.parametrize("leaf", [4, 10, 11, 13])
def test_the_path_of_a_tree_that_is_kept_goes_on(tiny: LoadedModel, leaf: int) -> None:
    drawn = [OTHERS[i] for i in range(len(TREE))]
    tree = SlotSequence(tiny, pending=24)
    tree.feed(TOKENS[:9])
    tree.feed_tree([TOKENS[9], *drawn], TREE, 1, 1)
    path = path_of(leaf)
    tree.cache.keep_path(tree.slot, 10, path)
    rest = tree.feed(TOKENS[10:30])
    plain = SlotSequence(tiny).feed([*TOKENS[:10], *(drawn[node] for node in path), *TOKENS[10:30]])
    assert np.array_equal(rest, plain[-20:])


def test_company_and_threads_change_no_bit(native: NativeLlamaModel) -> None:
    model = native
    alone = SlotSequence(model).feed(TOKENS)
    sets = [name for name in ("portable", "avx2", "avxvnni", "avx512", "neon", "i8mm") if _works(name)]
    assert sets
    for threads, name in itertools.product((1, 2, 3, 4), sets):
        own, model.context = model.context, NativeContext(threads, name)
        try:
            found = _in_company(model)
        finally:
            model.context = own
        assert np.array_equal(found, alone), (threads, name)


@pytest.mark.parametrize(
    "name", ["real heads", *(pytest.param(name, marks=pytest.mark.slow) for name in CONFIGS if name != "real heads")]
)
def test_company_and_threads_change_no_bit_on_torch(name: str) -> None:
    model, before = made(name, "torch"), torch.get_num_threads()
    alone = SlotSequence(model).feed(TOKENS)
    for threads in (1, 3):
        torch.set_num_threads(threads)
        try:
            found = _in_company(model)
        finally:
            torch.set_num_threads(before)
        assert np.array_equal(found, alone), threads


def test_a_slot_can_be_in_a_pass_once(tiny: LoadedModel) -> None:
    cache = tiny.new_cache(CacheSpec(slots=2, max_seq_len=64))
    one, other = SlotSequence(tiny, cache), SlotSequence(tiny, cache)
    first, second = one.span(3), one.span(2)
    twice = ForwardBatch(TOKENS[:5], range(5), (first, second), None)
    with pytest.raises(ValueError, match="out of range"):
        tiny.forward(twice, cache)
    beside = Span(other.slot, 0, 2)
    other.cache.extend(other.slot, 2)
    fresh = SlotSequence(tiny).feed(TOKENS[:3])
    found = tiny.forward(ForwardBatch([*TOKENS[:3], *TOKENS[:2]], [0, 1, 2, 0, 1], (first, beside), None), cache)
    assert np.array_equal(host(found.logits)[:3], fresh)  # the refused pass has changed nothing


def _works(name: str) -> bool:
    return int(native_library().outrider_isa_state(name.encode())) == 1


def _in_company(model: LoadedModel) -> Floats:
    """Logits of TOKENS beside two other sequences, in three passes."""
    cache = model.new_cache(CacheSpec(slots=3, max_seq_len=64, kind="paged", block_size=4))
    sequences = [SlotSequence(model, cache) for _ in range(3)]
    found = []
    for first, last in ((0, 7), (7, 40), (40, 48)):
        spans = [sequences[0].span(5, 2), sequences[1].span(last - first), sequences[2].span(3, 0)]
        tokens = [*OTHERS[:5], *TOKENS[first:last], *OTHERS[5:8]]
        positions = [row for span in spans for row in range(span.start, span.start + span.count)]
        logits = host(model.forward(ForwardBatch(tokens, positions, tuple(spans), None), cache).logits)
        found.append(logits[5:-3])
        for other, length in ((sequences[0], 2), (sequences[2], 0)):
            other.roll_back(other.length - 5 + length if other is sequences[0] else length)
    return np.concatenate(found)
