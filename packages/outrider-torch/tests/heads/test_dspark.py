"""DSpark's published heads: read in every layout, and equal to its formulas written in NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGUFWriter
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.masked import DSpark
from outrider.errors import ModelFormatError
from outrider_torch.drafters.diffusion import _attended
from outrider_torch.heads import load_head
from outrider_torch.heads.diffusion import block_tokens
from outrider_torch.heads.dspark import DSparkHead
from tests.heads import heads
from tests.heads.test_published import EMBEDDING, TARGET, layer, library
from tests.weights.files import finish

Array = NDArray[np.float64]
BOTH: dict[str, Any] = {"rank": 4, "confidence": True, "confidence_reads_token": True}


def authors(config: HeadConfig) -> dict[str, Any]:
    """``config.json`` of DSpark's authors: one level, layers counted from 0."""
    own = config.dspark
    assert own is not None
    return layer(config) | {
        "architectures": ["Qwen3DSparkModel"],
        "block_size": config.heads,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": [i - 1 for i in config.feature_layers],
        "num_target_layers": 2,
        "num_anchors": 512,
        "markov_rank": own.rank,
        "markov_head_type": "gated" if own.gated else "vanilla",
        "enable_confidence_head": own.confidence,
        "confidence_head_with_markov": own.confidence_reads_token,
    }


def liquid(config: HeadConfig) -> dict[str, Any]:
    """Of LFM2: rotated pairs are neighbours, and a part of the keys stands in ``dflash_config``."""
    own = ("mask_token_id", "target_layer_ids", "num_target_layers")
    raw = authors(config) | {"architectures": ["Lfm2DSparkDraftModel"], "rope_is_neox_style": False}
    del raw["confidence_head_with_markov"]
    return {key: raw[key] for key in raw if key not in own} | {"dflash_config": {key: raw[key] for key in own}}


def nvidia(config: HeadConfig) -> dict[str, Any]:
    """Of Nemotron: sinks, a causal window in all layers, and the last token's row guesses nothing."""
    raw = authors(config) | {"architectures": ["DSparkDraftModel"], "block_size": config.heads + 1}
    raw |= {"layer_types": ["full_attention"] * 2, "sliding_window": None, "use_sliding_window": False}
    own = {"attention_sink_bias": True, "causal": True, "use_swa": True, "swa_window_size": 6}
    return raw | {"sample_from_anchor": False, "dflash_config": own}


def speculators(config: HeadConfig) -> dict[str, Any]:
    own = config.dspark
    assert own is not None
    raw = library(config) | {"architectures": ["DSparkSpeculator"], "speculators_model_type": "dspark"}
    raw |= {"markov_rank": own.rank, "markov_head_type": "vanilla", "enable_confidence_head": own.confidence}
    return raw | {
        "confidence_head_with_markov": own.confidence_reads_token,
        "sample_from_anchor": own.from_anchor,
        "block_size": config.block_rows,
        "ce_loss_alpha": 1.0,
    }


NAMES = {
    "markov.before.": "markov_head.markov_w1.",
    "markov.after.": "markov_head.markov_w2.",
    "markov.gate.": "markov_head.gate_proj.",
    "confidence.": "confidence_head.proj.",
    "sinks": "attention_sink_bias",
}


def publish(folder: Path, raw: dict[str, Any], head: DSparkHead, **more: Tensor) -> dict[str, Tensor]:
    """A folder with the head under published names. Returns the tensors."""
    state: dict[str, Tensor] = {}
    for name, value in head.state_dict().items():
        for own, published in NAMES.items():
            name = name.replace(own, published)
        state[name] = value
    if not raw.get("rope_is_neox_style", True):
        rotated = ("q_proj.weight", "k_proj.weight", "q_norm.weight", "k_norm.weight")
        for name in state:
            if name.endswith(rotated):  # of each head, dimensions 0, 4, 1, 5 ... in this order
                apart = state[name].unflatten(0, (-1, 2, head.config.head_dim // 2))
                state[name] = apart.transpose(1, 2).flatten(0, 2).contiguous()
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(raw))
    save_file(state | more, folder / "model.safetensors")
    return state | more


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "authors": (authors, {"dspark": DSpark(**BOTH), "layer_windows": ()}),
    "authors, gated": (authors, {"dspark": DSpark(**BOTH | {"gated": True}), "layer_windows": ()}),
    "authors, no confidence": (authors, {"dspark": DSpark(rank=4), "layer_windows": ()}),
    "liquid": (liquid, {"dspark": DSpark(**BOTH), "layer_windows": ()}),
    "nvidia": (
        nvidia,
        {"dspark": DSpark(**BOTH, from_anchor=False, sinks=True), "layer_windows": (6, 6), "causal_windows": True},
    ),
    "library": (speculators, {"dspark": DSpark(**BOTH | {"confidence_reads_token": False}), "layer_windows": ()}),
    "library, partial": (
        speculators,
        {"dspark": DSpark(**BOTH, from_anchor=False), "draft_vocab_size": 32, "own_lm_head": True, "layer_windows": ()},
    ),
}


