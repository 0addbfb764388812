"""GGUF files: the tensors are those of the original model, and a file that lies is refused, fast."""

from __future__ import annotations

import json
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFEndian, GGUFWriter, dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.llama.configuration_llama import LlamaConfig

from outrider.errors import ModelFormatError
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.header import read_gguf_header
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.gguf.rope import llama3_divisors
from outrider.weights.hf_config.config import parse_config
from outrider_torch.models.stored import torch_tensors
from tests.weights.files import VOCABULARY, raw_config, write_gguf

F32, F16, Q8_0, Q4_1 = (getattr(GGMLQuantizationType, kind) for kind in ("F32", "F16", "Q8_0", "Q4_1"))


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [False, True])
def test_gives_back_the_original_model(family: str, tied: bool, tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "m.gguf", family, tie_word_embeddings=tied)
    checkpoint = open_gguf(tmp_path / "m.gguf")
    assert checkpoint.config == parse_config(raw_config(family, tie_word_embeddings=tied))
    assert set(torch_tensors(checkpoint)) == set(weights)
    for name, weight in weights.items():
        assert torch.equal(torch_tensors(checkpoint)[name], weight.to(torch.bfloat16)), name


@pytest.mark.parametrize("kind", [F16, Q8_0, Q4_1])
def test_dequantises(kind: GGMLQuantizationType, tmp_path: Path) -> None:
    weights = write_gguf(tmp_path / "m.gguf", "qwen2", kind=kind)
    tensors = torch_tensors(open_gguf(tmp_path / "m.gguf"))
    for name in ("model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight"):
        expected = torch.from_numpy(dequantize(quantize(weights[name].numpy(), kind), kind))
        assert torch.equal(tensors[name], expected.to(torch.bfloat16))


