"""The caches of target and draft models: allocation to requests, and the division of memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.cache.hybrid import HybridCache
from outrider.cache.pool import itemsize, token_bytes
from outrider.cache.protocol import CacheSpec, KVCache
from outrider.config import EngineConfig
from outrider.engine.read_plan import ReadPlan
from outrider.engine.request import Request
from outrider.errors import CapacityError
from outrider.extensions import extension
from outrider.models.base import LoadedModel
from outrider.utils.memory import available_memory
from outrider.verify.shapes import max_depth, max_nodes

BLOCK_SIZE = CacheSpec.block_size
"""Tokens in a block of the paged cache."""
SHARE_FOR_CACHE = 0.6  # share of the memory available after loading weights; the rest is for activations
LEAST_SHARE = 0.25
"""Share of the available memory that is divided between the caches however large mapped weights are."""


class CacheMemory:
    """Gives requests their slots and rows in the target's cache, and alone sets ``num_computed_tokens``.

    A draft model's cache is filled lazily and never holds more tokens of a request than the target's, so admission
    takes the minimum of their free rows.
    """

    def __init__(
        self, target: KVCache, draft_caches: Callable[[], Sequence[KVCache]], message_ends: Collection[int] = ()
    ) -> None:
        """
        Args:
            draft_caches: the current caches of draft models, which are loaded on first use.
            message_ends: tokens that end a message; recurrent states are copied after them.
        """
        self.target, self._draft_caches = target, draft_caches
        self._hybrid = target if isinstance(target, HybridCache) else None
        self._message_ends = frozenset(message_ends)

    def caches(self) -> list[KVCache]:
        """The target's cache, then the draft models'."""
        return [self.target, *self._draft_caches()]

    def free_kv_tokens(self) -> int:
        """The free rows for new and running requests: the minimum over all caches."""
        return min(cache.free_tokens() for cache in self.caches())

    def admit(self, request: Request) -> bool:
        """Give the request a slot and its cached prefix if there is room for it; returns whether it has a slot now."""
        first = request.prefix_leader
        if first is not None and first.slot is not None and first.num_computed_tokens < len(first.prompt) - 1:
            return False  # the leader is still reading the shared prompt: wait, and find it in the cache
        if not self.target.can_allocate() or self.free_kv_tokens() == 0:
            return False
        if first is not None and not first.prompt_report.wants_logprobs:
            request.prompt_report.logprobs = first.prompt_report.logprobs
        reads_all = request.prompt_report.wants_logprobs or request.prompt_report.wants_embedding
        reusable = () if reads_all else request.prefix_keys  # cached rows have neither logits nor hidden states
        request.slot = self.target.allocate(reusable, request.prefix_salt)
        request.num_computed_tokens = start = self.target.length(request.slot)
        if self._hybrid is not None:
            request.read_plan = ReadPlan(request.tokens, start, self._message_ends, self._hybrid.states.pending)
        request.admitted()
        return True

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Reserve ``num_tokens`` rows for a step; returns whether they were free."""
        assert request.slot is not None
        if not self.target.can_extend(request.slot, num_tokens):
            return False
        self.target.extend(request.slot, num_tokens)
        return True

    def keep(self, request: Request, num_tokens: int) -> None:
        """Record that the next ``num_tokens`` tokens of a prompt have been read."""
        assert request.slot is not None
        self._computed(request, request.num_computed_tokens + num_tokens)

    def keep_path(self, request: Request, base: int, path: Sequence[int]) -> None:
        """Keep the rows ``base + path[i]`` of an accepted path, and drop those of refused nodes.

        ``base``: tokens of the request before the step that committed the path; all of them have been read.
        """
        assert request.slot is not None
        self.target.keep_path(request.slot, base, path)
        self._computed(request, min(base + len(path), len(request.tokens) - 1))

    def keep_rows(self, request: Request, base: int, rows: Sequence[int]) -> None:
        """Keep the rows before ``base``, and ``base + i`` for each i of ``rows`` (ascending), made contiguous."""
        assert request.slot is not None
        still = next((i for i, row in enumerate(rows) if row != i), len(rows))  # the first ``still`` rows stay in place
        self.target.keep_path(request.slot, base + still, [row - still for row in rows[still:]])
        self._computed(request, base + len(rows))

    def clear(self, request: Request) -> None:
        """Empty a request's slot, whose rows may hold NaN, so that it is read again from the start."""
        assert request.slot is not None
        self.target.zero(request.slot)
        self.target.truncate_to(request.slot, 0)
        request.num_computed_tokens = 0

    def evict(self, request: Request) -> None:
        """Release a request's rows; rows of verified tokens stay in the prefix cache until their memory is needed."""
        assert request.slot is not None
        if request.error is not None:
            self.target.zero(request.slot)
        else:
            self._publish(request, request.slot)
            self._save_state(request, request.slot)
        self.target.free(request.slot)
        request.slot, request.num_computed_tokens = None, 0

    def _computed(self, request: Request, count: int) -> None:
        """Set the number of cached tokens; publishes them after each whole block."""
        block = self.target.pool.block
        more_blocks = count // block > request.num_computed_tokens // block
        request.num_computed_tokens = count
        if request.slot is None:
            return
        if more_blocks:
            self._publish(request, request.slot)
        plan = request.read_plan
        if plan is not None and self._hybrid is not None and plan.is_due(self._hybrid.states.settled(request.slot)):
            self._save_state(request, request.slot)

    def _publish(self, request: Request, slot: int) -> None:
        """Put the rows of verified tokens into the prefix cache, for later requests."""
        if request.prompt_report.wants_embedding:  # a text to embed is rarely a prefix of another
            return
        self.target.publish_prefix(slot, request.prefix_keys[: request.num_computed_tokens], request.prefix_salt)

    def _save_state(self, request: Request, slot: int) -> None:
        """Copy the recurrent state for later requests, unless the last copy is of the same length."""
        plan = request.read_plan
        if plan is None or self._hybrid is None or request.prompt_report.wants_embedding:
            return
        settled = self._hybrid.states.settled(slot)
        if settled != plan.saved:
            plan.saved = settled
            tokens = request.prefix_keys[: request.num_computed_tokens]
            self._hybrid.save_state(slot, tokens, request.prefix_salt)


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

    @property
    def total(self) -> int:
        return self.target_weights + self.draft_weights + self.target_pool + self.draft_pool + self.activations

    def cache_spec(self, config: EngineConfig, max_seq_len: int) -> CacheSpec:
        """The target's cache. A contiguous cache has as many slots of full length as fit into the plan."""
        places = config.max_batch_size
        if config.kv_cache == "contiguous":
            places = min(places, self.kv_tokens // max_seq_len)
        return CacheSpec(
            slots=places,
            max_seq_len=max_seq_len,
            kind=config.kv_cache,
            tokens=self.kv_tokens,
            block_size=BLOCK_SIZE,
            prefix_reuse=config.prefix_reuse,
        )

    def line(self) -> str:
        """The budget in one line, for the start of a command."""
        weights = self.target_weights + self.draft_weights
        pools = self.target_pool + self.draft_pool
        return (
            f"memory: {self.total / 1e6:,.0f} MB = weights {weights / 1e6:,.0f} + cache of {self.kv_tokens:,} tokens "
            f"{pools / 1e6:,.0f} + activations {self.activations / 1e6:,.0f}"
        )

    def lines(self) -> list[str]:
        """The budget as a table, one line per part."""
        parts = {
            "target weights": self.target_weights,
            "draft weights": self.draft_weights,
            f"target cache, {self.kv_tokens} tokens": self.target_pool,
            "draft cache": self.draft_pool,
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
    """The cache bytes of one token: keys and values of every layer."""
    c = model.config
    return token_bytes(layers=c.num_layers, kv_heads=c.num_kv_heads, head_dim=c.head_dim, dtype=model.cache_dtype)


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
    c, max_seq_len = target.config, target.config.max_seq_len
    per_token, per_draft_token = row_bytes(target), sum(row_bytes(draft) for draft in drafts) + head_row
    rows = config.max_batched_tokens
    speculation = config.speculation
    scored = 1 + max_nodes(speculation, max_depth(speculation, adaptive=True))
    activations = rows * (8 * c.hidden_size + 3 * c.intermediate_size) * itemsize(target.dtype)
    activations += min(rows, config.max_batch_size * scored) * c.vocab_size * 4  # logits
    activations += config.max_batch_size * c.attached_numbers * itemsize(target.dtype)
    free = max(available - mapped, int(available * LEAST_SHARE)) if mapped else available
    room = max(0, int(free * SHARE_FOR_CACHE) - activations)
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
    return MemoryPlan(
        target_weights=target.weight_bytes,
        draft_weights=sum(draft.weight_bytes for draft in drafts) + head_weights,
        target_pool=tokens * per_token,
        draft_pool=tokens * per_draft_token,
        activations=activations,
        kv_tokens=tokens,
        beyond=max(0, mapped + tokens * (per_token + per_draft_token) + activations - available) if mapped else 0,
    )
