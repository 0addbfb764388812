"""Tensors as their files hold them: the same numbers as ``tensors``, rows in Hugging Face order, nothing copied."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from safetensors.numpy import save_file as save_numpy
from safetensors.torch import save_file

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.errors import ModelFormatError
from outrider.native.gguf_types import GGUF_TYPES_BY_NUMBER, gguf_number
from outrider.native.library import library
from outrider.native.stored import StoredTensor
from outrider.native.weights import pack
from outrider.weights.files.checkpoint import Checkpoint
from outrider.weights.files.llama2c import open_llama2c
from outrider.weights.files.safetensors import read_header, stored_tensors
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.loader import load_model
from outrider_torch.models.stored import torch_tensors
from tests import small_models
from tests.weights.files import write_folder, write_gguf, write_llama2c

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")


def check(checkpoint: Checkpoint) -> None:
    assert set(checkpoint.stored) == set(torch_tensors(checkpoint))
    for name, stored in checkpoint.stored.items():
        expected = torch_tensors(checkpoint)[name]
        assert stored.shape == tuple(expected.shape)
        if len(stored.shape) == 2:
            packed = pack(stored)
            rows = torch.from_numpy(packed.rows(np.arange(packed.outputs)))
            assert torch.equal(rows.to(expected.dtype), expected), name


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q5_1", "Q8_0"])
@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_gguf(family: str, kind: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", family, kind=GGMLQuantizationType[kind])
    checkpoint = open_gguf(tmp_path / "m.gguf")
    check(checkpoint)
    assert checkpoint.stored["model.layers.1.mlp.up_proj.weight"].type == kind
    attention = "model.layers.1.self_attn."
    reordered = [checkpoint.stored[f"{attention}{x}_proj.weight"].order is not None for x in "qkvo"]
    assert reordered == [family == "llama", family == "llama", False, False]


def test_safetensors(tmp_path: Path) -> None:
    weights = write_folder(tmp_path / "m", "qwen2")
    check(open_checkpoint(tmp_path / "m"))
    mixed = {name: w.float() if i % 3 else w.half() for i, (name, w) in enumerate(weights.items())}
    save_file(mixed, tmp_path / "m" / "model.safetensors")
    checkpoint = open_checkpoint(tmp_path / "m")
    check(checkpoint)
    assert {stored.type for stored in checkpoint.stored.values()} == {"F16", "F32"}


@pytest.mark.parametrize("tied", [True, False])
def test_llama2c(tied: bool, tmp_path: Path) -> None:
    write_llama2c(tmp_path / "m.bin", tmp_path / "t.bin", tied=tied)
    check(open_llama2c(tmp_path / "m.bin"))


def test_a_file_that_changes_under_a_running_model_is_an_error(tmp_path: Path) -> None:
    write_folder(tmp_path)
    path = tmp_path / "model.safetensors"
    os.utime(path, (1, 1))  # the clock of a file system ticks in milliseconds
    model = load_model(tmp_path, ModelOptions(device="cpu"))
    cache = model.new_cache(CacheSpec(slots=4, max_seq_len=64))
    before = small_models.feed(model, cache, (cache.allocate(), [3, 4]))[0]
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content[:-8] + bytes(8))
    for _ in range(2):
        with pytest.raises(ModelFormatError, match=r"model\.safetensors was changed while its model runs"):
            small_models.feed(model, cache, (cache.allocate(), [3, 4]))
        os.truncate(path, 0)
    path.unlink()  # another file in its place, as downloads put it there, is no change of this one
    path.write_bytes(content)
    again = load_model(tmp_path, ModelOptions(device="cpu"))
    path.unlink()
    path.write_bytes(b"")
    assert np.array_equal(small_models.feed(again, cache, (cache.allocate(), [3, 4]))[0], before)


def test_types_are_those_of_the_gguf_package() -> None:
    ours = {t.name: (t.number, t.block, t.block_bytes) for t in GGUF_TYPES_BY_NUMBER.values()}
    theirs = {t.name: (int(t), *GGML_QUANT_SIZES[t]) for t in GGMLQuantizationType}
    assert ours == {"Q2_0": (42, 64, 18)} | theirs  # which llama.cpp has had since 2026
    assert all(gguf_number(name) == number for name, (number, *_) in ours.items())


def test_a_file_whose_pages_were_let_go_is_read_again(tmp_path: Path) -> None:
    values = np.arange(20_000, dtype=np.float32).reshape(100, 200)
    save_numpy({"a": values[:1], "b": values}, tmp_path / "x.safetensors")
    infos = read_header(tmp_path / "x.safetensors")
    stored = stored_tensors(dict.fromkeys(infos, tmp_path / "x.safetensors"), infos)
    for _ in range(2):
        for tensor, expected in ((stored["b"], values), (stored["a"], values[:1])):
            assert np.array_equal(tensor.numbers(), expected)
            tensor.release()
    StoredTensor.of(values).release()  # of no file: nothing to do