@pytest.mark.parametrize("name", CASES)
@torch.inference_mode()
def test_a_published_head_computes_its_authors_formulas(name: str, tmp_path: Path) -> None:
    """The file is read by the library, and by the reference below; a chain of its best tokens is followed."""
    write, changes = CASES[name]
    layers = (1, 2) if write is speculators else (1,)  # of two layers, authors' files can name the first alone
    head, config = heads.random("dspark", rope_theta=5000.0, feature_layers=layers, **changes)
    assert isinstance(head, DSparkHead)
    for norm in (n for n, p in head.named_parameters() if p.dim() == 1 and "bias" not in n):
        head.get_parameter(norm).copy_(1 + 0.3 * torch.randn(head.get_parameter(norm).shape))
    more = {}
    if config.draft_vocab_size is not None:
        ids = torch.randperm(64)[:32]
        more = {
            "d2t": ids - torch.arange(32),
            "t2d": torch.zeros(64, dtype=torch.bool),
            "embed_tokens.weight": EMBEDDING,
        }
    raw = write(config)
    published = publish(tmp_path / "head", raw, head, **more)
    found, read = load_head(tmp_path / "head", target=TARGET)
    same = {field: getattr(config, field) for field in vars(config) if field not in ("training", "max_seq_len")}
    assert {field: getattr(read, field) for field in same} == same
    assert isinstance(found, DSparkHead)
    features = torch.randn(9, len(layers) * config.hidden_size, generator=torch.Generator().manual_seed(1))
    tokens = [7]
    expected, sure = reference(published, raw, read, features.double().numpy(), tokens[0])
    outputs = rows_of(found, features, tokens[0])
    for k in range(config.heads):
        scores = (found.lm_head(outputs[k]) if found.lm_head is not None else EMBEDDING @ outputs[k]).double()
        before = torch.tensor([tokens[-1]])
        assert found.markov is not None
        scores = scores + found.markov(outputs[k][None], before)[0]
        full = torch.full((64,), -torch.inf, dtype=torch.float64)
        full[slice(None) if found.draft_ids is None else found.draft_ids] = scores
        wanted = torch.from_numpy(expected[k])
        seen = torch.isfinite(wanted)
        assert torch.equal(seen, torch.isfinite(full))
        torch.testing.assert_close(full[seen], wanted[seen], rtol=1e-4, atol=1e-4)
        if config.dspark is not None and config.dspark.confidence:
            said = float(found.sure(outputs[k][None], before).exp())
            assert said == pytest.approx(sure[k], abs=1e-5)
        tokens.append(int(wanted.argmax()))


def rows_of(head: DSparkHead, features: Tensor, last: int) -> Tensor:
    """The guessing rows' outputs behind nine features, [heads, d]."""
    c, n = head.config, len(features)
    context = head.context(head.fuse(features), torch.arange(n))
    windows, sinks = iter(c.layer_windows or (0, 0)), iter(each.self_attn.sinks for each in head.own_layers())

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (keys, values), window = context.pop(0), next(windows)
        first = max(0, n - window) if window else 0
        mask = torch.ones(len(q), n - first + len(q)).tril(n - first).bool() if window and c.causal_windows else None
        return _attended(q, torch.cat([keys[first:], k]), torch.cat([values[first:], v]), mask, next(sinks))

    at = torch.arange(n, n + c.block_rows)
    return head(EMBEDDING[block_tokens(last, c)], at, attend)[c.block_rows - c.heads :]  # type: ignore[no-any-return]


