"""A model on torch, on packed tokens: Llama, and the other families that ``ModelConfig`` describes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.cache.pool import Pool
from outrider.models.batch import BatchPart, ForwardBatch, ForwardOutput, split
from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import num_weights
from outrider_torch.cuda_graphs.buckets import Bucket, Grid, GridAttention, split_at
from outrider_torch.cuda_graphs.graphs import CudaCapture, CudaGraphRunner
from outrider_torch.kernels.layers import LayerWeights
from outrider_torch.kernels.linear import TorchLinear
from outrider_torch.models.decoder import Decoder
from outrider_torch.models.weights import TorchWeights


class LlamaModel:
    """A decoder on torch; ``forward`` runs the tokens of several sequences at once."""

    takes_adapters = False
    implementation = "torch"

    def __init__(
        self,
        config: ModelConfig,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.bfloat16,
        device: torch.device | str = "cpu",
        fixed_shapes: bool | None = None,
    ) -> None:
        """``tensors`` by their Hugging Face names, read one by one so that a mapping may load lazily.

        ``fixed_shapes``: decode and draft in a few fixed shapes, which CUDA devices capture as graphs; None: on CUDA
        only, since on a CPU they only serve tests.
        """
        self.config, self.dtype, self.device = config, dtype, torch.device(device)

        self.draft_head: Mapping[str, Any] = {}  # stored tensors, by canonical names
        weights = TorchWeights(config, tensors, dtype=dtype, device=self.device)
        with torch.inference_mode():
            self._embedding = weights.get("model.embed_tokens.weight").clone()  # [vocab, d]
            self._decoder = Decoder(config, weights, dtype=dtype, device=self.device)
            self._norm = weights.norm("model.norm")
            self._head = self._embedding if config.tie_embeddings else weights.get("lm_head.weight").clone()
            self._lm_head = TorchLinear(self._head, None)
        fixed = self.device.type == "cuda" if fixed_shapes is None else fixed_shapes
        self._fixed = self._graphs() if fixed and config.is_llama else None

    def _graphs(self) -> CudaGraphRunner:
        on_cuda = self.device.type == "cuda"
        return CudaGraphRunner(self._on_grid, self.device, CudaCapture(self.device) if on_cuda else None)

    def adopt(self, other: LlamaModel) -> None:
        """Compute with the weights of ``other``, of the same configuration, dtype and device.

        Graphs that were captured read the old weights, and are captured anew.
        """
        graphs = None if self._fixed is None else self._graphs()
        vars(self).update(vars(other))
        self._fixed = graphs

    def new_cache(self, spec: CacheSpec) -> KVCache:
        c = self.config
        return make_cache(
            spec,
            layers=len(c.attention_layers),
            kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            value_dim=c.value_dim,
            dtype=self.dtype,
            device=self.device,
            states=c.states,
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """Run T tokens: write their keys and values to ``cache``, and return logits [R, vocab] of the requested rows.

        ``batch.features`` are also returned, which changes no bit of the logits.
        """
        if self._fixed is None or self._fixed.failed:
            return self._packed(batch, cache)
        limit = split_at(batch)
        if limit is None or batch.inputs is not None:
            return self._fixed.run(batch, cache) or self._packed(batch, cache)
        parts = split(batch, lambda span: span.count <= limit)
        return join([self._fixed.run(part.batch, cache) or self._packed(part.batch, cache) for part in parts], parts)

    def _packed(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """Run packed rows. On a CPU the bits of a row do not depend on the rest of the batch."""
        if cache.states is not None:
            cache.states.check_layers(batch.layers, self.config.num_layers)
        rows, forward = self._decoder.over(batch.spans, batch.positions, cache)
        given = batch.inputs
        x = self.embed(torch.tensor(batch.token_ids)) if given is None else torch.as_tensor(given)  # [T, d]
        x = F.pad(x.to(device=self.device, dtype=self.dtype), (0, 0, 0, rows - len(x))).contiguous()
        x, taken = self._decoder.through(x, forward, batch.layers, batch.features)
        if cache.states is not None:
            cache.states.passed(batch.spans)
        features = _side_by_side([t[: len(batch.token_ids)] for t in taken])
        x = x[: len(batch.token_ids)] if batch.logit_rows is None else x[list(batch.logit_rows)]
        hidden = self.final_norm(x)
        return ForwardOutput(logits=self.compute_logits(hidden), hidden=hidden, features=features)

    def _on_grid(self, grid: Grid, bucket: Bucket, pool: Pool) -> ForwardOutput:
        """The same forward pass in a fixed shape, for all cells of the grid."""
        c = self.config
        group = c.num_heads // c.num_kv_heads
        over = GridAttention.plan(grid, bucket, pool, group=group, window=c.sliding_window, dtype=self.dtype)
        backend, table = self._decoder.backend, self._decoder.rotations[0]
        rotation = None if table is None else table[grid.positions.flatten()]

        def attention(layer: LayerWeights, qkv: Tensor) -> Tensor:
            return over(layer.index, *backend.split(layer, qkv, rotation))

        x, forward = self.embed(grid.tokens.flatten()), backend.with_attention(attention)
        x, taken = self._decoder.through(x, forward, bucket.layers, bucket.features)
        hidden = self.final_norm(x[grid.scored])
        return ForwardOutput(self.compute_logits(hidden), hidden, _side_by_side([t[grid.packed] for t in taken]))

    def embed(self, token_ids: Tensor | NDArray[np.int64]) -> Tensor:
        """Input embeddings of int64 [...]: float [..., d]."""
        token_ids = torch.as_tensor(token_ids)
        x = F.embedding(token_ids.to(self.device), self._embedding)
        return x if self.config.embedding_scale == 1.0 else x * self.config.embedding_scale

    def final_norm(self, x: Tensor) -> Tensor:
        """The LM head's input, [n, d], from the last layer's output x: [n, d]."""
        return self._norm(x)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of hidden states [n, d] that have gone through ``final_norm``."""
        logits, c = self._lm_head(hidden), self.config
        if c.logit_scale != 1.0:
            logits = logits * c.logit_scale
        return logits if c.logit_cap is None else cap_rows(logits, c.logit_cap)

    def lm_head_rows(self, token_ids: Tensor | NDArray[np.int64]) -> Tensor:
        """Rows of the LM head for int64 [n], times the logits' scale: float [n, d]."""
        token_ids = torch.as_tensor(token_ids)
        rows = self._head[token_ids.to(self.device)]
        return rows if self.config.logit_scale == 1.0 else rows * self.config.logit_scale

    @property
    def precision(self) -> str:
        """The dtype's name."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of keys and values."""
        return self.dtype

    @property
    def weight_bytes(self) -> int:
        """The memory of the weights, in bytes."""
        return num_weights(self.config) * self.dtype.itemsize


