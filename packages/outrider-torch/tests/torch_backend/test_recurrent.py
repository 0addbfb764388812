"""Recurrent layers on torch beyond ``tests/hybrid``: quantised files, traffic with drafts, and states that leave it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec
from outrider.models.config import Recurrence
from outrider.models.factory import make_model
from outrider.weights.gguf.reader import open_gguf
from outrider_torch.models.stored import StoredTensors
from tests import small_models
from tests.hybrid.reference import random_weights, tiny_config
from tests.hybrid.sequence import SlotSequence
from tests.hybrid_traffic import native, rolled_back_one_row_too_few, short_texts
from tests.weights.hybrids import CASES, build, converted, save, write_gguf


@pytest.mark.parametrize("arch", CASES)
def test_quantised_files_run_on_torch(arch: str, tmp_path: Path) -> None:
    """Floats of recurrent layers stay float32: rounded to bfloat16, decays would differ more."""
    theirs, tokens = build(arch), small_models.ids(60, 277)
    write_gguf(tmp_path / "m.gguf", arch, converted(arch, save(theirs, tmp_path)), kind="Q8_0")
    found = open_gguf(tmp_path / "m.gguf")
    model = make_model(found.config, found.stored, dtype="float32", implementation="torch", quantised=True)
    cache = model.new_cache(CacheSpec(max_seq_len=128))
    ours = small_models.feed(model, cache, (cache.allocate(), tokens))[0]
    with torch.inference_mode():
        wanted = theirs(torch.tensor([tokens])).logits[0].numpy()
    assert np.linalg.norm(ours - wanted) < 0.05 * np.linalg.norm(wanted)
    decay = "model.layers.1.linear_attn.decay"
    assert torch.equal(
        StoredTensors(found.stored, quantised=True)[decay], torch.from_numpy(found.stored[decay].numbers())
    )


def traffic_differs(seed: int, count: int, kind: Recurrence = "delta") -> int:
    """Requests of random traffic that get other tokens than by themselves, without drafts."""
    with short_texts():
        traffic = native("float32", kind, "torch")
        served = traffic.serve(seed, count, slots=4, kind="paged", tokens=256, block_size=4, checkpoints=20)
        return sum(traffic.differs(each) != "" for each in served)


def test_drafts_and_trees_change_no_token() -> None:
    assert traffic_differs(3, 4) == 0


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["delta", "short", "mamba2"])
def test_random_traffic_gives_each_request_its_own_tokens(kind: Recurrence) -> None:
    assert [traffic_differs(seed, 24, kind) for seed in range(2)] == [0, 0]
    with rolled_back_one_row_too_few():
        assert traffic_differs(1, 24, kind) > 4


def test_a_state_can_leave_the_device_and_come_back() -> None:
    config = tiny_config()
    model = make_model(config, random_weights(config), dtype="float32", implementation="torch")
    first, second = SlotSequence(model), SlotSequence(model)
    first.feed([5, 9, 30, 7, 7, 61])
    states = first.cache.states
    assert states is not None
    taken = states.state_of(first.slot)
    assert [(each.shape, each.dtype) for each in taken] == states.state_shapes
    expected = first.feed([8, 3])
    second.feed([1, 2, 3, 4, 5, 6])
    assert second.cache.states is not None
    second.cache.states.load_state(second.slot, taken, 6)
    for layer in range(len(first.cache.pool.k)):
        second.cache.pool.write(layer, slice(0, 6), *first.cache.pool.read(layer, slice(0, 6)))
    assert np.array_equal(second.feed([8, 3]), expected)
