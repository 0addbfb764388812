"""A process's share of a model that several processes run together."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from outrider.cache.protocol import CacheSpec, KVCache
from outrider.errors import ConfigError
from outrider.models.batch import ForwardBatch
from outrider.models.config import ModelConfig
from outrider.native.model_structs import ShardStruct
from outrider.native.structs import WeightStruct

__all__ = ["Exchange", "Followers", "Shard", "check_size", "split"]

_PANEL = 16
"""Outputs that the library computes together."""
_GROUP = 32
"""Inputs of the next layer that have one scale: a share of whole groups can be gathered as codes."""


class Exchange(Protocol):
    """Gathers the columns that each process has computed."""

    @property
    def function(self) -> int:
        """Address of an ``outrider_gather``."""
        ...

    @property
    def context(self) -> int:
        """Address of its first argument."""
        ...


class Followers(Protocol):
    """The other processes, for the first one, which leads."""

    def new_cache(self, cache: KVCache, spec: CacheSpec) -> None:
        """Make the same cache for each process's own heads, and repeat every change of rows of ``cache`` there."""
        ...

    def forward(self, batch: ForwardBatch, cache: KVCache) -> AbstractContextManager[None]:
        """A context in which the others compute their shares of a forward pass, and the caller its own."""
        ...


def split(total: int, size: int, unit: int = 1) -> list[int]:
    """Bounds [size + 1] of ``size`` nearly equal shares of ``total``, in whole units; the last share may be empty."""
    units = -(-total // unit)
    return [min(total, -(-rank * units // size) * unit) for rank in range(size + 1)]


def check_size(config: ModelConfig, size: int) -> None:
    """Raise ConfigError unless each process of ``size`` would have a share of every MLP, none being of all tokens."""
    if config.experts is not None and config.experts.shared_size:
        raise ConfigError(f"{config.family} cannot be split over processes: use tensor_parallel_size=1")
    sizes = [config.intermediate_size, *([config.experts.size] if config.experts else ())]
    most = min(-(-inner // _GROUP) for inner in sizes)
    if size > most:
        raise ConfigError(
            f"tensor_parallel_size={size} is too many for {config.family}, whose MLPs of {min(sizes)} "
            f"have {most} shares of {_GROUP}: use at most {most}"
        )


class Shard:
    """This process's place among the processes that share a model's matrices by their outputs.

    ::

        key heads 3, size 2       process 0   heads 0 1       process 1   head 2
    """

    def __init__(
        self,
        rank: int,
        size: int,
        exchange: Exchange,
        *,
        followers: Followers | None = None,
    ) -> None:
        """``rank`` of ``size`` processes; ``followers``: the other processes, for rank 0."""
        self.rank, self.size, self.exchange, self.followers = rank, size, exchange, followers

    def of(self, config: ModelConfig) -> ShardOf:
        """The shares of a model's matrices."""
        return ShardOf(self, config)


class ShardOf:
    """A shard of one model: bounds of its matrices, and their struct for the native library."""

    def __init__(self, shard: Shard, config: ModelConfig) -> None:
        self.shard, c = shard, config
        experts = c.experts.size if c.experts else 0
        bounds = {
            "key_heads": split(c.num_kv_heads, shard.size),
            "hidden": split(c.hidden_size, shard.size, _PANEL),
            "inner": split(c.intermediate_size, shard.size, _GROUP),
            "expert_inner": split(experts, shard.size, _GROUP),
            "vocabulary": split(c.vocab_size, shard.size, _PANEL),
        }
        self._bounds = bounds
        self._arrays = {name: (ctypes.c_int64 * len(values))(*values) for name, values in bounds.items()}
        self.struct = ShardStruct(
            rank=shard.rank,
            size=shard.size,
            group=c.num_heads // c.num_kv_heads,
            gather=shard.exchange.function,
            context=shard.exchange.context,
            **{name: ctypes.addressof(array) for name, array in self._arrays.items()},
        )
        self._head_columns = {"q_proj": self.struct.group * c.head_dim, "k_proj": c.head_dim, "v_proj": c.head_dim}

    def outputs(self, name: str) -> range:
        """This process's rows of a matrix, by its canonical name: ``model.layers.0.mlp.experts.3.up_proj``."""
        parent, last = ["", *name.split(".")][-2:]
        if last in self._head_columns:
            return self._share("key_heads", self._head_columns[last])
        if last in ("gate_proj", "up_proj"):
            return self._share("inner" if parent == "mlp" else "expert_inner")
        return self._share("vocabulary" if last in ("lm_head", "embed_tokens") else "hidden")

    def part_of_head(self, head: WeightStruct) -> WeightStruct:
        """This process's part of the LM head that it holds; rank 0 holds the whole head, and its part comes first."""
        part = WeightStruct.from_buffer_copy(head)
        part.outputs = len(self._share("vocabulary"))
        return part

    @property
    def key_heads(self) -> int:
        return len(self._share("key_heads"))

    @property
    def query_heads(self) -> int:
        return self.key_heads * int(self.struct.group)

    @property
    def own_query_heads(self) -> range:
        return self._share("key_heads", int(self.struct.group))

    def _share(self, name: str, unit: int = 1) -> range:
        bounds: Sequence[int] = self._bounds[name]
        return range(bounds[self.shard.rank] * unit, bounds[self.shard.rank + 1] * unit)
