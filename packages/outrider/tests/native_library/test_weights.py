"""Packed matrices hold the numbers of their files; damaged files and impossible sizes are one clear error."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, quantize
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from outrider.errors import ConfigError, ModelFormatError
from outrider.native.library import library
from outrider.native.stored import GGUF_TYPES, StoredTensor
from outrider.native.weights import NativeWeight, StoredRows, Target, pack, pack_array
from outrider.verify.arrays import Floats
from outrider.weights.files.layout import expected_shapes
from outrider.weights.hf_config.config import parse_config
from outrider_torch.kernels.native_tensors import pack_tensor
from tests.arrays import randn
from tests.native_library.blocks import block_inputs, block_size, numbers, random_rows

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")
QUANTISED = ("q8_0", "q4_0", "q4_1")


def stored(kind: str, rows: int, inputs: int, seed: int = 0) -> StoredTensor:
    return StoredTensor(kind, (rows, inputs), random_rows(kind, rows, inputs, seed))


def all_rows(weight: NativeWeight) -> Floats:
    return weight.rows(np.arange(weight.outputs))


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_rows_are_the_numbers_that_gguf_computes(kind: str) -> None:
    """To the last bit: products of scales and codes are exact in float32, so no order of multiplying matters."""
    inputs = 3 * max(32, block_inputs(kind))
    tensor = stored(kind, 21, inputs)
    packed = pack(tensor)
    assert (packed.outputs, packed.inputs) == (21, inputs)
    assert np.array_equal(all_rows(packed), numbers(kind, tensor.data))
    assert packed.struct.panels % 64 == 0


BITS = {
    **{"Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0, "Q8_0": 8.5, "F32": 32, "F16": 16, "BF16": 16},
    **{"Q2_K": 2.625, "Q3_K": 3.5625, "Q4_K": 4.625, "Q5_K": 5.625, "Q6_K": 6.5625},
    **{"IQ4_NL": 4.5, "IQ4_XS": 4.3125, "MXFP4": 4.25, "NVFP4": 4.5, "TQ1_0": 2.0625, "TQ2_0": 2.0625},
    **{"Q1_0": 1.125, "Q2_0": 2.25},
    **dict.fromkeys(("IQ1_S", "IQ2_XXS", "IQ3_XXS", "IQ3_S"), 4.3125),
    **dict.fromkeys(("IQ1_M", "IQ2_XS", "IQ2_S"), 4.5625),
}
"""Bits a weight in memory."""


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_memory_is_that_of_the_file(kind: str) -> None:
    """Within 4 %, but for the types whose grids are looked up when they are packed, and for TQ1_0's base 3."""
    block, size = block_size(kind)
    memory = pack(stored(kind, 16, 512)).struct.panel_bytes * 8 / (16 * 512)
    assert memory == BITS[kind]
    if not kind.startswith(("IQ1", "IQ2", "IQ3", "TQ1")):
        assert memory <= 1.04 * 8 * size / block


