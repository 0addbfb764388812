"""``config.json``: what transformers writes is read, what is not implemented is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import transformers

from outrider.errors import ModelFormatError
from outrider.weights.hf_config.config import parse_config, read_config, to_hf_config
from tests.weights.files import raw_config

CLASSES = {
    "llama": transformers.LlamaConfig,
    "mistral": transformers.MistralConfig,
    "qwen2": transformers.Qwen2Config,
    "qwen3": transformers.Qwen3Config,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


@pytest.mark.parametrize("family", CLASSES)
def test_reads_what_transformers_saves(family: str, tmp_path: Path) -> None:
    theirs = CLASSES[family](
        vocab_size=99, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
        intermediate_size=80, max_position_embeddings=512, rms_norm_eps=1e-5, tie_word_embeddings=True,
        head_dim=16, eos_token_id=[7, 8], bos_token_id=3,
    )  # fmt: skip
    theirs.save_pretrained(tmp_path)
    ours = read_config(tmp_path)
    assert (ours.family, ours.vocab_size, ours.hidden_size, ours.num_layers) == (family, 99, 64, 3)
    assert (ours.num_heads, ours.num_kv_heads, ours.head_dim, ours.intermediate_size) == (4, 2, 16, 80)
    assert (ours.max_seq_len, ours.rms_norm_eps, ours.tie_embeddings) == (512, 1e-5, True)
    assert (ours.eos_token_ids, ours.bos_token_id) == ((7, 8), 3)
    assert ours.attention_bias == (family == "qwen2")
    assert ours.qk_norm == (family == "qwen3")
    assert ours.sliding_window == (4096 if family == "mistral" else None)


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("rope", [{}, {"rope_type": "linear", "factor": 2.0}, LLAMA3])
def test_transformers_reads_what_we_write(family: str, rope: dict[str, Any], tmp_path: Path) -> None:
    window = {"llama": None, "mistral": 32, "qwen2": None, "qwen3": 32}[family]
    qwen = {"use_sliding_window": window is not None, "max_window_layers": 0} if family.startswith("qwen") else {}
    config = parse_config(raw_config(family, rope_scaling=rope, sliding_window=window, rope_theta=5e5, **qwen))
    assert config.sliding_window == window
    (tmp_path / "config.json").write_text(json.dumps(to_hf_config(config)))
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert theirs.rope_parameters["rope_theta"] == 5e5
    assert theirs.rope_parameters["rope_type"] == rope.get("rope_type", "default")
    assert getattr(theirs, "sliding_window", None) == window
    assert read_config(tmp_path) == config
    theirs.save_pretrained(tmp_path / "again")  # and back through transformers' own spelling
    assert read_config(tmp_path / "again") == config


def test_generation_config_adds_end_of_text_ids(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw_config(eos_token_id=2)))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 5]}))
    assert read_config(tmp_path).eos_token_ids == (2, 5)


def test_head_dim_defaults() -> None:
    assert parse_config(raw_config("llama")).head_dim == 16
    raw = raw_config("qwen3")
    del raw["head_dim"]
    assert parse_config(raw).head_dim == 128


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("gemma3", {}, "llama, mistral, qwen2, qwen3"),
        ("llama", {"rope_scaling": {"type": "longrope"}}, "'longrope'"),
        (
            "llama",
            {"rope_parameters": {"type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}},
            "partial_rotary",
        ),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor=None"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": -1}}, "factor=-1"),
        ("llama", {"rope_scaling": "linear"}, "rope_scaling='linear'"),
        ("llama", {"rope_theta": float("nan")}, "rope_theta=nan"),
        ("llama", {"rope_theta": 10**400}, "rope_theta=1000"),
        ("llama", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("llama", {"mlp_bias": True}, "mlp_bias"),
        ("llama", {"attention_bias": True}, "attention_bias"),
        ("llama", {"quantization_config": {"quant_method": "gptq"}}, "quantised"),
        ("llama", {"hidden_size": 0}, "hidden_size=0"),
        ("llama", {"hidden_size": 2**70}, "hidden_size="),
        ("llama", {"vocab_size": "many"}, "vocab_size='many'"),
        ("llama", {"num_hidden_layers": True}, "num_hidden_layers=True"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads=3"),
        ("llama", {"head_dim": 15}, "head_dim=15"),
        ("llama", {"eos_token_id": "x"}, "token id 'x'"),
        ("mistral", {"layer_types": ["full_attention"]}, "each of 2 layers"),
        ("llama", {"tie_word_embeddings": "yes"}, "tie_word_embeddings='yes'"),
        ("mistral", {"sliding_window": -1}, "sliding_window=-1"),
    ],
)
def test_refuses_what_it_cannot_compute(family: str, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelFormatError) as caught:
        parse_config(raw_config(family, **changes))
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "\x00", '"x"', "[" * 100_000, "\xff"])
def test_damaged_json_is_one_error(text: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text, encoding="latin-1")
    with pytest.raises(ModelFormatError, match=r"config\.json"):
        read_config(tmp_path)


def test_missing_config(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match=r"has no config\.json"):
        read_config(tmp_path)
