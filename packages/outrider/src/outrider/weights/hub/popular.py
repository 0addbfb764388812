"""Models that people run, as data: their dimensions, from which memory is computed. Nothing is fetched."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import num_layer_weights
from outrider.weights.hf_config.config import parse_config

__all__ = ["MEMORIES", "PopularModel", "popular_models"]

MEMORIES = 8, 16, 32, 64
"""GB of memory that machines have."""

_DATA = Path(__file__).with_name("popular.json")
_Q4_K, _Q6_K, _MXFP4, _Q8_0 = 4.5, 6.5625, 4.25, 8.5  # bits of a weight


@dataclass(frozen=True)
class PopularModel:
    """A published model. ``tried``: its published weights have been run here, not random ones of its dimensions."""

    name: str
    """On the hub."""
    billions: float
    """Parameters, as its authors count them."""
    type: str
    """Of the weights in the GGUF files that people use."""
    tools: bool
    """Its chat template has tool calls."""
    tried: bool
    config: ModelConfig

    def sizes(self) -> dict[str, int]:
        """Bytes of the matrices that a pass reads: dense layers, experts, and the LM head, which comes last."""
        c, experts = self.config, self.config.experts
        all_layers, head = num_layer_weights(c), c.vocab_size * c.hidden_size
        sparse = sum(c.is_sparse(layer) for layer in range(c.num_layers))
        in_experts = 0 if experts is None else 3 * sparse * experts.count * experts.size * c.hidden_size
        dense = all_layers - in_experts
        if self.type == "MXFP4":
            bits = {"dense": dense * _Q8_0, "layers.experts.all": in_experts * _MXFP4, "lm_head": head * _Q8_0}
        else:  # Q4_K_M: half of the layers have values and down projections in Q6_K, and so is the LM head
            values = c.num_layers * c.hidden_size * c.num_kv_heads * c.head_dim
            down = 0 if experts is not None else c.num_layers * c.hidden_size * c.intermediate_size
            more = (_Q6_K - _Q4_K) / 2
            bits = {
                "dense": dense * _Q4_K + (values + down) * more,
                "layers.experts.all": in_experts * (_Q4_K + more / 3),
                "lm_head": head * _Q6_K,
            }
        return {name: round(each / 8) for name, each in bits.items()}

    def file_bytes(self) -> int:
        """Of the GGUF file: the matrices, and the embedding where it is none of them."""
        c = self.config
        table = 0 if c.tie_embeddings else c.vocab_size * c.hidden_size
        return sum(self.sizes().values()) + round(table * (_Q8_0 if self.type == "MXFP4" else _Q4_K) / 8)


@cache
def popular_models() -> tuple[PopularModel, ...]:
    """All of them, the smallest first."""
    found = json.loads(_DATA.read_text())
    return tuple(PopularModel(**each | {"config": parse_config(each["config"])}) for each in found)
