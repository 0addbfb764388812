"""Safetensors folders: read lazily and exactly, and a file that lies is a ``ModelFormatError``, fast."""

from __future__ import annotations

import io
import json
import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save_file

from outrider.errors import ModelFormatError
from outrider.verify.arrays import bfloat16
from outrider.weights.files.safetensors import read_header, write_bfloat16
from outrider.weights.folder import open_checkpoint
from outrider_torch.models.stored import torch_tensors
from tests.weights.files import write_folder


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_reads_every_tensor(family: str, tied: bool, tmp_path: Path) -> None:
    weights = write_folder(tmp_path, family, tie_word_embeddings=tied)
    checkpoint = open_checkpoint(tmp_path)
    assert set(torch_tensors(checkpoint)) == set(weights)
    assert ("lm_head.weight" in weights) is not tied
    for name, weight in weights.items():
        assert torch.equal(torch_tensors(checkpoint)[name], weight)


def _shard(folder: Path, weights: Mapping[str, torch.Tensor]) -> dict[str, str]:
    (folder / "model.safetensors").unlink()
    names = sorted(weights)
    shards = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in shards.items():
        save_file({name: weights[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in shards.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return weight_map


def test_reads_shards(tmp_path: Path) -> None:
    weights = write_folder(tmp_path)
    _shard(tmp_path, weights)
    checkpoint = open_checkpoint(tmp_path)
    assert all(torch.equal(torch_tensors(checkpoint)[name], weight) for name, weight in weights.items())


def test_a_shard_must_be_there_and_lie_in_the_folder(tmp_path: Path) -> None:
    weights = write_folder(tmp_path)
    weight_map = _shard(tmp_path, weights)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelFormatError, match=r"has no file 'b\.safetensors'"):
        open_checkpoint(tmp_path)
    weight_map[min(weight_map)] = "../a.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ModelFormatError, match=r"no \.safetensors file here"):
        open_checkpoint(tmp_path)
    for name in ("", "..", "a" * 5000 + ".safetensors", "a\x00.safetensors"):
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
        with pytest.raises(ModelFormatError, match=r"no \.safetensors file here|has no file"):
            open_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelFormatError, match="weight_map"):
        open_checkpoint(tmp_path)


def test_names_the_tensor_that_does_not_fit(tmp_path: Path) -> None:
    weights = write_folder(tmp_path)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({n: w for n, w in weights.items() if n != name}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match=rf"{name} is missing.*\[96, 64\]"):
        open_checkpoint(tmp_path)
    save_file(weights | {name: torch.zeros(4, 4)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match=rf"{name} has shape \[4, 4\].*\[96, 64\]"):
        open_checkpoint(tmp_path)


def test_tensors_that_are_no_part_of_a_model_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    weights = write_folder(tmp_path)
    harmless = {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    save_file(weights | harmless, tmp_path / "model.safetensors")
    open_checkpoint(tmp_path)
    assert not caplog.records
    extra = {"model.layers.0.self_attn.q_proj.lora_A.weight": torch.zeros(2, 2)}
    save_file(weights | extra, tmp_path / "model.safetensors")
    assert not extra.keys() & set(torch_tensors(open_checkpoint(tmp_path)))
    assert "lora_A" in caplog.text


def test_a_config_with_a_billion_layers_is_refused_at_once(tmp_path: Path) -> None:
    write_folder(tmp_path)
    raw = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(raw | {"num_hidden_layers": 2**30}))
    started = time.monotonic()
    with pytest.raises(ModelFormatError, match="layers are declared"):
        open_checkpoint(tmp_path)
    assert time.monotonic() - started < 1


def test_pickles_are_refused_with_the_reason(tmp_path: Path) -> None:
    write_folder(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelFormatError, match=r"pickle.*run code.*safetensors"):
        open_checkpoint(tmp_path)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    weights = write_folder(tmp_path)
    name = "model.norm.weight"
    save_file(weights | {name: torch.ones(64, dtype=torch.int8)}, tmp_path / "model.safetensors")
    with pytest.raises(ModelFormatError, match=r"model.norm.weight.*I8"):
        open_checkpoint(tmp_path)


def test_written_files_are_read_by_the_library() -> None:
    tensors = {"a": torch.randn(3, 5), "b": torch.randn(7), "c": torch.randn(2, 2).t()}
    file = io.BytesIO()
    sizes: list[int] = []
    rounded = ((name, bfloat16(tensor.numpy())) for name, tensor in tensors.items())
    write_bfloat16(file, {n: tuple(t.shape) for n, t in tensors.items()}, rounded, sizes.append)
    read = load(file.getvalue())
    assert all(torch.equal(read[n], t.to(torch.bfloat16)) for n, t in tensors.items())
    assert sizes == [30, 14, 8]
    assert (len(file.getvalue()) - sum(sizes)) % 64 == 0


def _file(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _tensor(start: int, stop: int, shape: list[Any], dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "claims 0 bytes"),
        (b"\x00" * 7, "claims 0 bytes"),
        (_file({}, length=2**63), "9,223,372,036,854,775,808"),
        (_file({}, length=2**64 - 1), "claims"),
        (_file(b"not json"), "not valid JSON"),
        (_file(b"[" * 5000), "not valid JSON"),
        (_file(b"\xff\xfe"), "not valid JSON"),
        (_file([]), "not a JSON object"),
        (_file(b'{"a":{},"a":{}}'), "appears twice"),
        (_file({"a": 1}), "'a' has no valid"),
        (_file({"a": _tensor(0, 4, [1])}, b""), "describes 4 bytes"),
        (_file({"a": _tensor(0, 4, [1])}, b"12345678"), "describes 4 bytes"),
        (_file({"a": _tensor(0, 8, [1])}, b"12345678"), "spans 8 bytes"),
        (_file({"a": _tensor(0, 4, [1]), "b": _tensor(0, 4, [1])}, b"1234"), "'b' starts at byte 0"),
        (_file({"a": _tensor(4, 8, [1])}, b"12345678"), "starts at byte 4"),
        (_file({"a": _tensor(-4, 0, [1])}, b""), "no valid"),
        (_file({"a": _tensor(0, 4, [-1, -1])}, b"1234"), "no valid"),
        (_file({"a": _tensor(0, 4, [2**40, 2**40])}, b"1234"), "spans 4 bytes"),
        (_file({"a": _tensor(0, 4, [True])}, b"1234"), "no valid"),
        (_file({"a": _tensor(0, 4, [1.0])}, b"1234"), "no valid"),
        (_file({"a": _tensor(0, 4, [1], "F99")}, b"1234"), "dtype 'F99'"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lying_headers(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelFormatError) as caught:
        read_header(path)
    assert says in str(caught.value)


@pytest.fixture(scope="module")
def good_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("good")
    write_folder(folder)
    return folder


@settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_and_cut_files_load_or_are_refused(data: st.DataObject, good_folder: Path, tmp_path: Path) -> None:
    content = bytearray((good_folder / "model.safetensors").read_bytes())
    header_end = 8 + struct.unpack("<Q", content[:8])[0]
    for _ in range(data.draw(st.integers(0, 4), label="flips")):
        at = data.draw(st.integers(0, header_end + 16), label="at")
        content[at] = data.draw(st.integers(0, 255), label="byte")
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))), label="cut")
    (tmp_path / "model.safetensors").write_bytes(content[:cut])
    (tmp_path / "config.json").write_bytes((good_folder / "config.json").read_bytes())
    try:
        checkpoint = open_checkpoint(tmp_path)
        for name in torch_tensors(checkpoint):
            torch_tensors(checkpoint)[name].sum()
    except ModelFormatError:
        pass
