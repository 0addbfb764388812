"""A model that several processes run gives the bits of one process, in every family and precision."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from outrider.cache import CacheSpec, KVCache
from outrider.config import ModelOptions
from outrider.errors import ConfigError
from outrider.models.base import LoadedModel
from outrider.models.batch import ForwardBatch, Span
from outrider.models.shard import check_size
from outrider.native.library import library
from outrider.native.weights import pack_array
from outrider.verify.arrays import Floats
from outrider.weights.loader import load_model
from outrider_fleet.parallel.load import ParallelGroup
from tests import small_models
from tests.arrays import randn
from tests.families import MEMBERS, VOCAB, build, config_of

pytestmark = pytest.mark.skipif(library() is None, reason="needs the native library")

TOKENS = small_models.ids(200, VOCAB)
DTYPES = {"bf16": "bfloat16", "q8": "q8_0", "q4": "q4_1", "fp32": "float32"}
QUICK = [
    *(("phi4-mini", "bf16"), ("gemma2", "q8"), ("gemma2", "fp32"), ("olmo2", "q8"), ("starcoder2", "q4")),
    *(("glm4", "q4"), ("mixtral", "q8"), ("granite", "bf16")),
]
"""Tied and separate LM heads, caps, a norm over all heads, biases, shares that cut groups of 32, experts."""


class Groups:
    """Processes for all tests, as each takes seconds to start."""

    def __init__(self) -> None:
        self._started: dict[int, ParallelGroup] = {}

    def __getitem__(self, size: int) -> ParallelGroup:
        if size not in self._started:
            self._started[size] = ParallelGroup(size, threads=1)
        return self._started[size]

    def close(self) -> None:
        for group in self._started.values():
            group.close()


@pytest.fixture(scope="module")
def groups() -> Iterator[Groups]:
    with closing(Groups()) as started:
        yield started


WHOLE = ("qwen2-moe", "glm4-moe", "dots1", "ernie4-5-moe", "hunyuan-moe", "llama4")
"""Members with an expert of all tokens, which are not split."""
SMALL = ("qwen3-moe", "olmoe", "granite-moe", "minimax-m2")
"""Members whose experts are too small for four processes."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {name: tmp_path_factory.mktemp(name) / "model" for name in MEMBERS}


def folder_of(folders: dict[str, Path], member: str) -> Path:
    if not folders[member].exists():
        build(member).save_pretrained(folders[member])
    return folders[member]


def program(model: LoadedModel, spec: CacheSpec) -> list[Floats]:
    """What the passes of two sequences give: prompts in pieces, trees that are rolled back, a slot used again."""
    kv = model.new_cache(spec)
    first = kv.allocate(TOKENS[:40])
    found = small_models.feed(model, kv, (first, TOKENS[:33]))
    kv.publish_prefix(first, TOKENS[:33])
    second = kv.allocate(TOKENS[:40])  # of a paged cache: with the first one's blocks
    found += small_models.feed(model, kv, (first, TOKENS[33:40]), (second, TOKENS[kv.length(second) : 40]))
    found += tree(model, kv, first, keep=(0, 2, 4))
    found += tree(model, kv, second, keep=())
    found += small_models.feed(model, kv, (second, TOKENS[60:63]), (first, TOKENS[50:51]))
    kv.zero(first)
    kv.truncate_to(first, 0)
    found += small_models.feed(model, kv, (first, TOKENS[70:75]))
    kv.free(first)
    third = kv.allocate(TOKENS[:20])
    found += small_models.feed(model, kv, (third, TOKENS[80:82]))
    return found + more(model, kv, third)


def tree(model: LoadedModel, kv: KVCache, slot: int, keep: tuple[int, ...]) -> list[Floats]:
    base = kv.length(slot)
    found = small_models.feed(model, kv, (slot, TOKENS[90:96]), parents=(-1, -1, 0, 0, 2, 1))
    kv.keep_path(slot, base, keep)
    return found