def planes(block: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """uint8 [16, 32]: the bits of each output's inputs, from a plane [bits][16][4]."""
    steps = [
        block.reshape(bits, 16, 4)[s // (8 // bits)] >> bits * (s % (8 // bits)) & (1 << bits) - 1 for s in range(8)
    ]
    return np.stack(steps, 1).reshape(16, 32)


def test_a_panel_is_laid_out_as_the_header_says() -> None:
    tensor = stored("Q4_1", 16, 64)
    panel, blocks = pack(tensor).panels, tensor.data.reshape(16, 2, 20)
    scales = panel[:128].view("<u2").reshape(2, 2, 16)  # [group][scale, minimum][output]
    assert np.array_equal(scales, blocks[:, :, :4].copy().view("<u2").transpose(1, 2, 0))
    second = planes(panel[128 + 256 :], 4)
    assert np.array_equal(second, np.concatenate([blocks[:, 1, 4:] & 15, blocks[:, 1, 4:] >> 4], 1))


def test_a_panel_of_a_super_block_is_laid_out_as_the_header_says() -> None:
    tensor = stored("Q6_K", 16, 256)
    panel, blocks = pack(tensor).panels, tensor.data.reshape(16, 210)
    assert np.array_equal(panel[:32].view("<u2"), blocks[:, 208:].copy().view("<u2")[:, 0])
    assert np.array_equal(panel[32:288].reshape(16, 16), blocks[:, 192:208].T)  # [group][output]
    codes = panel[320:].reshape(8, 384)  # whole cache lines; [block][planes]
    low, high = planes(codes[0, :256], 4), planes(codes[0, 256:], 2)
    assert np.array_equal(low, blocks[:, :32] & 15)
    assert np.array_equal(high, blocks[:, 128:160] & 3)


@pytest.mark.parametrize("kind", ["F32", "BF16", "Q8_0", "Q4_1", "IQ4_XS", "IQ2_S"])
def test_rows_in_another_order(kind: str) -> None:
    tensor = stored(kind, 40, 256)
    values = numbers(kind, tensor.data)
    order = np.array([39, 0, 7, 7, *range(20)])
    assert np.array_equal(all_rows(pack(tensor, order=order)), values[order])
    own = np.random.default_rng(1).permutation(40)
    permuted = StoredTensor(kind, tensor.shape, tensor.data, own)
    assert np.array_equal(all_rows(pack(permuted)), values[own])
    assert np.array_equal(all_rows(pack(permuted, order=order)), values[own][order])


def test_blocks_whose_scales_lie_apart_are_the_same_numbers() -> None:
    """As safetensors files of gpt-oss have them: neighbours share a byte."""
    tensor = stored("MXFP4", 21, 96)
    blocks = tensor.data.reshape(-1, 17)
    codes = np.concatenate([blocks[:, 1:] & 15, blocks[:, 1:] >> 4], axis=1)
    apart = replace(tensor, data=(codes[:, ::2] | codes[:, 1::2] << 4).reshape(-1), scales=blocks[:, 0].copy())
    for order in (None, np.array([20, 3, 3, 0])):
        assert np.array_equal(pack(apart, order=order).panels, pack(tensor, order=order).panels)
    for damaged in (replace(apart, scales=blocks[1:, 0].copy()), replace(apart, data=apart.data[16:])):
        with pytest.raises(ModelFormatError, match="does not fit"):
            pack(damaged)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_a_transposed_matrix_is_the_same(kind: str) -> None:
    tensor = stored(kind, 21, 40)
    size = tensor.data.nbytes // (21 * 40)
    other = tensor.data.reshape(21, 40, size).transpose(1, 0, 2).reshape(-1)
    transposed = replace(tensor, data=np.ascontiguousarray(other), transposed=True)
    for order in (None, np.array([20, 3, 3, 0])):
        assert np.array_equal(pack(transposed, order=order).panels, pack(tensor, order=order).panels)


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        *((kind, None) for kind in ("F16", "BF16", "Q8_0", "Q4_1", "Q4_K", "IQ4_NL", "IQ3_XXS")),
        *(("F16", target) for target in (*QUANTISED, "bfloat16")),
        ("Q5_K", "float32"),
    ],
)
def test_missing_outputs_are_zero(kind: str, target: Target | None) -> None:
    packed = pack(stored(kind, 19, 256), target=target)
    packed.struct.outputs = 32  # look behind the last row
    assert np.array_equal(packed.rows(np.arange(19, 32)), np.zeros((13, 256)))


