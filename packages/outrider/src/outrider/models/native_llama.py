"""A model on a CPU: the whole forward pass is one call of the native library."""

from __future__ import annotations

import ctypes
import weakref
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.config.engine import KVCacheDType
from outrider.errors import ConfigError
from outrider.models.adapters import row_adapters
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.config import ModelConfig
from outrider.models.native_gemma4 import LayerRows, model_fields
from outrider.models.native_layers import NativeLayers
from outrider.models.native_names import matrix_names, router_names
from outrider.models.native_packer import Packer, Stored
from outrider.models.native_passes import (
    CacheView,
    address,
    check_status,
    expert_counts,
    expert_reads,
    int64s,
    norm_rows,
    span_structs,
)  # fmt: skip
from outrider.models.native_struct import struct_fields
from outrider.models.shard import Shard
from outrider.native.context import current_context
from outrider.native.identity import PackedPlace
from outrider.native.library import native_library
from outrider.native.model_structs import BatchStruct, LayerStruct, ModelStruct
from outrider.native.weights import NativeWeight, Target
from outrider.verify.arrays import Floats, host

_ALONE = nullcontext()


def require_dimensions(config: ModelConfig) -> None:
    """Raise ``ConfigError`` for dimensions that the library does not support."""
    latent = config.latent
    if latent is not None:
        if latent.row > 640 or latent.rank % 16 or latent.value_dim % 16:
            raise ConfigError(
                f"kv_lora_rank={latent.rank} and v_head_dim={latent.value_dim} are not supported on CPUs: use a model "
                "with multiples of 16, and latents of at most 640 numbers with their rotated part"
            )
    elif config.widest_head > 512 or config.head_dim % 2 or config.widest_head % 2:
        raise ConfigError(f"head_dim={config.widest_head} is not supported on CPUs: use a model with at most 512, even")


def require_shards(config: ModelConfig) -> None:
    """Raise ``ConfigError`` for a model that cannot be split over processes."""
    shared = config.experts is not None and config.experts.shared_size
    if any((config.gated_attention, config.recurrent, config.latent, config.gemma4, shared)):
        raise ConfigError(f"{config.family} cannot be split over processes: use tensor_parallel_size=1")


