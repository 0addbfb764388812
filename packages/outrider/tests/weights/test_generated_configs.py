"""Any ``config.json``: the logits are those of transformers on the same folder, or the file is refused.

A tiny model is written by hand, so that both read the very same files. Where transformers itself fails there is
nothing to compare with.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.errors import CapacityError, ModelFormatError
from outrider.verify.arrays import Floats, host
from outrider.weights.families import FAMILIES
from outrider.weights.hf_config.keys import GENERATION_IGNORED, GENERATION_REFUSED
from outrider.weights.loader import load_model
from tests import small_models

VOCAB, HIDDEN, LAYERS, INNER = 40, 32, 2, 48
LLAMAS = ("llama", "mistral", "qwen2", "qwen3")
DEFAULTS = {name: FAMILIES[name].defaults for name in LLAMAS}
TOKENS = small_models.ids(40, VOCAB)

_THETAS = st.sampled_from([100.0, 10000, 5e5])
_LLAMA3 = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_ROPES = st.sampled_from(
    [
        *(None, {}, {"rope_type": "default"}, {"rope_type": "default", "rope_theta": 300.0}, {"rope_theta": 300.0}),
        *({"type": "linear", "factor": 3.0}, {"rope_type": "linear", "factor": 3.0, "rope_theta": 300.0}),
        *({"rope_type": "linear", "type": "default", "factor": 2.0}, {"rope_type": "default", "factor": 2.0}),
        *(_LLAMA3, _LLAMA3 | {"original_max_position_embeddings": 16}, _LLAMA3 | {"low_freq_factor": 8.0}),
        *(_LLAMA3 | {"original_max_position_embeddings": 8, "rope_theta": 300.0}, {"rope_type": "yarn", "factor": 2.0}),
        *({"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5}, {"type": "dynamic", "factor": 2.0}),
        {"full_attention": {"rope_type": "linear", "factor": 2.0}},
    ]
)
_KINDS = st.lists(st.sampled_from(["full_attention", "sliding_attention"]), min_size=LAYERS, max_size=LAYERS)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "num_attention_heads": st.sampled_from([4, 8, 32]),
    "num_key_value_heads": st.sampled_from([None, 1, 4]),
    "head_dim": st.sampled_from([None, 4, 8, 128]),
    "max_position_embeddings": st.sampled_from([64, 128]),
    "rms_norm_eps": st.sampled_from([1e-6, 1e-3]),
    "rope_theta": _THETAS,
    "rope_scaling": _ROPES,
    "rope_parameters": _ROPES,
    "original_max_position_embeddings": st.sampled_from([8, 64]),
    "partial_rotary_factor": st.sampled_from([1.0, 0.5]),
    "tie_word_embeddings": st.booleans(),
    "attention_bias": st.booleans(),
    "mlp_bias": st.booleans(),
    "hidden_act": st.sampled_from(["silu", "gelu"]),
    "sliding_window": st.sampled_from([None, 3, 16]),
    "use_sliding_window": st.booleans(),
    "max_window_layers": st.sampled_from([0, 1, 2]),
    "layer_types": st.one_of(st.none(), _KINDS),
    "is_causal": st.booleans(),
    "use_cache": st.booleans(),
    "pretraining_tp": st.sampled_from([1, 2]),
    "attention_dropout": st.sampled_from([0.0, 0.5]),
    "eos_token_id": st.sampled_from([None, 3, [3, 4]]),
    "logit_scale": st.sampled_from([None, 2.0]),
}


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    """A family and a few keys: with all of them, nearly every configuration would be refused for one."""
    raw: dict[str, Any] = {"model_type": draw(st.sampled_from(sorted(DEFAULTS)))}
    if draw(st.sampled_from([True, True, True, False])):
        raw["num_key_value_heads"] = 2
    keys = draw(st.lists(st.sampled_from(sorted(VALUES)), unique=True, max_size=6))
    return raw | {key: draw(VALUES[key]) for key in keys}


HEADS = st.sampled_from(["absent", "the embedding", "different"])


def write_model(folder: Path, raw: dict[str, Any], head: str) -> None:
    """The files of a model in float32, whose tensors are those that transformers would expect of ``raw``."""
    (folder / "config.json").write_text(json.dumps(raw))
    family, heads = raw["model_type"], raw["num_attention_heads"]
    kv_heads = raw.get("num_key_value_heads", DEFAULTS[family]["num_key_value_heads"]) or heads
    head_dim = raw.get("head_dim", DEFAULTS[family].get("head_dim")) or HIDDEN // heads
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return torch.randn(shape, generator=generator) * scale

    embedding = random(VOCAB, HIDDEN, scale=0.02)  # small, so that rms_norm_eps counts
    tensors = {"model.embed_tokens.weight": embedding, "model.norm.weight": 1 + random(HIDDEN, scale=0.2)}
    rows = {"q": heads * head_dim, "k": kv_heads * head_dim, "v": kv_heads * head_dim}
    for i in range(LAYERS):
        layer = f"model.layers.{i}."
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{layer}{norm}.weight"] = 1 + random(HIDDEN, scale=0.2)
        for name, count in rows.items():
            tensors[f"{layer}self_attn.{name}_proj.weight"] = random(count, HIDDEN, scale=0.4)
            if family == "qwen2":
                tensors[f"{layer}self_attn.{name}_proj.bias"] = random(count)
        if family == "qwen3":
            for name in ("q_norm", "k_norm"):
                tensors[f"{layer}self_attn.{name}.weight"] = 2 + random(head_dim, scale=0.2)
        tensors[f"{layer}self_attn.o_proj.weight"] = random(HIDDEN, rows["q"], scale=0.2)
        for name, shape in (("gate", (INNER, HIDDEN)), ("up", (INNER, HIDDEN)), ("down", (HIDDEN, INNER))):
            tensors[f"{layer}mlp.{name}_proj.weight"] = random(*shape, scale=0.2)
    if head != "absent":
        tensors["lm_head.weight"] = embedding.clone() if head == "the embedding" else random(VOCAB, HIDDEN)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def theirs(folder: Path) -> tuple[Floats, set[int]] | None:
    """Logits [tokens, vocab] of the whole text and end-of-text ids; None where transformers fails."""
    try:
        model, loading = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager", local_files_only=True, output_loading_info=True
        )
    except (ValueError, KeyError, RuntimeError, TypeError, AttributeError, ZeroDivisionError):
        return None
    except Exception as error:
        if type(error).__module__.startswith("huggingface_hub"):  # strict types of a configuration
            return None
        raise
    if loading["missing_keys"]:
        return None
    try:
        with torch.inference_mode():
            logits = model.eval()(torch.tensor([TOKENS])).logits[0]
    except (ValueError, KeyError, RuntimeError, TypeError):
        return None
    if not bool(logits.isfinite().all()):
        return None
    eos = model.generation_config.eos_token_id
    return host(logits), set(eos if isinstance(eos, list) else [] if eos is None else [eos])


def raw_dims() -> dict[str, Any]:
    sizes = {"vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
    return sizes | {"num_attention_heads": 4}


def compare(folder: Path, about: str) -> str:
    """Compare both on one model: "refused", "alone" where only we read it, or "same"."""
    try:
        model = load_model(folder, ModelOptions(dtype="float32", device="cpu"))
    except ModelFormatError as error:
        return "refused" if "\n" not in str(error) else "many lines"
    expected = theirs(folder)
    if expected is None:
        return "alone"
    cache = model.new_cache(CacheSpec(max_seq_len=64))
    ours = small_models.feed(model, cache, (cache.allocate(), TOKENS))[0]
    worst = float(np.abs(ours - expected[0]).max() / np.abs(expected[0]).max())
    assert worst < 1e-3, f"{about}: the logits differ by {worst:.1e} of the largest"
    assert set(model.config.eos_token_ids) == expected[1], about
    return "same"


def check(folder: Path, raw: dict[str, Any], head: str) -> str:
    """``compare`` on a model of this configuration."""
    raw = raw_dims() | raw
    write_model(folder, raw, head)
    return compare(folder, f"{raw} with head {head}")


SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much]


@settings(max_examples=40, deadline=None, suppress_health_check=SUPPRESSED)
@given(raw=configs(), head=HEADS)
def test_every_config_is_read_as_by_transformers_or_refused(raw: dict[str, Any], head: str, tmp_path: Path) -> None:
    event(check(tmp_path, raw, head))


@pytest.mark.slow
@settings(max_examples=3000, deadline=None, suppress_health_check=SUPPRESSED)
@given(raw=configs(), head=HEADS)
def test_many_configs(raw: dict[str, Any], head: str, tmp_path: Path) -> None:
    event(check(tmp_path, raw, head))


LLAMA, MISTRAL = {"model_type": "llama"}, {"model_type": "mistral", "num_key_value_heads": 2}
QWEN2, QWEN3 = {"model_type": "qwen2", "num_key_value_heads": 2}, {"model_type": "qwen3", "num_key_value_heads": 2}
WINDOWED = {"use_sliding_window": True, "max_window_layers": 0}


@pytest.mark.parametrize("head", ["the embedding", "different"])
def test_a_tied_head_that_differs_in_the_file_is_used(head: str, tmp_path: Path) -> None:
    assert check(tmp_path, LLAMA | {"tie_word_embeddings": True}, head) == "same"


@pytest.mark.parametrize(
    ("raw", "outcome"),
    [
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": {}}, "same"),
        (LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}, "rope_parameters": _LLAMA3}, "same"),
        (LLAMA | {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 2.0}}}, "same"),
        (LLAMA | {"rope_scaling": _LLAMA3}, "same"),
        (LLAMA | {"rope_scaling": _LLAMA3, "original_max_position_embeddings": 8}, "same"),
        (LLAMA | {"is_causal": False}, "refused"),
        (LLAMA | {"sliding_window": 3}, "refused"),
        (LLAMA | {"query_scale": 2.0}, "same"),
        (LLAMA | {"architectures": ["LlamaForCausalLM"]}, "same"),
        (LLAMA | {"architectures": ["LlamaForCausalLMEagle3"]}, "same"),
        (LLAMA | {"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "refused"),
        (LLAMA | {"suppress_tokens": [3]}, "refused"),
        (MISTRAL, "same"),
        (MISTRAL | {"sliding_window": 3}, "same"),
        (MISTRAL | {"sliding_window": 3, "layer_types": ["full_attention"] * 2, "head_dim": 8}, "same"),
        ({"model_type": "mistral", "num_attention_heads": 8}, "same"),
        (QWEN2 | WINDOWED, "same"),
        (QWEN3 | WINDOWED | {"sliding_window": 3}, "same"),
        (QWEN2 | WINDOWED | {"max_window_layers": 1}, "same"),
        (QWEN2 | {"use_sliding_window": True}, "same"),
        (QWEN2 | {"layer_types": ["sliding_attention"] * 2, "sliding_window": 3}, "refused"),
    ],
)
def test_known_traps(raw: dict[str, Any], outcome: str, tmp_path: Path) -> None:
    assert check(tmp_path, raw, "different") == outcome


def test_every_key_of_generate_is_read_refused_or_knowingly_ignored() -> None:
    known = {"eos_token_id", *GENERATION_REFUSED, *(key for keys in GENERATION_IGNORED.values() for key in keys)}
    assert {key for key in vars(transformers.GenerationConfig()) if not key.startswith("_")} <= known


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"suppress_tokens": [5]}, True),
        ({"bad_words_ids": [[5]]}, True),
        ({"forced_eos_token_id": 3}, True),
        ({"guidance_scale": 1.5}, True),
        ({"guidance_scale": 1.0, "suppress_tokens": [], "temperature": 0.6, "do_sample": True}, False),
    ],
)
def test_generation_config_may_suggest_but_not_force(given: dict[str, Any], refused: bool, tmp_path: Path) -> None:
    write_model(tmp_path, raw_dims() | LLAMA, "different")
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    if not refused:
        assert load_model(tmp_path, ModelOptions(device="cpu")).config.eos_token_ids == ()
        return
    with pytest.raises(ModelFormatError, match=rf"generation_config\.json: {next(iter(given))}="):
        load_model(tmp_path, ModelOptions(device="cpu"))


def test_a_context_whose_tables_fill_memory_is_refused(tmp_path: Path) -> None:
    write_model(tmp_path, raw_dims() | LLAMA | {"max_position_embeddings": 2**31 - 1}, "different")
    with pytest.raises(CapacityError, match=r"context of 2,147,483,647 positions.*set max_seq_len"):
        load_model(tmp_path, ModelOptions(device="cpu"))
    assert load_model(tmp_path, ModelOptions(device="cpu", max_seq_len=64)).config.max_seq_len == 64


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_defaults_are_those_of_transformers(family: str) -> None:
    theirs = transformers.AutoConfig.for_model(family)
    theirs.allow_global_per_layer_attribute_access = True
    for key, value in FAMILIES[family].defaults.items():
        if key in {
            "no_rope_layers",
            "sliding_window_pattern",
            "partial_rotary_factor",
            "mlp_only_layers",
            "mlp_layer_types",
            "moe_layer_end_index",
            "moe_layers",
            "mamba_d_head",
            "time_step_limit",
            "rope_parameters",
        }:
            continue  # it makes others of them at once
        if (family, key) in (("gemma4_text", "layer_types"), ("gemma4_text", "per_layer_config")):
            continue  # likewise
        if (family, key) == ("nemotron_h", "num_hidden_layers"):
            continue  # it counts the kinds of layers
        if (family, key) == ("qwen3_5_moe_text", "intermediate_size"):
            continue  # no layer has one
        if family.startswith("gemma") and (key == "hidden_act" or not hasattr(theirs, key)):
            continue  # shared with Gemmas that have them
        found = getattr(theirs, key)
        if key == "num_key_value_heads" and value is None:
            value = theirs.num_attention_heads
        if key == "sliding_window" and not getattr(theirs, "use_sliding_window", True):
            value = 0 if family == "qwen2_moe" else None
        assert found == value, key
    if family == "nemotron_h":
        return  # nothing is rotated
    rope = theirs.rope_parameters
    full, local = (rope.get(kind, rope)["rope_theta"] for kind in ("full_attention", "sliding_attention"))
    assert math.isclose(full, FAMILIES[family].theta)
    assert math.isclose(local, FAMILIES[family].rope_by_kind or FAMILIES[family].theta)
