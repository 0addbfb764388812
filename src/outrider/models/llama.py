"""The Llama family on packed tokens: Llama 2/3, SmolLM2, TinyLlama, Mistral, Qwen2, Qwen3."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.cache.pool import Pool
from outrider.kernels.attention.attention import plan
from outrider.kernels.backends import Dimensions, LayerForward, LayerWeights, TorchBackend, unfused_layer
from outrider.kernels.batch import ForwardBatch, ForwardOutput, join, split
from outrider.kernels.linear.linear import Linear, TorchLinear
from outrider.kernels.norm import RMSNorm
from outrider.kernels.rope import inverse_frequencies, pair_rows, rotations
from outrider.models.config import ModelConfig
from outrider.models.cuda_graphs.buckets import Bucket, Grid, GridAttention, split_at
from outrider.models.cuda_graphs.graphs import CudaCapture, CudaGraphRunner


class LlamaModel:
    """On torch; ``forward`` takes the tokens of any number of sequences at once."""

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

        ``fixed_shapes``: decode and draft in a few fixed shapes, which CUDA devices capture as graphs; None: only
        there, since on a CPU they have no use but to be tested.
        """
        self.config, self.dtype, self.device = config, dtype, torch.device(device)

        def get(name: str) -> Tensor:
            return tensors[name].to(device=self.device, dtype=dtype)

        def norm(name: str, heads: int | None = None) -> RMSNorm:
            weight = pair_rows(get(name), heads) if heads else get(name).clone()  # let go of the mapped file
            return RMSNorm(weight, config.rms_norm_eps)

        def linear(*names: str, heads: Mapping[int, int] | None = None) -> Linear:
            """Fuse projections that share their input; ``heads`` marks those whose rows are rotary pairs."""
            rows = [(i, name, (heads or {}).get(i)) for i, name in enumerate(names)]
            weights = [pair_rows(get(f"{n}.weight"), h) if h else get(f"{n}.weight") for _, n, h in rows]
            biases = []
            if f"{names[0]}.bias" in tensors:
                biases = [pair_rows(get(f"{n}.bias"), h) if h else get(f"{n}.bias") for _, n, h in rows]
            return TorchLinear(torch.cat(weights), torch.cat(biases) if biases else None)

        def layer(i: int) -> LayerWeights:
            name = f"model.layers.{i}."
            attention, mlp = name + "self_attn.", name + "mlp."
            rotary = {0: config.num_heads, 1: config.num_kv_heads}
            norms = (attention + "q_norm.weight", attention + "k_norm.weight") if config.qk_norm else ()
            q_norm, k_norm = (norm(n, heads=1) for n in norms) if norms else (None, None)
            return LayerWeights(
                index=i,
                attention_norm=norm(name + "input_layernorm.weight"),
                qkv=linear(attention + "q_proj", attention + "k_proj", attention + "v_proj", heads=rotary),
                q_norm=q_norm,
                k_norm=k_norm,
                out=linear(attention + "o_proj"),
                mlp_norm=norm(name + "post_attention_layernorm.weight"),
                gate_up=linear(mlp + "gate_proj", mlp + "up_proj"),
                down=linear(mlp + "down_proj"),
            )

        with torch.inference_mode():
            self._embedding = get("model.embed_tokens.weight").clone()  # [vocab, d]
            self._layers = [layer(i) for i in range(config.num_layers)]
            self._norm = norm("model.norm.weight")
            self._head = self._embedding if config.tie_embeddings else get("lm_head.weight").clone()
            self._lm_head = TorchLinear(self._head, None)
            self._dimensions = Dimensions(config.num_heads, config.num_kv_heads, config.head_dim)
            self._backend = TorchBackend(self._dimensions)
            inverse = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
            self._rotations = rotations(inverse, config.max_seq_len).to(self.device)
        on_cuda = self.device.type == "cuda"
        self._fixed: CudaGraphRunner | None = None
        if on_cuda if fixed_shapes is None else fixed_shapes:
            self._fixed = CudaGraphRunner(self._on_grid, self.device, CudaCapture(self.device) if on_cuda else None)

    def new_cache(self, spec: CacheSpec) -> KVCache:
        c = self.config
        return make_cache(
            spec,
            layers=c.num_layers,
            kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """T tokens in, rows of keys and values into ``cache``, logits [R, vocab] of the rows asked for out.

        ``batch.features`` are read off on the way, which changes no bit of the rest.
        """
        if self._fixed is None or self._fixed.failed:
            return self._packed(batch, cache)
        limit = split_at(batch)
        if limit is None or batch.inputs is not None:
            return self._fixed.run(batch, cache) or self._packed(batch, cache)
        parts = split(batch, lambda span: span.count <= limit)
        return join([self._fixed.run(part.batch, cache) or self._packed(part.batch, cache) for part in parts], parts)

    def _packed(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """Rows packed next to each other. On a CPU the bits of a row do not depend on the rest of the batch."""
        c = self.config
        tokens, positions = (torch.tensor(ids, device=self.device) for ids in (batch.token_ids, batch.positions))
        alone = len(batch.spans) == 1 and batch.spans[0].mask is None
        if spare := self._backend.padded_rows(len(tokens), alone) - len(tokens):
            tokens, positions = (F.pad(t, (0, spare)) for t in (tokens, positions))
        who = plan(
            batch.spans,
            group=c.num_heads // c.num_kv_heads,
            kv_heads=c.num_kv_heads,
            window=c.sliding_window,
            rows=len(tokens) if alone else len(batch.token_ids),
            dtype=self.dtype,
            device=self.device,
        )

        forward = self._backend.layers(who, cache, self._rotations[positions])
        x = self.embed(tokens) if batch.inputs is None else self._padded(batch.inputs, len(tokens))  # [T, d]
        x, taken = self._through_layers(x, batch.layers, batch.features, forward)
        features = _side_by_side([t[: len(batch.token_ids)] for t in taken])
        x = x[: len(batch.token_ids)] if batch.logit_rows is None else x[list(batch.logit_rows)]
        hidden = self.final_norm(x)
        return ForwardOutput(logits=self._lm_head(hidden), hidden=hidden, features=features)

    def _on_grid(self, grid: Grid, bucket: Bucket, pool: Pool) -> ForwardOutput:
        """The same forward pass in a fixed shape, for all cells of the grid."""
        c = self.config
        group = c.num_heads // c.num_kv_heads
        over = GridAttention.plan(grid, bucket, pool, group=group, window=c.sliding_window, dtype=self.dtype)
        backend, rotation = TorchBackend(self._dimensions), self._rotations[grid.positions.flatten()]

        def attention(layer: LayerWeights, qkv: Tensor) -> Tensor:
            return over(layer.index, *backend.split(layer, qkv, rotation))

        x, forward = self.embed(grid.tokens.flatten()), unfused_layer(backend, attention)
        x, taken = self._through_layers(x, bucket.layers, bucket.features, forward)
        hidden = self.final_norm(x[grid.scored])
        return ForwardOutput(self._lm_head(hidden), hidden, _side_by_side([t[grid.packed] for t in taken]))

    def _through_layers(
        self, x: Tensor, layers: int | None, features: tuple[int, ...], forward: LayerForward
    ) -> tuple[Tensor, list[Tensor]]:
        """x: [T, d] after the first ``layers``, and after each count in ``features``."""
        y = None
        taken = {0: x} if 0 in features else {}
        for i, layer in enumerate(self._layers[:layers]):
            x, y = forward(layer, x, y)
            if i + 1 in features:
                x, y = x + y, None
                taken[i + 1] = x
        return x if y is None else x + y, [taken[n] for n in features]

    def embed(self, token_ids: Tensor) -> Tensor:
        """Input embeddings of int64 [...]: float [..., d]."""
        return F.embedding(token_ids.to(self.device), self._embedding)

    def final_norm(self, x: Tensor) -> Tensor:
        """What the LM head reads, from the last layer's output x: [n, d]."""
        return self._norm(x)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of hidden states [n, d] that have gone through ``final_norm``."""
        return self._lm_head(hidden)

    def lm_head_rows(self, token_ids: Tensor) -> Tensor:
        """Rows of the LM head for int64 [n]: float [n, d]."""
        return self._head[token_ids.to(self.device)]

    @property
    def precision(self) -> str:
        """The dtype's name."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def cache_dtype(self) -> torch.dtype:
        """Of keys and values."""
        return self.dtype

    @property
    def weight_bytes(self) -> int:
        """Memory that the weights take."""
        c = self.config
        q, kv = c.num_heads * c.head_dim, c.num_kv_heads * c.head_dim
        layer = c.hidden_size * (2 * q + 2 * kv + 3 * c.intermediate_size)
        embeddings = c.vocab_size * c.hidden_size * (1 if c.tie_embeddings else 2)
        return (c.num_layers * layer + embeddings) * self.dtype.itemsize

    def _padded(self, x: Tensor, rows: int) -> Tensor:
        return F.pad(x.to(device=self.device, dtype=self.dtype), (0, 0, 0, rows - len(x))).contiguous()


def _side_by_side(features: list[Tensor]) -> Tensor | None:
    """[T, d] each -> [T, len * d]."""
    return torch.cat(features, dim=-1) if features else None
