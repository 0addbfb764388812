"""Tests batch invariance on this machine: a row has the same bits in every batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.cache import CacheSpec
from outrider.config import DTypeName
from outrider.models.base import LoadedModel
from outrider.models.batch import ForwardBatch, Span
from outrider.models.config import ModelConfig
from outrider.models.factory import make_model
from outrider.verify.arrays import Floats, host

_ROWS = 40  # enough rows for passes of many sizes
_START = 500  # the rows cross a block of keys

_CONFIG = ModelConfig(
    family="llama",
    vocab_size=512,
    hidden_size=576,
    intermediate_size=1536,
    num_layers=2,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    max_seq_len=1024,
)


@dataclass(frozen=True)
class Finding:
    """Whether rows of chains and trees were bit-identical in one dtype, and their largest difference."""

    dtype: str
    chains: bool
    trees: bool
    largest_difference: float


def probe(dtype: DTypeName, device: Any = "cpu") -> Finding:
    """Score the same tokens in one forward pass, in passes of 1 to 17 rows, and scattered among refused tree nodes.

    The model is random, with the dimensions of SmolLM2.
    """
    generator = np.random.default_rng(0)
    model = make_model(_CONFIG, _random_weights(generator), dtype=dtype, device=device)
    tokens = generator.integers(_CONFIG.vocab_size, size=_START + _ROWS)
    whole = _run(model, [_START, _ROWS], tokens)
    chains = [_run(model, [_START, *([n] * (_ROWS // n))], tokens) for n in (1, 2, 3, 5, 8, 17)]
    tree = _run_scattered(model, tokens)
    differences = [float(np.abs(c - whole[: len(c)]).max()) for c in chains]
    differences.append(float(np.abs(tree - whole[: len(tree)]).max()))
    return Finding(dtype, not any(differences[:-1]), not differences[-1], max(differences))


def _random_weights(generator: np.random.Generator) -> dict[str, Floats]:
    c = _CONFIG
    d, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
    shapes = {"model.embed_tokens": (c.vocab_size, d), "lm_head": (c.vocab_size, d)}
    norms = ["model.norm"]
    for i in range(c.num_layers):
        name = f"model.layers.{i}."
        shapes |= {name + "self_attn.q_proj": (d, d), name + "self_attn.o_proj": (d, d)}
        shapes |= {name + f"self_attn.{x}_proj": (kv, d) for x in "kv"}
        shapes |= {name + f"mlp.{x}_proj": (c.intermediate_size, d) for x in ("gate", "up")}
        shapes |= {name + "mlp.down_proj": (d, c.intermediate_size)}
        norms += [name + "input_layernorm", name + "post_attention_layernorm"]
    weights = {
        f"{k}.weight": (generator.standard_normal(s) / s[1] ** 0.5).astype(np.float32) for k, s in shapes.items()
    }
    return weights | {f"{k}.weight": np.ones(d, np.float32) for k in norms}


def _run(model: LoadedModel, counts: list[int], tokens: NDArray[np.int64]) -> Floats:
    """Logits of the rows after the first pass, reading the tokens in passes of ``counts``."""
    cache = model.new_cache(CacheSpec(max_seq_len=_CONFIG.max_seq_len))
    slot, start, parts = cache.allocate(), 0, []
    for count in counts:
        cache.extend(slot, count)
        end = start + count
        batch = ForwardBatch(tokens[start:end].tolist(), range(start, end), (Span(slot, start, count),), None)
        parts.append(host(model.forward(batch, cache).logits))
        start = end
    return np.concatenate(parts[1:])


def _run_scattered(model: LoadedModel, tokens: NDArray[np.int64]) -> Floats:
    """Logits of eight rows, every other node of a tree; the nodes between them are wrong siblings."""
    cache = model.new_cache(CacheSpec(max_seq_len=_CONFIG.max_seq_len))
    slot = cache.allocate()
    cache.extend(slot, _START)
    model.forward(ForwardBatch(tokens[:_START].tolist(), range(_START), (Span(slot, 0, _START),), None), cache)
    n = 16  # nodes 1, 3, 5, ... continue the text; nodes 0, 2, 4, ... are their refused siblings
    places = np.arange(n)
    depth = places // 2
    mask = np.eye(n, dtype=np.bool_) | ((places % 2 == 1) & (places < 2 * depth[:, None]))
    ids = np.where(places % 2 == 1, tokens[_START + depth], 7)
    cache.extend(slot, n)
    span = Span(slot, _START, n, mask)
    batch = ForwardBatch(ids.tolist(), (_START + depth).tolist(), (span,), None)
    return host(model.forward(batch, cache).logits)[1::2]