class NativeLlamaModel:
    """A Llama-family model. Weights are packed at construction; ``forward`` takes tokens of any number of sequences.

    The bits of a row depend on its own tokens and nothing else: not on the rest of the batch, the number of threads
    or the processor (docs/native.md).
    """

    implementation = "native"
    device = "cpu"
    dtype = "float32"
    """The type of activations, features and logits."""
    takes_adapters = True  # ``Span.adapter`` has an effect

    def __init__(
        self,
        config: ModelConfig,
        weights: Stored,
        *,
        target: Target | None = None,
        kv_cache_dtype: KVCacheDType = "auto",
        shard: Shard | None = None,
        place: PackedPlace | None = None,
    ) -> None:
        """
        Args:
            target: type that matrices are rounded to; None keeps stored codes, and rounds floats to bfloat16.
            shard: this process's share; None: the whole model. The leading process has the whole embedding and LM
                head, because heads and draft sources read them. The others take ``ForwardBatch.inputs``.
            place: where packed weights are kept for later starts; None: nowhere.

        Raises:
            ModelFormatError: weights are damaged.
            ConfigError: the model has dimensions that the library does not support.
        """
        require_dimensions(config)
        if shard is not None:
            require_shards(config)
        self.config, self.target = config, target
        self.draft_head: Stored = {name: weight for name, weight in weights.items() if name.startswith("mtp.")}
        """The tensors of the draft head in the model's files; empty: it has none."""
        default = "float32" if target == "float32" else "bfloat16"
        self.cache_dtype = default if kv_cache_dtype == "auto" else kv_cache_dtype
        """The type of keys and values."""
        self._run = native_library().outrider_forward
        self.context = current_context()
        """Threads and instruction set of forward passes."""
        self._share = share = None if shard is None else shard.of(config)
        self._followers = None if shard is None else shard.followers
        self._leads = shard is None or shard.rank == 0
        self._parts, self._place = Packer(weights, target, share, place), place
        head = "model.embed_tokens" if config.tie_embeddings else "lm_head"
        self._pack(head)
        self.head = self._parts.whole_matrix(head) if self._leads else self._parts.matrix(head)
        self._embedding = (
            self.head if config.tie_embeddings or not self._leads else self._parts.rows("model.embed_tokens")
        )
        self._own_head = self.head.struct if share is None else share.part_of_head(self.head.struct)
        build = NativeLayers(config, self._parts)
        self._final_norm = build.norm("model.norm")
        self._layers = (LayerStruct * config.num_layers)(*map(build.layer, range(config.num_layers)))
        self._held = build.held  # arrays that the layers point to
        self._struct = ModelStruct(
            **struct_fields(config, share),
            layer=ctypes.addressof(self._layers),
            final_norm=self._final_norm,
            embedding=None if self._embedding is not self.head else ctypes.addressof(self.head.struct),
            head=ctypes.addressof(self._own_head),
            shard=None if share is None else ctypes.addressof(share.struct),
            **model_fields(config, self._parts.matrix, self._parts.vector),
        )
        self._layer_rows = LayerRows.of(config, weights)
        self._caches: weakref.WeakKeyDictionary[KVCache, CacheView] = weakref.WeakKeyDictionary()
        self._parts.release()

    def adopt(self, other: NativeLlamaModel) -> None:
        """Compute with the weights of ``other``, of the same configuration and context, which is not used any more."""
        vars(self).update(vars(other))

    def _pack(self, head: str) -> None:
        names, whole = list(matrix_names(self.config)), list(router_names(self.config))
        (whole if self._leads else names).append(head)
        own_embedding = self._leads and head != "model.embed_tokens"
        if own_embedding and not self._parts.in_file("model.embed_tokens"):
            whole.append("model.embed_tokens")
        self._parts.pack(names, whole)

    @property
    def weight_bytes(self) -> int:
        """Bytes of memory that the weights take."""
        return self._parts.nbytes

    @property
    def mapped_bytes(self) -> int:
        """Those of ``weight_bytes`` that are mapped from a file: the system may drop them and read them again."""
        return self._parts.mapped_bytes

    @property
    def kept_at(self) -> Path | None:
        """Where packed weights are kept for later starts; None: nowhere."""
        return None if self._place is None else self._place.path

    @property
    def mapped_file(self) -> Path | None:
        """The file that holds them; None if there is none."""
        return self._place.path if self._place is not None and self.mapped_bytes else None

    @property
    def precision(self) -> str:
        """The type of most weights: ``q4_1``, say."""
        return self._parts.commonest if self.target is None else self.target

    @property
    def gathered(self) -> tuple[int, int]:
        """Gathers since loading, and the bytes that this process received by them; (0, 0) for a whole model."""
        return (0, 0) if self._share is None else (self._share.struct.gathers, self._share.struct.bytes)

    def new_cache(self, spec: CacheSpec) -> KVCache:
        c = self.config
        kv_heads = c.num_kv_heads if self._share is None else self._share.key_heads
        sizes = {"layers": len(c.cache_layers), "kv_heads": kv_heads, "head_dim": c.head_dim, "value_dim": c.value_dim}
        cache = make_cache(spec, **sizes, dtype=self.cache_dtype, states=c.states, heads=c.cache_heads)
        if self._followers is not None:
            self._followers.new_cache(cache, spec)
        return cache

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """Compute T tokens: write T rows of keys and values into ``cache``, and return logits [R, vocab] of R rows.

        Raises ValueError for an id, position or size out of range, MemoryError without memory for the pass, and
        EngineDeadError if a process that computes a share is gone.
        """
        if cache.states is not None:
            cache.states.check_layers(batch.layers, self.config.num_layers)
        view = self._caches.get(cache)
        if view is None:
            view = self._caches[cache] = CacheView(cache)
        rows, d = len(batch.token_ids), self.config.hidden_size
        tokens, positions = int64s(batch.token_ids), int64s(batch.positions)
        scored = int64s(range(rows) if batch.logit_rows is None else batch.logit_rows)
        inputs = None if batch.inputs is None else np.ascontiguousarray(host(batch.inputs))
        if inputs is None and (self._share is not None or self._embedding is not self.head):
            inputs = self.embed(np.array(batch.token_ids))
        own = None if self._layer_rows is None else self._layer_rows(batch.token_ids)
        spans, held = span_structs(batch.spans, cache)
        wanted = (ctypes.c_int32 * len(batch.features))(*batch.features)
        features = np.empty((rows, len(batch.features) * d), np.float32) if batch.features else None
        hidden = np.empty((len(scored), d), np.float32)
        logits = np.empty((len(scored), self.head.outputs), np.float32)
        struct = BatchStruct(
            rows=rows,
            spans=len(spans),
            layers=self.config.num_layers if batch.layers is None else batch.layers,
            features=len(batch.features),
            logit_rows=len(scored),
            tokens=address(tokens),
            positions=address(positions),
            inputs=None if inputs is None else inputs.ctypes.data,
            span=ctypes.addressof(spans),
            feature_layers=ctypes.addressof(wanted),
            logit_row=address(scored),
            feature=None if features is None else features.ctypes.data,
            hidden_out=hidden.ctypes.data,
            logits=logits.ctypes.data,
            adapters=None if (adapters := row_adapters(batch.spans, rows)) is None else ctypes.addressof(adapters),
            layer_embeddings=None if own is None else own.ctypes.data,
            experts=None if (counted := expert_counts(self.config)) is None else address(counted),
        )
        with self._together(batch, inputs, cache):
            check_status(
                self._run(self.context.address, ctypes.byref(self._struct), view.address, ctypes.byref(struct))
            )
        if cache.states is not None:
            cache.states.passed(batch.spans)
        del held, adapters
        return ForwardOutput(logits, hidden, features, None if counted is None else expert_reads(counted, rows))

    def _together(self, batch: ForwardBatch, inputs: Floats | None, cache: KVCache) -> AbstractContextManager[None]:
        if self._followers is None:
            return _ALONE
        return self._followers.forward(replace(batch, inputs=inputs), cache)

    def embed(self, token_ids: NDArray[np.int64]) -> Floats:
        """Input embeddings of int64 [...]: float32 [..., d]."""
        x = self._embedding.rows(token_ids.ravel()).reshape(*token_ids.shape, -1)
        return x if self.config.embedding_scale == 1.0 else x * np.float32(self.config.embedding_scale)

    @property
    def packed_embedding(self) -> NativeWeight | None:
        """The packed input embedding; None if its rows are read from the file."""
        return self._embedding if isinstance(self._embedding, NativeWeight) else None

    def final_norm(self, x: Floats) -> Floats:
        """The last norm: from the last layer's output x, [n, d], the input of the LM head."""
        norm = self._final_norm
        return norm_rows(self.context, x, norm.weight, self.config.rms_norm_eps, bias=norm.bias)

    def compute_logits(self, hidden: Floats) -> Floats:
        """Logits [n, vocab] of hidden states [n, d] that have gone through ``final_norm``."""
        logits, c = self.head(hidden), self.config
        if c.logit_scale != 1.0:
            logits *= np.float32(c.logit_scale)
        return logits if c.logit_cap is None else np.tanh(logits / c.logit_cap) * np.float32(c.logit_cap)

    def lm_head_rows(self, token_ids: NDArray[np.int64]) -> Floats:
        """Rows of the LM head for int64 [n], times the logits' scale: float [n, d]."""
        return self.head.rows(token_ids) * np.float32(self.config.logit_scale)
