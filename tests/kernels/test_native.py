"""The native backend computes what torch's operations compute, to the last bit where rounding leaves no choice."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache import CacheSpec
from outrider.kernels.backends import Dimensions, NativeBackend, TorchBackend, make_backend
from outrider.kernels.linear.brgemm_linear import BrgemmLinear, supports_brgemm
from outrider.kernels.linear.linear import PackedLinear
from outrider.kernels.native import build, native_library
from outrider.kernels.norm import RMSNorm
from outrider.models.hooks import with_hooks
from outrider.models.llama import LlamaModel
from tests import tiny

needs_compiler = pytest.mark.skipif(native_library() is None, reason="no C compiler")
needs_tiles = pytest.mark.skipif(
    not supports_brgemm(torch.empty(64, 64, dtype=torch.bfloat16)), reason="no matrix tiles"
)
SIZES = Dimensions(heads=6, kv_heads=2, head_dim=32)
ODD = [float("nan"), float("inf"), float("-inf"), 0.0, -0.0, 1e-40, 3e38, -3e38]


def native() -> NativeBackend:
    backend = make_backend(SIZES, torch.bfloat16, torch.device("cpu"))
    assert isinstance(backend, NativeBackend)
    return backend


def rows(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).bfloat16()


def same(a: Tensor, b: Tensor) -> bool:
    """Bit for bit, except that all NaN are one."""
    return torch.equal(a.isnan(), b.isnan()) and torch.equal(
        a[~a.isnan()].view(torch.int16), b[~b.isnan()].view(torch.int16)
    )


@needs_compiler
@pytest.mark.parametrize("width", [1, 7, 72, 576])
@pytest.mark.parametrize("n", [1, 3, 90])
def test_gates_and_sums_are_torchs_to_the_last_bit(n: int, width: int) -> None:
    x, y = rows(n, 2 * width), rows(n, width, seed=1)
    x.view(-1)[: len(ODD)] = torch.tensor(ODD).bfloat16()[: x.numel()]
    gate, up = x.chunk(2, dim=-1)
    assert same(native().silu_mul(x), F.silu(gate) * up)
    total, _ = native().add_rmsnorm(gate.contiguous(), y, RMSNorm(torch.ones(width).bfloat16(), 1e-5))
    assert same(total, gate + y)


@needs_compiler
@pytest.mark.parametrize("width", [5, 72, 576])
def test_norms_are_exact_but_for_one_rounding(width: int) -> None:
    x, weight = 30 * rows(40, width), rows(width, seed=2)
    total, out = native().add_rmsnorm(x, None, RMSNorm(weight, 1e-5))
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    assert total is x
    assert torch.allclose(out.double(), exact, rtol=2**-8, atol=0)


@needs_tiles
@pytest.mark.parametrize(("out_features", "in_features"), [(64, 64), (192, 576), (128, 30), (3072, 576), (576, 1536)])
@pytest.mark.parametrize("bias", [False, True])
def test_blocks_give_a_row_the_same_bits_in_any_company(out_features: int, in_features: int, bias: bool) -> None:
    weight, x = rows(out_features, in_features) / in_features**0.5, rows(700, in_features, seed=1)
    added = rows(out_features, seed=2) if bias else None
    layer = BrgemmLinear(weight, added)
    whole = layer(x)
    exact = x.double() @ weight.double().T + (0 if added is None else added.double())
    assert torch.allclose(whole.double(), exact, rtol=2**-7, atol=2**-12)
    for n in (1, 2, 3, 16, 17, 127, 128, 129, 256, 257, 511):
        assert torch.equal(layer(x[:n]), whole[:n])
    assert torch.equal(layer(x[::2]), whole[::2])  # not contiguous


@needs_tiles
def test_blocks_and_packed_layers_agree_where_both_suit() -> None:
    weight, x = rows(192, 576) / 24, rows(16, 576, seed=1)
    assert torch.allclose(
        BrgemmLinear(weight, None)(x).float(), PackedLinear(weight, None)(x).float(), rtol=2**-7, atol=1e-3
    )


FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {"hidden_size": 192, "num_heads": 6, "num_kv_heads": 2, "head_dim": 32},
    "one key head": {"hidden_size": 128, "num_heads": 4, "num_kv_heads": 1, "head_dim": 32},
    "no tiles": {"hidden_size": 48, "num_heads": 6, "num_kv_heads": 2, "head_dim": 8},
    "mistral": {
        "family": "mistral",
        "hidden_size": 192,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 32,
        "sliding_window": 40,
    },
    "qwen2": {
        "family": "qwen2",
        "hidden_size": 192,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 32,
        "attention_bias": True,
    },
    "qwen3": {
        "family": "qwen3",
        "hidden_size": 192,
        "num_heads": 6,
        "num_kv_heads": 2,
        "head_dim": 32,
        "qk_norm": True,
    },
}


@needs_compiler
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("family", FAMILIES)
def test_models_compute_what_torch_operations_compute(family: str, kind: Any) -> None:
    """A prompt that crosses two blocks of keys, single tokens, and trees of two sequences in one run."""
    model = tiny.llama(max_seq_len=700, **FAMILIES[family])
    exact = LlamaModel(model.config, tiny.tensors(model.config), dtype=torch.float32)
    by_torch = LlamaModel(model.config, tiny.tensors(model.config), dtype=torch.bfloat16)
    by_torch._backend = TorchBackend(by_torch._dimensions)
    logits = [_through(each, kind) for each in (model, by_torch, exact)]
    errors = [(each.float() - logits[-1]).abs().mean() for each in logits[:2]]
    assert isinstance(model._backend, NativeBackend)
    assert errors[0] < 1.2 * errors[1]


def _through(model: LlamaModel, kind: Any) -> Tensor:
    kv = model.new_cache(CacheSpec(slots=2, max_seq_len=700, kind=kind))
    one, two = kv.allocate(), kv.allocate()
    parts = tiny.feed(model, kv, (one, tiny.ids(530)), (two, tiny.ids(20, seed=2)))
    parts += tiny.feed(model, kv, (one, [3]))
    parts += tiny.feed(
        model, kv, (one, tiny.ids(9, seed=3)), (two, tiny.ids(9, seed=4)), parents=[-1, 0, 0, 1, 1, 2, -1, 6, 7]
    )
    odd = [-1, 0, 0, *range(1, 19)]  # 21 rows, which are padded to 22
    parts += tiny.feed(model, kv, (two, tiny.ids(len(odd), seed=5)), parents=odd)
    return torch.cat(parts)


def test_without_a_compiler_torch_computes(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.delenv(build.SWITCH, raising=False)
    monkeypatch.setenv("CC", "/bin/false")
    with caplog.at_level(logging.WARNING):
        assert build._library.__wrapped__() is None
    assert "cannot compile" in caplog.text
    monkeypatch.setenv(build.SWITCH, "0")
    assert build._library.__wrapped__() is None


@needs_tiles
def test_products_that_abort_are_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Held to processors without tiles, torch refuses them by an exception that no C code can catch."""
    kernel, torch_cpu = build._library(), Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    assert kernel is not None
    copy = Path(shutil.copy(kernel, tmp_path / "kernels.so"))
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX512_CORE")
    assert not build._works(copy, torch_cpu)
    assert (tmp_path / "kernels.tiles").read_text() == "no"
    monkeypatch.delenv("ONEDNN_MAX_CPU_ISA")
    assert not build._works(copy, torch_cpu)  # asked once
    (tmp_path / "kernels.tiles").unlink()
    assert build._works(copy, torch_cpu)


def test_other_dtypes_are_for_torch() -> None:
    assert isinstance(make_backend(SIZES, torch.float32, torch.device("cpu")), TorchBackend)


@needs_tiles
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("family", ["llama", "one key head", "mistral", "qwen2", "qwen3"])
def test_a_layer_as_a_whole_is_its_parts(family: str, kind: Any) -> None:
    """A model with hooks computes its layers operation by operation."""
    seen: list[int] = []
    model = tiny.llama(max_seq_len=700, **FAMILIES[family])
    parts = with_hooks(model, lambda layer, _name, _rows: seen.append(layer))
    assert torch.equal(_through(model, kind), _through(parts, kind))
    assert isinstance(model._backend, NativeBackend)
    assert model._backend._describe(model._layers[0]) is not None
    assert seen
