"""EAGLE's layer in the native library is the layer in torch operations, within rounding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider.cache import CacheSpec
from outrider.drafters.heads.weights import head_shapes
from outrider.drafters.trained.native_eagle import NativeEagle
from outrider.drafters.trained.runner import HeadRunner
from outrider.models.batch import Span
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.context import NativeContext
from outrider.native.library import available_isas, library
from outrider.verify.tree import ancestor_mask, depths
from outrider_torch.drafters.eagle_runner import TorchEagle
from outrider_torch.drafters.torch_target import torch_target
from outrider_torch.heads import head_weights
from outrider_torch.heads.eagle import EagleLayer
from outrider_torch.kernels.native_tensors import as_tensors
from tests import small_models
from tests.torch_drafters import heads
from tests.torch_drafters.heads import random_head

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

PARENTS = (-1, -1, 0, 0, 1, 2)  # a tree behind the second prompt
PROMPTS = (5, 9)
TOLERANCE = {"fp32": 2e-5, "int8": 0.06}  # int8: torch keeps float32 keys, the library bfloat16 ones
OWN: list[dict[str, Any]] = [{}, {"own_lm_head": True}, {"draft_vocab_size": None}, {"window": 3}]
NEW = {"fc_norm": True, "norm_output": True, "window": 4}  # EAGLE-3.1, and a window that ends within the tree


def spec(kind: str) -> CacheSpec:
    return CacheSpec(slots=2, max_seq_len=64, kind=kind, block_size=4, prefix_reuse=False)  # type: ignore[arg-type]


def head_of(kind: str, **changes: Any) -> EagleLayer:
    head = random_head(kind, **changes)
    assert isinstance(head, EagleLayer)
    for i, parameter in enumerate(head.parameters()):  # norms that are all alike could be mixed up
        if parameter.dim() == 1:
            parameter.add_(0.3 * normal(1, len(parameter), seed=100 + i)[0])
    return head


def normal(rows: int, width: int, seed: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(seed))


def native(head: EagleLayer, target: NativeLlamaModel, kind: str) -> NativeEagle:
    return NativeEagle(head_weights(head), target, spec(kind))


def two_passes(runner: HeadRunner, head: EagleLayer) -> list[Tensor]:
    """Two prompts in one pass, of which some rows are scored; then a tree behind one and a row behind the other."""
    slots = [runner.cache.allocate() for _ in PROMPTS]
    rows, d = sum(PROMPTS), head.config.hidden_size
    for slot, count in zip(slots, PROMPTS, strict=True):
        runner.cache.extend(slot, count)
    arrays = isinstance(runner, NativeEagle)

    def given(x: Tensor) -> Any:
        return x.numpy() if arrays else x

    features = runner.fuse(given(normal(rows, d * max(1, len(head.config.feature_layers)), seed=1)))
    spans = [Span(slot, 0, count) for slot, count in zip(slots, PROMPTS, strict=True)]
    positions = [p for count in PROMPTS for p in range(count)]
    first = runner.run(features, small_models.ids(rows, seed=2), positions, spans, [4, rows - 1])
    runner.cache.extend(slots[0], 1)
    runner.cache.extend(slots[1], len(PARENTS))
    spans = [Span(slots[0], 5, 1), Span(slots[1], 9, len(PARENTS), ancestor_mask(PARENTS))]
    positions = [5, *(9 + depth for depth in depths(PARENTS))]
    count = len(positions)
    added = given(normal(count, d, seed=5))
    second = runner.run(
        given(normal(count, d, seed=3)), small_models.ids(count, seed=4), positions, spans, range(count), added
    )
    return [as_tensors(x) for x in (features, *first, *second)]


@pytest.mark.parametrize("cache", ["contiguous", "paged"])
@pytest.mark.parametrize("own", OWN, ids=str)
@pytest.mark.parametrize("precision", ["fp32", "int8"])
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "dflash"])
@torch.inference_mode()
def test_native_is_torch(kind: str, precision: str, own: dict[str, Any], cache: str) -> None:
    check_native(head_of(kind, **own), precision, cache)


@pytest.mark.parametrize("precision", ["fp32", "int8"])
@torch.inference_mode()
def test_native_eagle31_is_torch(precision: str) -> None:
    head = head_of("eagle3", **NEW)
    check_native(head, precision, "paged")
    old, new = (native(head_of("eagle3", **own), target_of("fp32"), "paged") for own in ({}, NEW))
    assert all(
        not small_models.identical(a, b) for a, b in zip(two_passes(old, head), two_passes(new, head), strict=True)
    )


def target_of(precision: str) -> NativeLlamaModel:
    target = small_models.llama(precision, tie_embeddings=False, max_seq_len=64)
    assert isinstance(target, NativeLlamaModel)
    return target


def check_native(head: EagleLayer, precision: str, cache: str) -> None:
    """Outputs and logits of both passes."""
    target = target_of(precision)
    runner = native(head, target, cache)
    reference = TorchEagle(head, torch_target(target), spec(cache))
    assert (runner.vocabulary is None) == (reference.vocabulary is None)
    for ours, theirs in zip(two_passes(runner, head), two_passes(reference, head), strict=True):
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE[precision] * float(theirs.abs().max()), rtol=0)


@pytest.mark.parametrize(("kind", "own"), [("eagle", {}), ("eagle3", {}), ("eagle3", NEW)], ids=str)
@torch.inference_mode()
def test_bits_do_not_depend_on_threads_or_instruction_set(kind: str, own: dict[str, Any]) -> None:
    functions, first = library(), list[Tensor]()
    assert functions is not None
    target, head = target_of("int8"), head_of(kind, **own)
    for name in available_isas(functions):
        for count in (1, 3):
            runner = native(head, target, "contiguous")
            runner.context = NativeContext(count, name)
            found = two_passes(runner, head)
            first = first or found
            assert all(small_models.identical(a, b) for a, b in zip(found, first, strict=True)), (name, count)


@pytest.mark.parametrize(
    ("token", "position", "error"), [(64, 0, IndexError), (1, 64, ValueError), (1, -1, ValueError)]
)
@torch.inference_mode()
def test_what_is_out_of_range_is_refused(token: int, position: int, error: type[Exception]) -> None:
    target = target_of("fp32")
    runner = native(head_of("eagle3"), target, "contiguous")
    slot = runner.cache.allocate()
    runner.cache.extend(slot, 1)
    with pytest.raises(error, match=r"out of range|are not all rows"):
        runner.run(np.zeros((1, target.config.hidden_size), np.float32), [token], [position], [Span(slot, 0, 1)], [0])


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_the_library_runs_the_layers_where_it_runs_the_target(kind: str) -> None:
    for target, native_too in ((small_models.llama("int8"), True), (small_models.torch_llama(), False)):
        drafter: Any = heads.drafter(head_of(kind), target, target.new_cache(spec("contiguous")))
        assert isinstance(drafter.runner, NativeEagle if native_too else TorchEagle)


@pytest.mark.parametrize("own", [*OWN, NEW, {"norm_before_fc": True, "norm_before_residual": True}], ids=str)
@pytest.mark.parametrize("kind", ["eagle", "eagle3", "dflash"])
def test_a_configuration_asks_for_the_tensors_of_the_network(kind: str, own: dict[str, Any]) -> None:
    known = {name: change for name, change in own.items() if kind == "eagle3" or name in ("own_lm_head", "window")}
    head = head_of(kind, **known)
    assert head_shapes(head.config) == {name: tuple(value.shape) for name, value in head.state_dict().items()}