@pytest.mark.parametrize("inputs", [96, 72, 5])
@pytest.mark.parametrize("target", QUANTISED)
def test_rounding_is_that_of_the_format(target: Target, inputs: int) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((19, inputs)).astype(np.float32) * 10.0 ** rng.integers(-9, 5, (19, 1)).astype(np.float32)
    x[3] = 0
    x[4] = 0.25
    x[5, :3] = 1e-40, -1e-40, 0
    kind = GGMLQuantizationType[target.upper()]
    whole = np.pad(x, ((0, 0), (0, -inputs % 32)), mode="edge" if target == "q4_1" else "constant")
    with np.errstate(all="ignore"):
        expected = numbers(kind.name, quantize(whole, kind).view(np.uint8))
    packed = pack_array(x, target)
    assert np.array_equal(all_rows(packed), expected[:, :inputs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_floats(dtype: torch.dtype) -> None:
    x = torch.from_numpy(randn(33, 7)).to(dtype)
    x[0, :3] = torch.tensor([1 + 2**-9, 1 + 3 * 2**-9, -(2**-24)]).to(dtype)  # two ties; a subnormal float16
    assert np.array_equal(all_rows(pack_tensor(x).weight), x.float().numpy())
    assert np.array_equal(all_rows(pack_tensor(x, "bfloat16").weight), x.bfloat16().float().numpy())
    assert pack_tensor(x, "bfloat16").nbytes == 3 * 16 * 7 * 2
    assert torch.equal(pack_tensor(x).rows(torch.tensor([2, 0])), x[[2, 0]].float())
    assert np.array_equal(all_rows(pack_array(x.float().numpy(), "bfloat16")), x.float().bfloat16().float().numpy())


@pytest.mark.parametrize("target", ["bfloat16", "float32", "q8_0"])
def test_blocks_to_another_type(target: Target) -> None:
    tensor = stored("Q6_K", 16, 256)
    tensor.data.reshape(16, 210)[:, 209] &= 0x03  # scales of at most 2^-14
    values = numbers("Q6_K", tensor.data)
    expected = all_rows(pack_array(values, target))
    assert np.array_equal(all_rows(pack(tensor, target=target)), expected)


def test_a_bias_travels_with_its_matrix() -> None:
    packed = pack_tensor(torch.ones(3, 4), bias=torch.tensor([1.0, 2.0, 3.0]).half()).weight
    assert packed.bias is not None
    assert packed.bias.tolist() == [1, 2, 3]
    assert packed.nbytes == 16 * 4 * 4 + 12
    with pytest.raises(ModelFormatError, match=r"bias of shape \[4\] does not fit 3 outputs"):
        pack_array(np.ones((3, 4), np.float32), bias=np.ones(4, np.float32))
    with pytest.raises(ModelFormatError, match="bias holds NaN"):
        pack_array(np.ones((3, 4), np.float32), bias=np.array([1.0, math.nan, 3.0], np.float32))


def test_tinyllama_in_two_bits_takes_six_tenths_of_a_gigabyte() -> None:
    raw = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632}
    raw |= {"num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4}
    shapes = [shape for shape in expected_shapes(parse_config(raw)).values() if len(shape) == 2]
    weight = pack(stored("IQ2_XXS", 16, 256)).struct
    bits = weight.panel_bytes * 8 / (16 * 256)
    total = sum(-(-rows // 16) * 16 * inputs * bits / 8 for rows, inputs in shapes)
    assert sum(map(math.prod, shapes)) > 1.09e9
    assert total <= 0.61e9


@pytest.mark.parametrize(
    "kind", ["Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q4_K", "Q6_K", "IQ2_XXS", "IQ1_S", "IQ4_XS", "TQ2_0"]
)
@pytest.mark.parametrize("half", [0x7C00, 0xFC00, 0x7E00])
def test_scales_that_are_no_numbers(kind: str, half: int) -> None:
    tensor = stored(kind, 5, 512)
    at = {"Q2_K": 82, "Q6_K": 208, "Q4_1": 2, "TQ2_0": 64}.get(kind, 0)
    blocks = tensor.data.reshape(5, 512 // block_inputs(kind), -1)
    blocks[4, -1, at : at + 2] = half & 255, half >> 8
    if kind in ("Q2_K", "Q4_K", "Q6_K", "IQ4_XS"):
        blocks[4, -1, {"Q2_K": slice(0, 16), "Q6_K": slice(192, 208)}.get(kind, slice(4, 8))] = 0xFF
    with pytest.raises(ModelFormatError, match=rf"{kind} \[5, 512\] holds NaN or infinity"):
        pack(tensor)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("target", [None, "bfloat16", "q4_1"])
def test_floats_that_are_no_numbers(value: float, target: Target | None) -> None:
    x = np.zeros((4, 40), np.float32)
    x[3, 39] = value
    with pytest.raises(ModelFormatError, match="holds NaN or infinity"):
        pack_array(x, target)


@pytest.mark.parametrize("target", ["bfloat16", *QUANTISED])
@pytest.mark.parametrize("value", [3.4e38, -3.4e38])
def test_floats_too_large_for_a_target(value: float, target: Target) -> None:
    x = np.zeros((2, 32), np.float32)
    x[1, 1] = value
    assert pack_array(x).rows(np.array([1]))[0, 1] == x[1, 1]
    with pytest.raises(ModelFormatError, match=f"too large for {target}: use float32"):
        pack_array(x, target)


@pytest.mark.parametrize(
    ("kind", "shape", "size", "says"),
    [
        ("Q4_0", (2, 64), 71, r"\[2, 64\] does not fit 71 bytes"),
        ("Q4_0", (2, 64), 73, "does not fit 73 bytes"),
        ("Q4_0", (2, 48), 54, "does not fit"),
        ("Q4_K", (1, 32), 18, "does not fit"),
        ("F32", (2, 3), 23, "does not fit"),
        ("F32", (2**62, 2**62), 0, "does not fit"),
        ("F32", (2**33, 2**31), 0, "does not fit"),
        ("Q8_0", (2**40, 2**26), 0, "does not fit"),
        ("F32", (0, 4), 0, "out of range"),
        ("F32", (4, 2**63), 0, "out of range"),
        ("F32", (4,), 16, "two dimensions"),
        ("Q8_1", (1, 32), 36, "type Q8_1 cannot be packed: use one of F32"),
        ("no such", (1, 32), 36, "type no such cannot be packed"),
    ],
)
def test_sizes_that_cannot_be(kind: str, shape: tuple[int, ...], size: int, says: str) -> None:
    with pytest.raises(ModelFormatError, match=says):
        pack(StoredTensor(kind, shape, np.zeros(size, np.uint8)))


def test_mistakes_of_a_caller() -> None:
    tensor = stored("Q8_0", 4, 32)
    for order in ([4], [-1], [0, 2**62]):
        with pytest.raises(IndexError, match="row that is not there"):
            pack(tensor, order=np.array(order))
    with pytest.raises(ConfigError, match="target='q5_0' is unknown: use one of float32"):
        pack(tensor, target="q5_0")  # type: ignore[arg-type]
    with pytest.raises(ModelFormatError, match=r"torch\.int64 cannot be packed"):
        pack_tensor(torch.ones(2, 2, dtype=torch.int64))
    with pytest.raises(IndexError, match="rows of a matrix of 4"):
        pack(tensor).rows(np.array([0, 4]))


@settings(max_examples=60, deadline=2000)
@given(kind=st.sampled_from(GGUF_TYPES), seed=st.integers(0, 2**32), data=st.data())
def test_any_bytes_become_numbers_or_one_error(kind: str, seed: int, data: st.DataObject) -> None:
    tensor = stored(kind, 3, max(32, block_inputs(kind)), seed)
    at = data.draw(st.lists(st.integers(0, tensor.data.size - 1), max_size=6))
    tensor.data.reshape(-1)[at] = data.draw(st.integers(0, 255))
    try:
        packed = pack(tensor)
    except ModelFormatError:
        return
    assert np.isfinite(all_rows(packed)).all()


@pytest.mark.parametrize("kind", GGUF_TYPES)
def test_rows_of_a_file_are_those_of_the_packed_matrix(kind: str) -> None:
    inputs = max(64, 2 * block_inputs(kind))
    tensor = stored(kind, 40, inputs, seed=3)
    rows = StoredRows(replace(tensor, order=np.arange(40)[::-1]))
    ids = np.array([39, 0, 7, 7])
    assert np.array_equal(rows.rows(ids), pack(tensor).rows(39 - ids))
    assert rows.rows(ids[:0]).shape == (0, inputs)
    with pytest.raises(IndexError):
        rows.rows(np.array([40]))
