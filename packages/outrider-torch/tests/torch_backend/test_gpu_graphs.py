"""On a CUDA device: captured runs give what uncaptured ones give, in bounded memory."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec
from outrider.cache.pool import Pool
from outrider.cache.protocol import CacheKind, KVCache
from outrider.config import ModelOptions, SamplingParams
from outrider.models.batch import ForwardOutput
from outrider.verify.arrays import Floats
from outrider.weights.loader import load_model
from outrider_torch.cuda_graphs.buckets import Bucket, Grid
from outrider_torch.cuda_graphs.graphs import CudaCapture, CudaGraphRunner
from outrider_torch.models.llama import LlamaModel
from tests import small_models
from tests.model_folders import model_folder
from tests.small_engines import engine, request, run

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
]

CONFIG = small_models.config(max_seq_len=600)
PARENTS = ((-1, 0), (-1, 0, 1, 2), (-1, -1, 0, 0), (-1, -1, 0, 0, 1, 1, 2))


def on_cuda(fixed_shapes: bool | None) -> LlamaModel:
    return LlamaModel(
        CONFIG, small_models.tensors(CONFIG), dtype=torch.float32, device="cuda", fixed_shapes=fixed_shapes
    )


def runs_of(model: LlamaModel) -> CudaGraphRunner:
    assert model._fixed is not None
    return model._fixed


def opened(model: LlamaModel, kind: CacheKind, slots: int = 4) -> tuple[KVCache, list[int]]:
    cache = model.new_cache(CacheSpec(slots=slots, max_seq_len=CONFIG.max_seq_len, kind=kind))
    taken = [cache.allocate() for _ in range(slots)]
    small_models.feed(model, cache, *((slot, small_models.ids(40 + slot, seed=slot)) for slot in taken))
    return cache, taken


def decode(model: LlamaModel, cache: KVCache, slots: Sequence[int], parents: Sequence[int], seed: int) -> list[Floats]:
    """The same tree below every slot, fed and forgotten."""
    before = [cache.length(slot) for slot in slots]
    work = [(slot, small_models.ids(len(parents), seed=seed + slot)) for slot in slots]
    logits = small_models.feed(model, cache, *work, parents=parents)
    for slot, length in zip(slots, before, strict=True):
        cache.truncate_to(slot, length)
    return logits


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_replays_agree_with_uncaptured_runs(kind: CacheKind) -> None:
    plain, model, rng = on_cuda(False), on_cuda(None), random.Random(0)
    (theirs, slots), (ours, _) = opened(plain, kind), opened(model, kind)
    for seed in range(60):
        chosen, parents = rng.sample(slots, rng.randint(1, 4)), rng.choice(PARENTS)
        found, wanted = (decode(m, c, chosen, parents, seed) for m, c in ((model, ours), (plain, theirs)))
        for a, b in zip(found, wanted, strict=True):
            assert np.allclose(a, b, atol=1e-4)
    assert not runs_of(model).failed
    assert len(runs_of(model).captured(ours)) >= 6


def test_the_same_bucket_gives_the_same_bits() -> None:
    model = on_cuda(None)
    cache, slots = opened(model, "contiguous")
    first, *others = (decode(model, cache, slots, PARENTS[1], seed=1) for _ in range(4))
    assert len(runs_of(model).captured(cache)) == 1
    for other in others[1:]:  # the first run was not captured
        assert all(small_models.identical(a, b) for a, b in zip(others[0], other, strict=True))
    assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(first, others[0], strict=True))


def test_memory_of_graphs_is_bounded() -> None:
    model = on_cuda(False)
    runs = model._fixed = CudaGraphRunner(model._on_grid, model.device, CudaCapture(model.device), limit=4)
    cache, slots = opened(model, "contiguous")
    reserved = []
    for _ in range(6):
        for count in range(1, 5):
            for parents in PARENTS:
                for seed in range(2):
                    decode(model, cache, slots[:count], parents, seed)
        reserved.append(torch.cuda.memory_reserved())
    assert not runs.failed
    assert len(runs.captured(cache)) <= 4
    assert reserved[-1] <= reserved[1] + (32 << 20)  # 60 more captures: one segment each would be 120 MiB


def test_graphs_of_a_new_cache_after_all_others_are_gone() -> None:
    model = on_cuda(None)
    for _ in range(3):
        cache, slots = opened(model, "contiguous")
        parts = [decode(model, cache, slots, PARENTS[0], seed=3)[0] for _ in range(3)]
        assert all(np.allclose(part, parts[0], atol=1e-4) for part in parts)
        assert len(runs_of(model).captured(cache)) == 1
        del cache
    assert not runs_of(model).failed


def test_what_cannot_be_captured_runs_as_ever() -> None:
    plain, model = on_cuda(False), on_cuda(False)

    def looks(grid: Grid, bucket: Bucket, pool: Pool) -> ForwardOutput:
        assert int(grid.tokens.sum().item()) >= 0  # waits for the device, which a capture may not
        return model._on_grid(grid, bucket, pool)

    model._fixed = CudaGraphRunner(looks, model.device, CudaCapture(model.device))
    (theirs, slots), (ours, _) = opened(plain, "paged"), opened(model, "paged")
    for seed in range(4):
        found, wanted = (decode(m, c, slots, PARENTS[2], seed) for m, c in ((model, ours), (plain, theirs)))
        assert all(np.allclose(a, b, atol=1e-4) for a, b in zip(found, wanted, strict=True))
    assert model._fixed.failed
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_an_engine_on_graphs_generates_the_same(kind: CacheKind) -> None:
    found = []
    for fixed_shapes in (False, None):
        model = on_cuda(fixed_shapes)
        served = engine(model, slots=4, kind=kind)
        asked = [
            request(small_models.ids(9 + i, seed=i) * 2, SamplingParams(max_tokens=30), id=str(i), draft=draft)
            for i, draft in enumerate(("none", "ngram", "model", "layer_skip", "lookahead"))
        ]
        run(served, *asked)
        assert [r.stats.draft_error for r in asked] == [None] * len(asked)
        found.append([list(r.output) for r in asked])
    assert found[0] == found[1]
    assert runs_of(model).captured(served.cache)


def test_they_can_be_done_without(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    kept, without = (load_model(folder, ModelOptions(device="cuda", cuda_graphs=on)) for on in (True, False))
    assert isinstance(kept, LlamaModel)
    assert isinstance(without, LlamaModel)
    assert kept._fixed is not None
    assert without._fixed is None
