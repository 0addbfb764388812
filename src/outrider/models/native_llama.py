"""A Llama-family model on a CPU: the whole forward pass is one call of the native library."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.config.engine import KVCacheDType
from outrider.errors import ConfigError
from outrider.kernels.batch import ForwardBatch, ForwardOutput
from outrider.kernels.native.model_structs import BatchStruct, LayerStruct, ModelStruct
from outrider.kernels.native.passes import CacheView, address, check_status, int64s, rotation_table, span_structs
from outrider.kernels.native.stored import StoredTensor
from outrider.kernels.native.weights import NativeWeight, StoredRows, Target, native_library, pack, pack_tensor
from outrider.kernels.rope import inverse_frequencies
from outrider.models.config import ModelConfig

_CACHE_DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, "int8": torch.int8}

_FLOATS = ("F32", "F16", "BF16")

Stored = Mapping[str, StoredTensor | Tensor]
"""Weights by their canonical names, as a file holds them or as torch tensors of the CPU."""


class NativeLlamaModel:
    """Weights packed at construction; ``forward`` takes the tokens of any number of sequences at once.

    The bits of a row depend on its own tokens and nothing else: not on the rest of the batch, the number of threads
    or the processor (docs/native.md).
    """

    device = torch.device("cpu")
    dtype = torch.float32
    """Of activations, features and logits."""

    def __init__(
        self,
        config: ModelConfig,
        weights: Stored,
        *,
        target: Target | None = None,
        kv_cache_dtype: KVCacheDType = "auto",
    ) -> None:
        """``target``: what to round matrices to; None keeps codes as they are stored, and rounds floats to bfloat16.

        Raises:
            ModelFormatError: weights are damaged.
            ConfigError: the model has dimensions that the library does not support.
        """
        if config.head_dim > 256 or config.head_dim % 2:
            raise ConfigError(
                f"head_dim={config.head_dim} is not supported on CPUs: use a model with at most 256, even"
            )
        self.config, self.target = config, target
        default = torch.float32 if target == "float32" else torch.bfloat16
        self.cache_dtype = _CACHE_DTYPES.get(kv_cache_dtype, default)
        """Of keys and values."""
        self._library = native_library()
        self._library.outrider_set_threads(torch.get_num_threads())
        self._parts = _Packer(weights, target)
        self.head = self._parts.matrix("model.embed_tokens" if config.tie_embeddings else "lm_head")
        self._embedding = self.head if config.tie_embeddings else self._parts.rows("model.embed_tokens")
        self._final_norm = self._parts.vector("model.norm.weight")
        self._layers = (LayerStruct * config.num_layers)(*map(self._layer, range(config.num_layers)))
        inverse = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        self._rotations = rotation_table(inverse, config.max_seq_len)
        self._struct = ModelStruct(
            layers=config.num_layers,
            hidden=config.hidden_size,
            heads=config.num_heads,
            kv_heads=config.num_kv_heads,
            head_dim=config.head_dim,
            inner=config.intermediate_size,
            window=config.sliding_window or 0,
            positions=config.max_seq_len,
            eps=config.rms_norm_eps,
            rotations=self._rotations.data_ptr(),
            layer=ctypes.addressof(self._layers),
            final_norm=self._final_norm.data_ptr(),
            embedding=None if self._embedding is not self.head else ctypes.addressof(self.head.struct),
            head=ctypes.addressof(self.head.struct),
        )
        self._caches: weakref.WeakKeyDictionary[KVCache, CacheView] = weakref.WeakKeyDictionary()

    def _layer(self, i: int) -> LayerStruct:
        c, name, parts = self.config, f"model.layers.{i}.", self._parts
        attention, mlp = name + "self_attn.", name + "mlp."
        norms = {}
        if c.qk_norm:
            norms = {f"{x}_norm": parts.vector(f"{attention}{x}_norm.weight").data_ptr() for x in "qk"}
        return LayerStruct(
            q=parts.matrix(attention + "q_proj").struct,
            k=parts.matrix(attention + "k_proj").struct,
            v=parts.matrix(attention + "v_proj").struct,
            out=parts.matrix(attention + "o_proj").struct,
            gate=parts.matrix(mlp + "gate_proj").struct,
            up=parts.matrix(mlp + "up_proj").struct,
            down=parts.matrix(mlp + "down_proj").struct,
            attention_norm=parts.vector(name + "input_layernorm.weight").data_ptr(),
            mlp_norm=parts.vector(name + "post_attention_layernorm.weight").data_ptr(),
            **norms,
        )

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        return self._parts.nbytes

    @property
    def precision(self) -> str:
        """How most of the weights are held: ``q4_1``, say."""
        return self._parts.commonest if self.target is None else self.target

    def new_cache(self, spec: CacheSpec) -> KVCache:
        c = self.config
        return make_cache(
            spec, layers=c.num_layers, kv_heads=c.num_kv_heads, head_dim=c.head_dim, dtype=self.cache_dtype
        )

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """T tokens in, rows of keys and values into ``cache``, logits [R, vocab] of the rows asked for out."""
        view = self._caches.get(cache)
        if view is None:
            view = self._caches[cache] = CacheView(cache)
        rows, d = len(batch.token_ids), self.config.hidden_size
        tokens, positions = int64s(batch.token_ids), int64s(batch.positions)
        scored = int64s(range(rows) if batch.logit_rows is None else batch.logit_rows)
        inputs = None if batch.inputs is None else batch.inputs.to(torch.float32).contiguous()
        if inputs is None and self._embedding is not self.head:
            inputs = self.embed(torch.tensor(batch.token_ids))
        spans, held = span_structs(batch.spans, cache)
        wanted = (ctypes.c_int32 * len(batch.features))(*batch.features)
        features = torch.empty(rows, len(batch.features) * d) if batch.features else None
        hidden = torch.empty(len(scored), d)
        logits = torch.empty(len(scored), self.head.outputs)
        struct = BatchStruct(
            rows=rows,
            spans=len(spans),
            layers=self.config.num_layers if batch.layers is None else batch.layers,
            features=len(batch.features),
            logit_rows=len(scored),
            tokens=address(tokens),
            positions=address(positions),
            inputs=None if inputs is None else inputs.data_ptr(),
            span=ctypes.addressof(spans),
            feature_layers=ctypes.addressof(wanted),
            logit_row=address(scored),
            feature=None if features is None else features.data_ptr(),
            hidden_out=hidden.data_ptr(),
            logits=logits.data_ptr(),
        )
        check_status(self._library.outrider_forward(ctypes.byref(self._struct), view.address, ctypes.byref(struct)))
        del held
        return ForwardOutput(logits=logits, hidden=hidden, features=features)

    def embed(self, token_ids: Tensor) -> Tensor:
        """Input embeddings of int64 [...]: float [..., d]."""
        return self._embedding.rows(token_ids.flatten()).view(*token_ids.shape, -1)

    def final_norm(self, x: Tensor) -> Tensor:
        """What the LM head reads, from the last layer's output x: [n, d]."""
        x = x.to(torch.float32).contiguous()
        out = torch.empty_like(x)
        weight = self._final_norm.data_ptr()
        self._library.outrider_norm(len(x), x.shape[1], x.data_ptr(), weight, self.config.rms_norm_eps, out.data_ptr())
        return out

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of hidden states [n, d] that have gone through ``final_norm``."""
        return self.head(hidden)

    def lm_head_rows(self, token_ids: Tensor) -> Tensor:
        """Rows of the LM head for int64 [n]: float [n, d]."""
        return self.head.rows(token_ids)


class _Packer:
    """Matrices and vectors of a model, packed one after the other; it owns them."""

    def __init__(self, weights: Stored, target: Target | None) -> None:
        self._weights, self._target = weights, target
        self._matrices: list[NativeWeight] = []
        self._vectors: list[Tensor] = []
        self._sizes: dict[str, int] = {}

    def matrix(self, name: str) -> NativeWeight:
        weight = self._weights[f"{name}.weight"]
        bias = self._numbers(f"{name}.bias") if f"{name}.bias" in self._weights else None
        make: Callable[..., NativeWeight] = pack if isinstance(weight, StoredTensor) else pack_tensor
        stored = weight.type if isinstance(weight, StoredTensor) else "F32"
        target: Target | None = "bfloat16" if self._target is None and stored in _FLOATS else self._target
        packed = make(weight, target=target, bias=bias)
        kind = target or stored.lower()
        self._sizes[kind] = self._sizes.get(kind, 0) + packed.nbytes
        self._matrices.append(packed)
        return packed

    def rows(self, name: str) -> NativeWeight | StoredRows:
        """A matrix of which only rows are read."""
        weight = self._weights[f"{name}.weight"]
        if isinstance(weight, StoredTensor) and self._target is None:
            return StoredRows(weight)
        return self.matrix(name)

    def vector(self, name: str) -> Tensor:
        self._vectors.append(self._numbers(name))
        return self._vectors[-1]

    def _numbers(self, name: str) -> Tensor:
        values = self._weights[name]
        if isinstance(values, StoredTensor):
            values = values.numbers()
        return values.to(torch.float32, copy=True).contiguous()

    @property
    def nbytes(self) -> int:
        return sum(matrix.nbytes for matrix in self._matrices) + sum(vector.nbytes for vector in self._vectors)

    @property
    def commonest(self) -> str:
        return max(self._sizes, key=self._sizes.__getitem__)
