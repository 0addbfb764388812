"""Captured runs: when, how many, what becomes of their results, and what if it fails; on tapes."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec
from outrider.cache.protocol import KVCache
from outrider.config import SamplingParams
from outrider.engine.request import Request
from outrider.models.batch import ForwardOutput
from outrider.verify.arrays import Floats
from outrider_torch.cuda_graphs.graphs import CudaGraphRunner
from outrider_torch.models.llama import LlamaModel
from tests import small_models
from tests.models.tape import TapeCapture
from tests.small_engines import engine, request, run

SPEC = CacheSpec(slots=4, max_seq_len=128)


def fixed(capture: Any, **limits: int) -> tuple[LlamaModel, CudaGraphRunner]:
    model = small_models.torch_llama()
    model._fixed = CudaGraphRunner(model._on_grid, model.device, capture, **limits)
    return model, model._fixed


def decode(model: LlamaModel, cache: KVCache, tokens: list[int], slot: int = 0) -> Floats:
    """Feed and forget."""
    length = cache.length(slot)
    logits = small_models.feed(model, cache, (slot, tokens))[0]
    cache.truncate_to(slot, length)
    return logits


def opened(model: LlamaModel) -> KVCache:
    cache = model.new_cache(SPEC)
    small_models.feed(model, cache, (cache.allocate(), small_models.ids(50)))
    return cache


def test_the_second_run_is_captured_and_others_are_replayed() -> None:
    capture = TapeCapture()
    model, runs = fixed(capture)
    cache = opened(model)
    seen = [(decode(model, cache, [t]), len(capture.tapes), len(runs.captured(cache))) for t in (3, 3, 3, 5)]
    assert [(tapes, graphs) for _, tapes, graphs in seen] == [(0, 0), (1, 1), (1, 1), (1, 1)]
    assert capture.tapes[0].replays == 3
    assert small_models.identical(seen[0][0], seen[1][0])
    assert small_models.identical(seen[0][0], seen[2][0])  # nor has the last replay written over it
    assert not np.allclose(seen[0][0], seen[3][0])


def test_no_more_than_so_many_shapes_are_kept() -> None:
    capture = TapeCapture()
    model, runs = fixed(capture, limit=2)
    cache = opened(model)
    for count in (1, 1, 2, 2, 1, 4, 4):
        decode(model, cache, [7] * count)
    assert [bucket.rows for bucket in runs.captured(cache)] == [1, 4]
    assert len(capture.tapes) == 3
    decode(model, cache, [7] * 2)
    assert [bucket.rows for bucket in runs.captured(cache)] == [4]


def test_every_cache_has_its_own_and_takes_them_along() -> None:
    model, runs = fixed(TapeCapture())
    caches = [opened(model) for _ in range(2)]
    for cache in caches:
        for token in (3, 3, 4):
            expected = decode(small_models.torch_llama(), opened(small_models.torch_llama()), [token])
            assert np.allclose(decode(model, cache, [token]), expected, atol=1e-4)
    assert [len(runs.captured(cache)) for cache in caches] == [1, 1]
    gone = weakref.ref(caches.pop())
    runs._shapes[gone()].clear()  # type: ignore[index]  # tapes hold tensors of the cache, which graphs do not
    del cache
    gc.collect()
    assert gone() is None
    assert len(runs._shapes) == 1


class Failing:
    """Fails half-way, as a device does that runs out of memory."""

    def __init__(self) -> None:
        self.tries = 0

    def __call__(self, run: Any) -> tuple[Any, ForwardOutput]:
        self.tries += 1
        run()
        raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore of it")


def test_a_capture_that_fails_is_said_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    capture, plain = Failing(), small_models.torch_llama()
    model, runs = fixed(capture)
    ours, theirs = opened(model), opened(plain)
    decode(model, ours, [3])
    with caplog.at_level(logging.WARNING, "outrider"):
        for tokens in ([3], [4], [5, 6], [5, 6]):
            assert small_models.identical(decode(model, ours, tokens), decode(plain, theirs, tokens))
    assert capture.tries == 1
    assert runs.failed
    assert not runs._shapes
    assert [record.getMessage().count("\n") for record in caplog.records] == [0]
    assert "operation not permitted when stream is capturing" in caplog.text


def test_a_cpu_has_no_use_for_them_unless_asked() -> None:
    assert small_models.torch_llama()._fixed is None
    c = small_models.config()
    asked = LlamaModel(c, small_models.tensors(c), dtype=torch.float32, fixed_shapes=True)
    cache = opened(asked)
    wanted = decode(small_models.torch_llama(), opened(small_models.torch_llama()), [3])
    for _ in range(3):
        assert np.allclose(decode(asked, cache, [3]), wanted, atol=1e-4)
    assert asked._fixed is not None
    assert asked._fixed.captured(cache) == []


CONFIG = small_models.config(tie_embeddings=False, max_seq_len=256)
WEIGHTS = small_models.tensors(CONFIG)
WEIGHTS["lm_head.weight"] *= 3  # as sure of itself as a trained model is
NOISE = small_models.tensors(CONFIG, seed=9)
SMALL = {name: 0.92 * w + 0.08 * NOISE[name] for name, w in WEIGHTS.items()}

SPECULATION: list[dict[str, Any]] = [
    {"draft": "none"},
    {"draft": "ngram"},
    {"draft": "lookup", "spec_length": 8},
    {"draft": "model", "spec_length": 3},
    {"draft": "model", "tree": "2,2,1"},
    {"draft": "layer_skip"},
    {"draft": "lookahead"},
    {"draft": "hierarchical"},
    {"draft": "models", "tree": "3,1"},
]


def requests() -> list[Request]:
    return [
        request(
            small_models.ids(5 + 9 * i, seed=i) * 2,
            SamplingParams(max_tokens=30, temperature=float(i % 2), seed=i),
            id=str(i),
            **speculation,
        )
        for i, speculation in enumerate(SPECULATION)
    ]


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_an_engine_on_them_generates_the_same(kind: str) -> None:
    """Everything at once: chains, trees, early exit, roll-back, two models with a cache each."""
    found = []
    captures = [TapeCapture(), TapeCapture()]
    for captured in (False, True):
        models = [LlamaModel(CONFIG, weights, dtype=torch.float32) for weights in (WEIGHTS, SMALL)]
        for model, capture in zip(models, captures, strict=True):
            if captured:
                model._fixed = CudaGraphRunner(model._on_grid, model.device, capture)
        asked = requests()
        run(engine(models[0], draft=models[1], slots=4, kind=kind), *asked)
        assert [r.stats.draft_error for r in asked] == [None] * len(asked)
        found.append([list(r.output) for r in asked])
    assert found[0] == found[1]
    assert all(sum(tape.replays for tape in capture.tapes) > 20 for capture in captures)


def test_hundreds_of_requests_that_come_and_go_stay_in_fixed_shapes() -> None:
    """While most decode, others read their prompts beside them."""
    found = []
    for captured in (False, True):
        model = LlamaModel(CONFIG, WEIGHTS, dtype=torch.float32)
        if captured:
            model._fixed = CudaGraphRunner(model._on_grid, model.device)
        asked = [
            request(
                small_models.ids(4 + i * 7 % 60, seed=i),
                SamplingParams(max_tokens=5 + i % 2, temperature=float(i % 2), seed=i),
                id=str(i),
                draft="none",
            )
            for i in range(80)
        ]
        served = engine(model, slots=75, kind="paged", max_batched_tokens=2000)
        run(served, *asked)
        found.append([list(r.output) for r in asked])
    assert found[0] == found[1]
    assert model._fixed is not None
    shapes = model._fixed._shapes[served.cache]
    assert {bucket.rows == 1 for bucket in shapes if bucket.sequences > 64} == {True}
    assert any(bucket.rows >= 32 for bucket in shapes)  # prompts, apart from those