def cap_rows(x: Tensor, most: float) -> Tensor:
    """``most * tanh(x / most)`` of x: [n, d], row by row, so that threads divide every row alike."""
    parts = [torch.tanh(row.float() / most).mul(most).to(x.dtype) for row in (x[None] if x.is_cuda else x)]
    return torch.cat(parts).view(x.shape) if parts else x


def _side_by_side(features: list[Tensor]) -> Tensor | None:
    """Join features [T, d] each -> [T, len * d]; None without features."""
    return torch.cat(features, dim=-1) if features else None


def join(outputs: Sequence[ForwardOutput], parts: Sequence[BatchPart]) -> ForwardOutput:
    """The output of the whole batch from those of its ``parts``."""
    logit_rows = [row for part in parts for row in part.logit_rows]
    device = outputs[0].logits.device
    back = torch.tensor(logit_rows, dtype=torch.int64).argsort().to(device)
    features = None
    if outputs[0].features is not None:
        rows = torch.tensor([row for part in parts for row in part.rows]).argsort().to(device)
        features = torch.cat([out.features for out in outputs if out.features is not None])[rows]
    logits, hidden = (torch.cat(list(given)) for given in zip(*((o.logits, o.hidden) for o in outputs), strict=True))
    return ForwardOutput(logits[back], hidden[back], features)