def reference(
    published: dict[str, Tensor], raw: dict[str, Any], config: HeadConfig, features: Array, last: int
) -> tuple[Array, list[float]]:
    """Scores [heads, vocab] and confidences of a greedy chain, in float64, from the published tensors alone."""
    w = {name: value.double().numpy() for name, value in published.items()}
    n, rows, d = len(features), config.block_rows, config.head_dim
    theta, eps, neighbours = config.rope_theta, config.rms_norm_eps, not raw.get("rope_is_neox_style", True)

    def norm(x: Array, weight: Array) -> Array:
        out: Array = x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight
        return out

    def turned(x: Array, at: NDArray[Any]) -> Array:
        angle = at[:, None, None] * theta ** (-np.arange(d // 2) * 2 / d)
        first, second = (x[..., ::2], x[..., 1::2]) if neighbours else (x[..., : d // 2], x[..., d // 2 :])
        out = np.empty_like(x)
        parts = first * np.cos(angle) - second * np.sin(angle), second * np.cos(angle) + first * np.sin(angle)
        if neighbours:
            out[..., ::2], out[..., 1::2] = parts
        else:
            out[..., : d // 2], out[..., d // 2 :] = parts
        return out

    fused = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"])
    assert config.mask_token_id is not None
    x = EMBEDDING.double().numpy()[[last, *[config.mask_token_id] * (rows - 1)]]
    for i in range(config.num_layers):
        own = {name.removeprefix(f"layers.{i}."): value for name, value in w.items() if name.startswith(f"layers.{i}.")}
        h = norm(x, own["input_layernorm.weight"])
        both, at = np.concatenate([fused, h]), np.arange(n + rows)
        q = (h @ own["self_attn.q_proj.weight"].T).reshape(rows, -1, d)
        k = (both @ own["self_attn.k_proj.weight"].T).reshape(n + rows, -1, d)
        v = (both @ own["self_attn.v_proj.weight"].T).reshape(n + rows, -1, d)
        q = turned(norm(q, own["self_attn.q_norm.weight"]), at[n:])
        k = turned(norm(k, own["self_attn.k_norm.weight"]), at)
        k, v = (np.repeat(y, config.num_heads // config.num_kv_heads, 1) for y in (k, v))
        scores = np.einsum("qhd,khd->hqk", q, k) / np.sqrt(d)
        window = config.layer_windows[i] if config.layer_windows else 0
        hidden = np.zeros((rows, n + rows), bool)
        if window:
            hidden[:, : n - window] = True
            hidden |= np.triu(np.ones((rows, n + rows), bool), n + 1) & config.causal_windows
        scores[:, hidden] = -np.inf
        if "self_attn.attention_sink_bias" in own:
            sinks = own["self_attn.attention_sink_bias"][:, None, None].repeat(rows, 1)
            scores = np.concatenate([scores, sinks], -1)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        weights = (weights / weights.sum(-1, keepdims=True))[..., : n + rows]
        x = x + np.einsum("hqk,khd->qhd", weights, v).reshape(rows, -1) @ own["self_attn.o_proj.weight"].T
        h = norm(x, own["post_attention_layernorm.weight"])
        gate = h @ own["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
    out = norm(x, w["norm.weight"])[rows - config.heads :]
    ids = w["d2t"].astype(int) + np.arange(len(w["d2t"])) if "d2t" in w else np.arange(64)
    found, sure, token = np.full((config.heads, 64), -np.inf), list[float](), last
    for k, hidden_row in enumerate(out):
        seen = w["markov_head.markov_w1.weight"][token]
        both = np.concatenate([hidden_row, seen])
        if "confidence_head.proj.weight" in w:
            read = w["confidence_head.proj.weight"][0]
            sure.append(float(1 / (1 + np.exp(-(both[: len(read)] @ read + w["confidence_head.proj.bias"][0])))))
        if "markov_head.gate_proj.weight" in w:
            gate = w["markov_head.gate_proj.weight"] @ both + w["markov_head.gate_proj.bias"]
            seen = seen / (1 + np.exp(-gate))
        base = w.get("lm_head.weight", EMBEDDING.double().numpy()) @ hidden_row
        found[k, ids] = base + w["markov_head.markov_w2.weight"] @ seen
        token = int(found[k].argmax())
    return found, sure


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"markov_head_type": "rnn"}, "markov_head_type='rnn'"),
        ({"markov_rank": 0}, "markov_rank=0"),
        ({"markov_rank": 10**6}, "markov_rank"),
        ({"sample_from_anchor": "yes"}, "from_anchor"),
        ({"projector_type": "domino"}, "projector_type"),
        ({"causal": True}, "causal"),
        ({"model_type": "gemma4_text"}, "model_type"),
        ({"novelty": 1}, "novelty"),
    ],
)
def test_what_is_not_understood_is_refused(change: dict[str, Any], said: str, tmp_path: Path) -> None:
    head, config = heads.random("dspark", layer_windows=(), feature_layers=(1,))
    assert isinstance(head, DSparkHead)
    publish(tmp_path / "head", authors(config) | change, head)
    with pytest.raises(ModelFormatError, match=said):
        load_head(tmp_path / "head", target=TARGET)


GGUF_BLOCK = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm", "self_attn.sinks": "attn_sinks.weight", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip
GGUF_NAMES = {
    "hidden_norm": "enc.output_norm", "norm": "output_norm", "lm_head": "output", "markov.before": "markov_w1",
    "markov.after": "markov_w2", "confidence": "conf_proj",
}  # fmt: skip


def write_gguf(path: Path, head: DSparkHead, **changes: Any) -> None:
    """The head as llama.cpp's converter writes it."""
    c, own = head.config, head.config.dspark
    assert own is not None
    writer = GGUFWriter(path, "dflash")
    keys: dict[str, Any] = {
        "block_count": c.num_layers, "embedding_length": c.hidden_size, "feed_forward_length": c.intermediate_size,
        "context_length": 128, "attention.head_count": c.num_heads, "attention.head_count_kv": c.num_kv_heads,
        "attention.key_length": c.head_dim, "attention.value_length": c.head_dim, "rope.freq_base": c.rope_theta,
        "attention.layer_norm_rms_epsilon": c.rms_norm_eps, "block_size": c.block_rows,
        "target_layers": list(c.feature_layers), "sample_from_anchor": own.from_anchor,
        "has_confidence_head": own.confidence,
    } | changes  # fmt: skip
    if any(c.layer_windows):
        keys["attention.sliding_window"] = max(c.layer_windows)
        keys["attention.sliding_window_pattern"] = [window > 0 for window in c.layer_windows]
        keys["attention.causal"] = c.causal_windows
    for key, value in keys.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
        add[type(value)](f"dflash.{key}", value)
    writer.add_uint32("tokenizer.ggml.mask_token_id", c.mask_token_id or 0)
    writer.add_array("tokenizer.ggml.tokens", [f"t{i}" for i in range(c.vocab_size)])
    for name, value in head.state_dict().items():
        stem, _, kind = name.rpartition(".")
        if name == "d2t":
            writer.add_tensor("d2t", value.numpy())
            continue
        if name.endswith("sinks"):
            stem, kind = name, "weight"
        if stem.startswith("layers."):
            layer_number, stem = stem.removeprefix("layers.").split(".", 1)
            named = f"blk.{layer_number}.{GGUF_BLOCK[stem].removesuffix('.weight')}"
        else:
            named = GGUF_NAMES.get(stem, stem)
        writer.add_tensor(f"{named}.{kind}", value.numpy())
    finish(writer)


@pytest.mark.parametrize("name", ["authors", "authors, no confidence", "nvidia", "library, partial"])
def test_a_head_in_a_gguf_file_is_the_same(name: str, tmp_path: Path) -> None:
    head, config = heads.random("dspark", rope_theta=5000.0, **CASES[name][1])
    assert isinstance(head, DSparkHead)
    if config.draft_vocab_size is not None:
        head.set_draft_ids(torch.arange(0, 64, 2))
    write_gguf(tmp_path / "head.gguf", head)
    found, read = load_head(tmp_path / "head.gguf", target=TARGET)
    same = {field: getattr(config, field) for field in vars(config) if field not in ("training", "max_seq_len")}
    same["rms_norm_eps"] = pytest.approx(config.rms_norm_eps)
    assert {field: getattr(read, field) for field in same} == same
    for tensor, value in head.state_dict().items():
        assert torch.equal(value, found.state_dict()[tensor]), tensor


def test_a_gguf_file_that_is_not_understood_is_refused(tmp_path: Path) -> None:
    head, _ = heads.random("dspark", layer_windows=())
    assert isinstance(head, DSparkHead)
    write_gguf(tmp_path / "scaled.gguf", head, embedding_scale=2.0)
    with pytest.raises(ModelFormatError, match="embedding_scale"):
        load_head(tmp_path / "scaled.gguf", target=TARGET)
    GGUFWriter(tmp_path / "llama.gguf", "llama").write_header_to_file()
    with pytest.raises(ModelFormatError):
        load_head(tmp_path / "llama.gguf", target=TARGET)
