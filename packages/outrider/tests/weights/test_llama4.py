"""Llama 4's text: both formats, chunks of attention, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.cache import CacheSpec
from outrider.config import ModelOptions, SamplingParams
from outrider.errors import ModelFormatError
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider.verify.arrays import Floats
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.gguf.rope import llama3_divisors
from outrider.weights.hf_config.config import parse_config, to_hf_config
from outrider.weights.loader import load_model
from tests import families, small_models
from tests.small_engines import engine, generate, request, run
from tests.weights.files import SCORES, TOKEN_TYPES, VOCABULARY, add_keys, finish

needs_library = pytest.mark.skipif(library() is None, reason="no native library")
CHUNK, LAYERS = 12, 4
SCOUT = families.MEMBERS["llama4"][1]["rope_parameters"] | {"original_max_position_embeddings": 8192}
AS_KNOWN: dict[str, Any] = {
    "vocab_size": len(VOCABULARY), "attention_chunk_size": 8192, "floor_scale": 8192, "attn_scale": 0.1,
    "bos_token_id": 1, "eos_token_id": 2, "rope_parameters": SCOUT,
}  # fmt: skip
"""What llama.cpp takes for granted."""


def save(folder: Path, **own: Any) -> tuple[dict[str, Tensor], Floats, list[int]]:
    """A random model of transformers in a folder; its tensors, and its logits of tokens."""
    model = families.build("llama4", **own)
    model.save_pretrained(folder)
    tokens = small_models.ids(100, model.config.vocab_size)
    with torch.inference_mode():
        found: Floats = model(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    return load_file(folder / "model.safetensors"), found, tokens


def write_gguf(path: Path, tensors: Mapping[str, Tensor], **changes: Any) -> None:
    """As llama.cpp's converter writes the model: rows of q and k stay as they are, experts are cut and turned."""
    writer = gguf.GGUFWriter(path, "llama4")
    add_keys(writer, "llama4", {
        "context_length": 128, "embedding_length": 64, "block_count": LAYERS, "feed_forward_length": 112,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
        "attention.value_length": 16, "rope.dimension_count": 16, "rope.freq_base": 5e5, "expert_count": 5,
        "attention.layer_norm_rms_epsilon": 1e-5, "expert_used_count": 2, "expert_feed_forward_length": 40,
        "interleave_moe_layer_step": 2, "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": VOCABULARY,
        "tokenizer.ggml.scores": SCORES, "tokenizer.ggml.token_type": TOKEN_TYPES,
        "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    } | changes)  # fmt: skip
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA4, LAYERS)
    written = dict(tensors)
    for name, tensor in tensors.items():
        if name.endswith("experts.gate_up_proj"):
            for part, half in zip(("gate", "up"), tensor.transpose(1, 2).chunk(2, 1), strict=True):
                written[name.replace("gate_up_proj", f"{part}_proj.weight")] = half
            del written[name]
        elif name.endswith("experts.down_proj"):
            written[f"{name}.weight"] = written.pop(name).transpose(1, 2)
    for name, tensor in written.items():
        own = names.get_name(name, try_suffixes=(".weight",))
        assert own is not None, name
        writer.add_tensor(own, np.ascontiguousarray(tensor.float().numpy()))
    writer.add_tensor("rope_freqs.weight", np.array(llama3_divisors(16.0, 5e5, 8, 1.0), np.float32))
    finish(writer)


def logits(model: Any, tokens: list[int]) -> Floats:
    cache = model.new_cache(CacheSpec(max_seq_len=128))
    return np.asarray(small_models.feed(model, cache, (cache.allocate(), tokens))[0])


@needs_library
def test_both_formats_hold_one_model(tmp_path: Path) -> None:
    tensors, wanted, tokens = save(tmp_path, **AS_KNOWN)
    write_gguf(tmp_path / "m.gguf", tensors)
    ours, theirs = open_gguf(tmp_path / "m.gguf"), open_checkpoint(tmp_path)
    assert ours.config == theirs.config
    assert parse_config(to_hf_config(ours.config)) == ours.config
    assert ours.stored.keys() == theirs.stored.keys()
    found = [logits(make_model(each.config, each.stored, dtype="float32"), tokens) for each in (ours, theirs)]
    assert small_models.identical(*found)
    assert np.abs(found[0] - wanted).max() < 3e-6 * np.abs(wanted).max()


@needs_library
def test_the_text_part_of_a_model_that_sees(tmp_path: Path) -> None:
    tensors, wanted, tokens = save(tmp_path)
    whole = {f"language_model.{name}": tensor for name, tensor in tensors.items()}
    more = {"vision_model.x.weight": torch.zeros(2, 2), "multi_modal_projector.linear_1.weight": torch.zeros(2, 2)}
    save_file(whole | more, tmp_path / "model.safetensors", metadata={"format": "pt"})
    text = json.loads((tmp_path / "config.json").read_text())
    said = {"model_type": "llama4", "architectures": ["Llama4ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(said))
    found = logits(load_model(tmp_path, ModelOptions(dtype="float32")), tokens)
    assert np.abs(found - wanted).max() < 3e-6 * np.abs(wanted).max()


@needs_library
def test_a_row_sees_its_own_chunk_and_no_other(tmp_path: Path) -> None:
    """Where all layers attend to chunks, tokens before a chunk change nothing in it, and those in it do."""
    _, _, tokens = save(tmp_path, no_rope_layers=[1] * LAYERS)
    model = load_model(tmp_path, ModelOptions(dtype="float32"))
    before = logits(model, tokens)
    for place in (0, CHUNK - 1, CHUNK, 4 * CHUNK + 5):
        changed = list(tokens)
        changed[place] = (changed[place] + 1) % families.VOCAB
        same = (logits(model, changed) == before).all(-1)
        own = range(place, (place // CHUNK + 1) * CHUNK)
        assert [i for i, equal in enumerate(same) if not equal] == list(own)


@needs_library
@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_drafts_across_a_border_change_nothing(kind: str, tmp_path: Path) -> None:
    """Chains and trees from every place of a chunk on, also behind a prefix that was read before."""
    save(tmp_path)
    target = load_model(tmp_path, ModelOptions(dtype="float32"))
    from outrider.drafters.text.ngram import NgramDrafter

    serving = engine(target, more=lambda cache: {"ngram": NgramDrafter(families.VOCAB)}, slots=4, kind=kind)
    params = SamplingParams(max_tokens=16)
    pattern = small_models.ids(5, families.VOCAB)
    prompts = [(pattern * 9)[: 3 * CHUNK + offset] for offset in range(-3, 4)]
    plain = [generate(serving, prompt, params) for prompt in prompts]
    for tree in (None, "dynamic", (3, 2, 1)):
        options: dict[str, Any] = {"draft": "ngram", "tree": tree, "tree_nodes": 8, "spec_length": 5}
        requests = [request(prompt, params, id=f"{tree} {i}", **options) for i, prompt in enumerate(prompts)]
        run(serving, *requests)
        assert [list(r.output) for r in requests] == plain
        assert sum(r.stats.num_draft_tokens for r in requests) > 20


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"layer_types": ["full_attention", "sliding_attention"] * 2}, "layer_types"),
        ({"no_rope_layers": [1, 2, 0, 1]}, "no_rope_layers"),
        ({"moe_layers": [1.5]}, "moe_layers"),
        ({"attention_chunk_size": None, "layer_types": ["chunked_attention"] * 4}, "attention_chunk_size"),
        ({"num_experts_per_tok": 9}, "num_experts_per_tok=9"),
        ({"hidden_act": "gelu"}, "hidden_act"),
        ({"attn_scale": -1.0}, "attn_scale"),
        ({"partial_rotary_factor": 0.5, "rope_parameters": {"rope_type": "linear", "factor": 2.0}}, "partial_rotary"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_would_change_the_output_is_refused(changes: dict[str, Any], said: str) -> None:
    raw = to_hf_config(families.config_of("llama4"))
    with pytest.raises(ModelFormatError, match=said):
        parse_config(raw | changes)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"attention.sliding_window": 0}, "sliding_window=0"),
        ({"rope.freq_base_swa": 1e4}, "freq_base_swa"),
        ({"interleave_moe_layer_step": 3}, "missing|belongs to no"),
    ],
)
def test_gguf_files_that_are_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    tensors, _, _ = save(tmp_path, **AS_KNOWN)
    write_gguf(tmp_path / "m.gguf", tensors, **changes)
    with pytest.raises(ModelFormatError, match=said):
        open_gguf(tmp_path / "m.gguf")