def more(model: LoadedModel, kv: KVCache, slot: int) -> list[Floats]:
    """What heads read, and a pass of some layers."""
    at = kv.length(slot)
    kv.extend(slot, 3)
    span, positions = (Span(slot, at, 3),), range(at, at + 3)
    deep = model.forward(ForwardBatch(TOKENS[:3], positions, span, (2, 0), features=(0, 1, 2)), kv)
    early = model.forward(ForwardBatch(TOKENS[:3], positions, span, (1,), layers=1), kv)
    nothing = model.forward(ForwardBatch(TOKENS[:3], positions, span, ()), kv)
    assert deep.features is not None
    assert len(nothing.logits) == 0
    hidden = model.final_norm(model.embed(np.array(TOKENS[:4])))
    own = [model.compute_logits(hidden), model.lm_head_rows(np.array([0, VOCAB - 1]))]
    return [deep.logits, deep.hidden, deep.features, early.logits, early.hidden, *own]


def check_same_bits(one: LoadedModel, many: LoadedModel, spec: CacheSpec) -> None:
    wanted, found = program(one, spec), program(many, spec)
    assert len(wanted) == len(found)
    for i, (a, b) in enumerate(zip(wanted, found, strict=True)):
        assert small_models.identical(a, b), i


@pytest.mark.parametrize(("member", "dtype"), QUICK)
def test_of_four_processes(member: str, dtype: str, groups: Groups, folders: dict[str, Path]) -> None:
    """Two of which have no head, as there are two key heads; ``test_engine`` runs two processes."""
    folder = folder_of(folders, member)
    options = ModelOptions(dtype=DTYPES[dtype], kv_cache_dtype="int8" if dtype == "q4" else "auto")  # type: ignore[arg-type]
    one = load_model(folder, options)
    kind = "paged" if dtype in ("q8", "fp32") else "contiguous"
    spec = CacheSpec(slots=2, max_seq_len=128, kind=kind)  # type: ignore[arg-type]
    many = groups[4].load(folder, options)
    assert many.weight_bytes < one.weight_bytes
    check_same_bits(one, many, spec)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("member", [name for name in MEMBERS if name not in WHOLE])
def test_of_all_families(member: str, dtype: str, kind: str, groups: Groups, folders: dict[str, Path]) -> None:
    folder = folder_of(folders, member)
    for cache in ("auto", "int8"):
        options = ModelOptions(dtype=DTYPES[dtype], kv_cache_dtype=cache)  # type: ignore[arg-type]
        one, spec = load_model(folder, options), CacheSpec(slots=2, max_seq_len=128, kind=kind)  # type: ignore[arg-type]
        for size in (2,) if member in SMALL else (2, 4):
            check_same_bits(one, groups[size].load(folder, options), spec)


@pytest.mark.parametrize("target", ["bfloat16", "q8_0", "q4_1"])
def test_partial_sums_would_be_seen(target: str) -> None:
    """The other way to split a layer, by its inputs: sums of floats are then in another order, and bits differ."""
    weight, x = randn(64, 256, seed=0), randn(8, 256, seed=1)
    whole = pack_array(weight, target)(x)  # type: ignore[arg-type]
    halves = [pack_array(weight[:, part], target)(x[:, part]) for part in (slice(0, 128), slice(128, 256))]  # type: ignore[arg-type]
    by_rows = [pack_array(weight[part], target)(x) for part in (slice(0, 48), slice(48, 64))]  # type: ignore[arg-type]
    assert small_models.identical(np.concatenate(by_rows, 1), whole)
    assert np.allclose(halves[0] + halves[1], whole, atol=1e-3)
    assert not small_models.identical(halves[0] + halves[1], whole)


@pytest.mark.parametrize("member", WHOLE)
def test_a_model_with_an_expert_of_all_tokens_is_not_split(member: str) -> None:
    with pytest.raises(ConfigError, match="cannot be split"):
        check_size(config_of(member), 2)