def test_end_of_text_ids_and_constants(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", metadata={"context_length": 99, "rope.freq_base": 5e5}, rms_norm_eps=1e-6)
    config = open_gguf(tmp_path / "m.gguf").config
    assert (config.max_seq_len, config.rope_theta, config.rms_norm_eps) == (99, 5e5, 1e-6)
    assert (config.eos_token_ids, config.bos_token_id) == ((2,), 1)


def test_a_sliding_window_as_long_as_the_context_is_none(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", metadata={"attention.sliding_window": 128})
    config = open_gguf(tmp_path / "m.gguf").config
    assert (config.family, config.sliding_window) == ("llama", None)


def test_linear_rope(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", metadata={"rope.scaling.type": "linear", "rope.scaling.factor": 4.0})
    assert open_gguf(tmp_path / "m.gguf").config.rope_scaling == {"rope_type": "linear", "factor": 4.0}
    for key in ("rope.scale_linear", "rope.scaling.factor"):  # without a type, llama.cpp takes linear
        write_gguf(tmp_path / "older.gguf", metadata={key: 2.0})
        assert open_gguf(tmp_path / "older.gguf").config.rope_scaling == {"rope_type": "linear", "factor": 2.0}
    write_gguf(tmp_path / "none.gguf", metadata={"rope.scaling.type": "none", "rope.scaling.factor": 2.0})
    assert open_gguf(tmp_path / "none.gguf").config.rope_scaling == {}


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_rope_is_recognised_from_its_divisors(factor: float, tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    scaling["original_max_position_embeddings"] = 8192
    theirs = LlamaConfig(hidden_size=512, num_attention_heads=4, rope_parameters=scaling | {"rope_theta": 5e5})
    frequencies, _ = ROPE_INIT_FUNCTIONS["llama3"](theirs, "cpu")
    plain = 5e5 ** (-torch.arange(0, 128, 2) / 128)
    divisors = (plain / frequencies).numpy()
    assert np.allclose(divisors, llama3_divisors(factor, 5e5, 64), rtol=1e-5)
    path = tmp_path / "m.gguf"
    write_gguf(path, metadata={"rope.freq_base": 5e5}, rope_divisors=divisors, head_dim=128)
    assert open_gguf(path).config.rope_scaling == scaling
    write_gguf(path, rope_divisors=np.ones(64), head_dim=128)
    assert open_gguf(path).config.rope_scaling == {}
    write_gguf(path, rope_divisors=np.linspace(1, 3, 64), head_dim=128)
    with pytest.raises(ModelFormatError, match="not Llama 3's scaling"):
        open_gguf(path)


@pytest.mark.parametrize(
    ("metadata", "says"),
    [
        ({"rope.scaling.attn_factor": 1.25}, "llama.rope.scaling.attn_factor=1.25"),
        ({"attention.value_length": 8}, "llama.attention.value_length=8"),
        ({"attention.layer_norm_rms_epsilon": None}, "rms_norm_eps=None"),
        ({"context_length": None}, "max_position_embeddings=None"),
        ({"expert_count": 8}, "llama.expert_count=8"),
        ({"rope.dimension_count": 8}, "llama.rope.dimension_count=8"),
        ({"split.count": 3}, "split.count=3: this is one part of a model"),
        ({"tokenizer.ggml.suppress_tokens": [3]}, "suppress_tokens forbids tokens"),
        ({"attention.head_count": None}, "num_attention_heads=None"),
        ({"feed_forward_length": [96, 48]}, "is an array"),
        ({"block_count": 2**31 - 1}, "layers are declared"),
        ({"block_count": 3}, "model.layers.2.input_layernorm.weight is missing"),
        ({"embedding_length": 32}, f"shape [{len(VOCABULARY)}, 64]"),
    ],
)
def test_refuses_what_it_cannot_compute(metadata: dict[str, Any], says: str, tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", metadata=metadata)
    with pytest.raises(ModelFormatError) as caught:
        open_gguf(tmp_path / "m.gguf")
    assert says in str(caught.value)


def test_keys_that_change_nothing_pass(tmp_path: Path) -> None:
    notes = {"general.author": "a", "general.file_type": 7, "general.sampling.temp": 0.6, "other.tool.version": 2}
    off = {"vocab_size": 3, "expert_count": 0, "attention.causal": True, "rope.scaling.original_context_length": 64}
    write_gguf(tmp_path / "m.gguf", metadata=notes | off | {"rope.scaling.attn_factor": 1.0, "split.count": 1})
    assert open_gguf(tmp_path / "m.gguf").config == parse_config(raw_config())


def test_divisors_that_are_not_those_of_the_heads(tmp_path: Path) -> None:
    path, divisors = tmp_path / "m.gguf", np.array(llama3_divisors(8.0, 10000.0, 8))
    write_gguf(path, rope_divisors=divisors, metadata={"rope.scaling.factor": 2.0})
    with pytest.raises(ModelFormatError, match=r"linear scaling by 2\.0 together with tensors"):
        open_gguf(path)
    write_gguf(path, rope_divisors=np.array(llama3_divisors(8.0, 10000.0, 16)))
    with pytest.raises(ModelFormatError, match=r"shape \[16\] is not a float32 divisor for each of 16 / 2"):
        open_gguf(path)
    write_gguf(path, "qwen2", rope_divisors=divisors)
    with pytest.raises(ModelFormatError, match=r"rope_freqs\.weight belongs to no qwen2 model"):
        open_gguf(path)


def test_a_config_beside_the_file_describes_the_same_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", metadata={"rope.scaling.factor": 2.0})
    scaled = raw_config(rope_scaling={"type": "linear", "factor": 2.0}, eos_token_id=7, max_position_embeddings=64)
    (tmp_path / "config.json").write_text(json.dumps(scaled))
    assert open_checkpoint(tmp_path).config.eos_token_ids == (7,)
    (tmp_path / "config.json").write_text(json.dumps(raw_config()))
    with pytest.raises(
        ModelFormatError, match=r"config\.json has rope_scaling=\{\}, but model\.gguf says .*'factor': 2\.0"
    ):
        open_checkpoint(tmp_path)


def test_other_architectures_are_refused_with_the_list(tmp_path: Path) -> None:
    content = _gguf(keys=[_string("general.architecture") + struct.pack("<I", 8) + _string("mamba")])
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"'mamba'.*llama, qwen2, qwen3"):
        open_gguf(tmp_path / "m.gguf")


def _string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _info(name: str, dims: list[int], kind: int = 0, offset: int = 0) -> bytes:
    return _string(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, offset)


def _gguf(keys: list[bytes] = [], infos: list[bytes] = [], data: bytes = b"", **lies: int) -> bytes:  # noqa: B006
    counts = struct.pack("<QQ", lies.get("tensors", len(infos)), lies.get("counted_keys", len(keys)))
    head = b"GGUF" + struct.pack("<I", lies.get("version", 3)) + counts + b"".join(keys) + b"".join(infos)
    return head + bytes(-len(head) % 32) + data


def test_a_file_of_a_big_endian_machine_is_refused_by_name(tmp_path: Path) -> None:
    writer = GGUFWriter(tmp_path / "m.gguf", "llama", endianess=GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelFormatError, match=r"m\.gguf is big-endian: convert it with .*gguf-convert-endian"):
        open_gguf(tmp_path / "m.gguf")


def _key(name: str, kind: int, value: bytes) -> bytes:
    return _string(name) + struct.pack("<I", kind) + value


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"GG", "magic"),
        (b"GGML" + bytes(60), "not a GGUF file"),
        (_gguf(version=1), "version 1, of August 2023: download a newer file"),
        (_gguf(version=4), "version 4: versions 2 and 3 are read"),
        (_gguf(version=0x03000000), "is big-endian: convert it with"),
        (_gguf(version=0x02000000), "is big-endian: convert it with"),
        (_gguf(version=0x04000000), "version 67108864"),
        (b"GGUF" + struct.pack("<I", 3), "tensors"),
        (_gguf(tensors=2**63), "9,223,372,036,854,775,808 tensors"),
        (_gguf(counted_keys=2**64 - 1), "18,446,744,073,709,551,615 keys"),
        (_gguf(keys=[struct.pack("<Q", 2**63) + bytes(40)]), "key at byte 32"),
        (_gguf(keys=[_key("a", 99, bytes(16))]), "unknown type 99"),
        (_gguf(keys=[_key("a", 9, struct.pack("<IQ", 4, 2**62))]), "numbers of 'a'"),
        (_gguf(keys=[_key("a", 9, struct.pack("<IQ", 8, 2**62))]), "strings of 'a'"),
        (_gguf(keys=[_key("a", 9, struct.pack("<IQ", 9, 1) + bytes(16))]), "array of unknown type 9"),
        (_gguf(keys=[_key("a", 8, struct.pack("<Q", 2**64 - 1))]), "would take 18,446,744,073,709,551,615"),
        (_gguf(keys=[_key("a", 0, b"1"), _key("a", 0, b"1")]), "'a' appears twice"),
        (_gguf(keys=[_key("general.alignment", 4, struct.pack("<I", 33))]), "power of two"),
        (_gguf(keys=[_key("general.alignment", 4, struct.pack("<I", 0))]), "power of two"),
        (_gguf(keys=[_key("general.alignment", 8, _string("x"))]), "power of two"),
        (_gguf(infos=[_info("t", [4] * 5)]), "5 dimensions"),
        (_gguf(infos=[_info("t", []) + bytes(16)]), "0 dimensions"),
        (_gguf(infos=[_string("t") + struct.pack("<I", 2**32 - 1) + bytes(32)]), "4294967295 dimensions"),
        (_gguf(infos=[_info("t", [0])]), "not whole"),
        (_gguf(infos=[_info("t", [2**63, 2**63])]), "ends at byte"),
        (_gguf(infos=[_info("t", [4], offset=2**63)]), "ends at byte"),
        (_gguf(infos=[_info("t", [4], offset=3)]), "not aligned"),
        (_gguf(infos=[_info("t", [4], kind=777)]), "unknown type 777"),
        (_gguf(infos=[_info("t", [31], kind=2)]), "not whole"),
        (_gguf(infos=[_info("t", [4]), _info("t", [4])], data=bytes(16)), "'t' appears twice"),
        (_gguf(infos=[_info("t", [9]), _info("u", [4], offset=32)], data=bytes(64)), "overlap"),
        (_gguf(infos=[_info("t", [64])], data=bytes(255)), "ends at byte"),
        (_gguf(keys=[_key("a\n" * 500, 99, bytes(16))]), r"'a\na\na"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_lying_headers(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    started = time.monotonic()
    with pytest.raises(ModelFormatError) as caught:
        read_gguf_header(path)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - started < 1


def test_numbers_that_are_none(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf", kind=Q8_0)
    content = bytearray((tmp_path / "m.gguf").read_bytes())
    start = read_gguf_header(tmp_path / "m.gguf").tensors["output.weight"].start
    content[start : start + 2] = b"\x00\x7c"  # the scale of the first block, a float16: infinity
    (tmp_path / "m.gguf").write_bytes(content)
    with pytest.raises(ModelFormatError, match=r"lm_head\.weight holds NaN or infinity"):
        torch_tensors(open_gguf(tmp_path / "m.gguf"))["lm_head.weight"]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("good") / "m.gguf"
    write_gguf(path, rope_divisors=np.ones(8))
    return path


@settings(max_examples=150, deadline=2000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_flipped_and_cut_files_load_or_are_refused(data: st.DataObject, good: Path, tmp_path: Path) -> None:
    content = bytearray(good.read_bytes())
    header_end = content.index(b"rope_freqs.weight") + 64
    keys_end = content.index(b"tokenizer.ggml.model")
    for _ in range(data.draw(st.integers(0, 4), label="flips")):
        area = data.draw(st.sampled_from([keys_end, header_end]), label="area")
        content[data.draw(st.integers(0, area), label="at")] = data.draw(st.integers(0, 255), label="byte")
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))), label="cut")
    path = tmp_path / "m.gguf"
    path.write_bytes(content[:cut])
    try:
        checkpoint = open_gguf(path)
        for name in torch_tensors(checkpoint):
            torch_tensors(checkpoint)[name].sum()
    except ModelFormatError:
        pass
