"""The division of memory between weights, caches and activations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from outrider.cache.pool import itemsize, token_bytes
from outrider.cache.protocol import CacheSpec
from outrider.config import EngineConfig
from outrider.engine.state_plan import NO_STATES, StatePlan, plan_states
from outrider.errors import CapacityError
from outrider.extensions import extension
from outrider.models.base import LoadedModel
from outrider.models.config import ModelConfig
from outrider.utils.memory import available_memory
from outrider.verify.shapes import max_depth, max_nodes

BLOCK_SIZE = CacheSpec.block_size
"""Tokens in a block of the paged cache."""
SHARE_FOR_CACHE = 0.6  # share of the memory available after loading weights; the rest is for activations
LEAST_SHARE = 0.25
"""Share of the available memory that is divided between the caches however large mapped weights are."""


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes reserved before the first request, and the tokens of the cache."""

    target_weights: int
    draft_weights: int
    target_pool: int
    draft_pool: int
    activations: int
    kv_tokens: int
    beyond: int = 0
    """Bytes that mapped weights and caches need beyond the memory there is."""
    states: StatePlan = NO_STATES

    @property
    def total(self) -> int:
        weights = self.target_weights + self.draft_weights
        return weights + self.target_pool + self.draft_pool + self.states.nbytes + self.activations

    def cache_spec(self, config: EngineConfig, max_seq_len: int) -> CacheSpec:
        """The target's cache. A contiguous cache has as many slots of full length as fit into the plan."""
        places = self.states.places or config.max_batch_size
        if config.kv_cache == "contiguous":
            places = min(places, self.kv_tokens // max_seq_len)
        return CacheSpec(
            slots=places,
            max_seq_len=max_seq_len,
            kind=config.kv_cache,
            tokens=self.kv_tokens,
            block_size=BLOCK_SIZE,
            prefix_reuse=config.prefix_reuse,
            pending=self.states.pending,
            checkpoints=self.states.checkpoints,
            branches=self.states.branches,
        )

    def line(self) -> str:
        """The budget in one line, for the start of a command."""
        weights = self.target_weights + self.draft_weights
        pools = self.target_pool + self.draft_pool
        states = f"recurrent states {self.states.nbytes / 1e6:,.0f} + " if self.states.nbytes else ""
        return (
            f"memory: {self.total / 1e6:,.0f} MB = weights {weights / 1e6:,.0f} + cache of {self.kv_tokens:,} tokens "
            f"{pools / 1e6:,.0f} + {states}activations {self.activations / 1e6:,.0f}"
        )

    def lines(self) -> list[str]:
        """The budget as a table, one line per part."""
        states = self.states.places + (0 if self.states.branches_wait else self.states.branches)
        parts = {
            "target weights": self.target_weights,
            "draft weights": self.draft_weights,
            f"target cache, {self.kv_tokens} tokens": self.target_pool,
            "draft cache": self.draft_pool,
            f"recurrent states, {states} and {self.states.checkpoints} copies": self.states.nbytes,
            "activations": self.activations,
            "together": self.total,
        }
        return [f"{name:32} {size / 1e6:10,.0f} MB" for name, size in parts.items() if size]


def available_bytes(device: Any) -> int:
    """The free memory of the device now, without swapping, in bytes."""
    if str(device) != "cpu":
        return int(extension("backends", "torch").free_memory(device))
    return available_memory()


def row_bytes(model: LoadedModel) -> int:
    """The cache bytes of one token: keys and values of every layer that has its own."""
    return config_row_bytes(model.config, model.cache_dtype)


def config_row_bytes(c: ModelConfig, cache_dtype: Any) -> int:
    """The same, of a model of this configuration with keys and values of this type."""
    sizes = {"kv_heads": c.num_kv_heads, "head_dim": c.head_dim, "value_dim": c.value_dim}
    return token_bytes(layers=len(c.cache_layers), **sizes, heads=c.cache_heads, dtype=cache_dtype)


def _activation_bytes(target: LoadedModel, config: EngineConfig) -> int:
    """Bytes of a forward pass besides weights and caches."""
    c, rows, speculation = target.config, config.max_batched_tokens, config.speculation
    scored = 1 + max_nodes(speculation, max_depth(speculation, adaptive=True))
    logits = min(rows, config.max_batch_size * scored) * c.vocab_size * 4
    latents = 0 if c.latent is None else 3 * c.num_heads * c.head_dim  # queries in all forms, and what they attended to
    numbers = rows * (8 * c.hidden_size + 3 * c.intermediate_size + latents)
    numbers += config.max_batch_size * c.attached_numbers
    return logits + numbers * itemsize(target.dtype)


def plan_memory(
    target: LoadedModel,
    drafts: Sequence[LoadedModel],
    config: EngineConfig,
    available: int,
    head_weights: int = 0,
    head_row: int = 0,
    mapped: int = 0,
) -> MemoryPlan:
    """Divide ``available`` bytes between the caches; weights are in memory already, but for those that are mapped.

    The contiguous cache has a slot of full length for each of ``max_batch_size`` requests, or as many as fit. The
    paged cache has ``kv_tokens`` tokens, by default enough for a full batch, or as many as fit.

    Args:
        head_weights: bytes of trained heads.
        head_row: bytes per token in the caches of trained heads.
        mapped: bytes of weights that are mapped from files. They count as available, as the system may drop them.

    Raises:
        CapacityError: not even one sequence of full length fits, or ``kv_tokens`` does not fit.
    """
    max_seq_len = target.config.max_seq_len
    per_token, per_draft_token = row_bytes(target), sum(row_bytes(draft) for draft in drafts) + head_row
    activations = _activation_bytes(target, config)
    free = max(available - mapped, int(available * LEAST_SHARE)) if mapped else available
    room = max(0, int(free * SHARE_FOR_CACHE) - activations)
    states = plan_states(target, drafts, config, room)
    room = max(0, room - states.nbytes)
    fitting = room // (per_token + per_draft_token)
    if config.kv_tokens is not None and config.kv_tokens > fitting:
        raise CapacityError(
            f"kv_tokens={config.kv_tokens} needs {config.kv_tokens * (per_token + per_draft_token) / 1e9:.1f} GB of "
            f"cache, but {room / 1e9:.1f} GB are free for it: ask for at most {fitting}"
        )
    tokens = min(config.max_batch_size * max_seq_len if config.kv_tokens is None else config.kv_tokens, fitting)
    if tokens < max_seq_len:
        raise CapacityError(
            f"a cache of {tokens} tokens cannot hold one sequence of max_seq_len={max_seq_len}: "
            f"set max_seq_len to at most {tokens}, or {'raise kv_tokens' if config.kv_tokens else 'free memory'}"
        )
    pools = tokens * (per_token + per_draft_token)
    return MemoryPlan(
        target_weights=target.weight_bytes,
        draft_weights=sum(draft.weight_bytes for draft in drafts) + head_weights,
        target_pool=tokens * per_token,
        draft_pool=tokens * per_draft_token,
        activations=activations,
        kv_tokens=tokens,
        beyond=max(0, mapped + pools + states.nbytes + activations - available) if mapped else 0,
        states=states,
    )
