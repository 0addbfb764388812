"""An encoder–decoder model, on torch or with the native library's matrices.

The decoder is like any other model: keys and values of its own tokens lie in the cache, and are rolled back
there. The encoder's keys and values are attached to the sequence's slot (``KVCache.attachments``) and never change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from outrider.cache import CacheSpec, KVCache, make_cache
from outrider.errors import ConfigError
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, ForwardOutput, Span
from outrider.models.inputs import EncodedPrompt
from outrider.models.native_passes import CacheView
from outrider.native.context import current_context
from outrider.native.weights import Target
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.cross import CrossKeys, NativeCrossKeys, TorchCrossKeys
from outrider_multimodal.encoder_decoder.encoder import Encoder
from outrider_multimodal.encoder_decoder.inputs import EncoderInput
from outrider_multimodal.encoder_decoder.kind import CALIBRATION_SOURCE, check_input, match_encoder, time_encoder
from outrider_multimodal.encoder_decoder.own import OwnAttention, native_attention, torch_attention
from outrider_multimodal.encoder_decoder.relative import RelativeBias
from outrider_multimodal.encoder_decoder.weights import Layer, Linear, Parts, mlp
from outrider_torch.kernels.native_tensors import TensorWeight
from outrider_torch.kernels.norm import Norm


class EncoderDecoderModel:
    """``forward`` runs the decoder over tokens of several sequences; ``encode`` runs once per sequence."""

    takes_adapters = False

    config: EncoderDecoderConfig

    def __init__(
        self,
        config: EncoderDecoderConfig,
        tensors: Mapping[str, Tensor],
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        native: Target | None = None,
    ) -> None:
        """``tensors`` by their canonical names (``checkpoints.encoder_decoder``).

        ``native``: the format of the decoder's matrices in the native library, with float32 activations; None: torch.
        """
        self.config, self.dtype, self.device = config, dtype, torch.device(device)
        self._native = native
        self.shares_encoder = False
        """Whether another model shares and runs the encoder."""
        self._views: WeakKeyDictionary[KVCache, CacheView] = WeakKeyDictionary()
        self.implementation = "torch" if native is None else "native"
        self.precision = native or str(dtype).removeprefix("torch.")
        self._context = None if native is None else current_context()
        with torch.inference_mode():
            parts = Parts(config, tensors, device=self.device, dtype=dtype, native=native)
            self.encoder = Encoder(config, tensors, parts)
            table = tensors["decoder.embed.weight"]
            self._head: Linear = parts.matrix(table if config.tie_embeddings else tensors["lm_head.weight"])
            shared = config.tie_embeddings and isinstance(self._head, TensorWeight)
            self._embedding = None if shared else parts.get("decoder.embed.weight")
            learned = config.positions == "learned"
            self._positions = parts.get("decoder.positions.weight") if learned else None
            self._embedding_norm = parts.norm("decoder.embedding_norm") if config.embedding_norm else None
            self._layers = [parts.layer("decoder", i) for i in range(config.num_layers)]
            self._norm: Norm | None = parts.norm("decoder.norm") if config.final_norm else None
            self._bias = None if learned else self._relative(parts)
            self._logit_bias = self._biases(parts)
        self._weight_bytes = parts.nbytes
        self._no_source: CrossKeys | None = None

    def _relative(self, parts: Parts) -> RelativeBias:
        weight = parts.get("decoder.relative.weight")
        return RelativeBias(weight, two_sided=False, longest=self.config.relative_distance)

    def _biases(self, parts: Parts) -> Tensor | None:
        name, banned = "logit_bias", list(self.config.banned_ids)
        if not parts.has(name) and not banned:
            return None
        bias = parts.get(name) if parts.has(name) else torch.zeros(self.config.vocab_size, device=self.device)
        bias[banned] = -torch.inf
        return bias

    def share_encoder(self, other: EncoderDecoderModel) -> bool:
        """Use the other model's encoder if it is equal, so that an input is encoded once for both."""
        if not self.encoder.same_as(other.encoder):
            return False
        self.encoder, self.shares_encoder = other.encoder, True
        return True

    def match_target(self, target: Model) -> None:
        """As a draft model, use the target's encoder if it is equal.

        Raises ``IncompatibleDraftError`` where this encoder cannot take the target's input.
        """
        match_encoder(self, target)

    def time_encoder(self) -> tuple[float, int]:
        """Seconds to encode an input, and its positions; 0 seconds where the encoder is shared with the target's."""
        return time_encoder(self)

    def split_prompt(self, token_ids: Sequence[int]) -> EncodedPrompt:
        """A text prompt as the encoder's input, with the decoder's first token ids; sounds have their own path."""
        if self.config.hears:
            return EncodedPrompt(list(token_ids))
        return EncodedPrompt(list(self.config.decoder_prompt), EncoderInput.of_tokens(token_ids))

    def check_input(self, given: EncoderInput) -> None:
        """Raises ``InvalidRequestError`` for an input that the encoder cannot take."""
        check_input(self.config, given)

    @torch.inference_mode()
    def encode(self, given: EncoderInput) -> CrossKeys:
        """Keys and values for the decoder's cross-attention; computed at the first call."""
        return given.computed(self, lambda: self._cross_keys(self.encoder(given)))

    def _cross_keys(self, hidden: Tensor) -> CrossKeys:
        crosses = [layer.cross for layer in self._layers if layer.cross is not None]
        return self._laid_out([cross.key_value(hidden) for cross in crosses])

    def _laid_out(self, keys_values: Sequence[Tensor]) -> CrossKeys:
        if self._context is None:
            return TorchCrossKeys(keys_values, self.config.num_heads)
        dtype = torch.float32 if self._native == "float32" else torch.bfloat16
        return NativeCrossKeys(keys_values, self.config.num_heads, dtype, self._context)

    def new_cache(self, spec: CacheSpec) -> KVCache:
        c = self.config
        return make_cache(
            spec,
            layers=c.num_layers,
            kv_heads=c.num_heads,
            head_dim=c.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    @torch.inference_mode()
    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        """Run T tokens: write their keys and values to ``cache``, and return logits [R, vocab] of the requested rows.

        A row attends to the input attached to its slot. A slot without input has zeros, for timing.
        """
        c = self.config
        tokens, positions = (torch.tensor(list(ids), device=self.device) for ids in (batch.token_ids, batch.positions))
        own, spans = self._own_attention(batch, positions, cache), batch.spans
        sources = [self._source(cache, span.slot) for span in spans]
        x = (
            self.embed(tokens)
            if batch.inputs is None
            else torch.as_tensor(batch.inputs).to(device=self.device, dtype=self.dtype)
        )
        x = self._placed(x, positions)
        taken = {0: x} if 0 in batch.features else {}
        for i, layer in enumerate(self._layers[: batch.layers]):
            x = self._add(x, layer.attention.norm, partial(self._attend, layer, i, spans, own, cache))
            if layer.cross is not None:
                x = self._add(x, layer.cross.norm, partial(self._attend_across, layer, i, spans, sources))
            x = self._add(x, layer.mlp_norm, partial(mlp, c, layer))
            if i + 1 in batch.features:
                taken[i + 1] = x
        x = x if batch.logit_rows is None else x[list(batch.logit_rows)]
        hidden = self.final_norm(x)
        features = torch.cat([taken[n] for n in batch.features], dim=-1) if batch.features else None
        return ForwardOutput(logits=self.compute_logits(hidden), hidden=hidden, features=features)

    def _add(self, x: Tensor, norm: Norm, block: Callable[[Tensor], Tensor]) -> Tensor:
        """A block's residual connection, with the norm before or after it as the model has it."""
        return norm(x + block(x)) if self.config.norms == "after" else x + block(norm(x))

    def _placed(self, x: Tensor, positions: Tensor) -> Tensor:
        if self._positions is not None:
            x = x + self._positions[positions + self.config.position_offset]
        return x if self._embedding_norm is None else self._embedding_norm(x)

    def _source(self, cache: KVCache, slot: int) -> CrossKeys:
        keys = cache.attachments.get(slot)
        if isinstance(keys, TorchCrossKeys | NativeCrossKeys):
            return keys
        if self._no_source is None:
            c = self.config
            length = c.max_source_len if c.hears else min(c.max_source_len, CALIBRATION_SOURCE)
            zeros = torch.zeros(length, 2 * c.num_heads * c.head_dim, dtype=self.dtype, device=self.device)
            self._no_source = self._laid_out([zeros] * c.num_layers)
        return self._no_source

    def _own_attention(self, batch: ForwardBatch, positions: Tensor, cache: KVCache) -> OwnAttention:
        if self._context is None or self._bias is not None:
            return torch_attention(self.config, batch.spans, cache, positions, self.dtype, self._bias)
        view = self._views.get(cache)
        if view is None:
            view = self._views[cache] = CacheView(cache)
        return native_attention(self.config, batch.spans, cache, view, self._context)

    def _attend(
        self, layer: Layer, index: int, spans: Sequence[Span], own: OwnAttention, cache: KVCache, x: Tensor
    ) -> Tensor:
        c = self.config
        q, k, v = (part.view(len(x), c.num_heads, -1) for part in layer.attention.key_value(x).chunk(3, dim=-1))
        first = 0
        for span in spans:
            rows = slice(first, first + span.count)
            cache.write(index, span.slot, span.start, k[rows], v[rows])
            first += span.count
        return layer.attention.out(own(index, q))

    def _attend_across(
        self, layer: Layer, index: int, spans: Sequence[Span], sources: Sequence[CrossKeys], x: Tensor
    ) -> Tensor:
        c, cross = self.config, layer.cross
        assert cross is not None
        assert cross.query is not None
        q = cross.query(x).view(len(x), c.num_heads, -1)
        if len(spans) == 1:
            return cross.out(sources[0].attend(index, q, c.attention_scale))
        parts = torch.split(q, [span.count for span in spans])
        seen = [keys.attend(index, part, c.attention_scale) for part, keys in zip(parts, sources, strict=True)]
        return cross.out(torch.cat(seen))

    def embed(self, token_ids: Tensor | NDArray[np.int64]) -> Tensor:
        """Input embeddings of int64 [...], without positions: float [..., d]."""
        token_ids = torch.as_tensor(token_ids)
        if self._embedding is None:
            assert isinstance(self._head, TensorWeight)
            x = self._head.rows(token_ids.flatten()).view(*token_ids.shape, -1)
        else:
            x = F.embedding(token_ids.to(self.device), self._embedding)
        return x if self.config.embedding_scale == 1.0 else x * self.config.embedding_scale

    def final_norm(self, x: Tensor) -> Tensor:
        """The LM head's input, float [n, d], from the last layer's output x: [n, d]."""
        return x if self._norm is None else self._norm(x)

    def compute_logits(self, hidden: Tensor) -> Tensor:
        """Logits [n, vocab] of hidden states [n, d] that have gone through ``final_norm``."""
        scale = self.config.logit_scale
        logits = self._head(hidden if scale == 1.0 else hidden * scale)
        return logits if self._logit_bias is None else logits + self._logit_bias

    def lm_head_rows(self, token_ids: Tensor) -> Tensor:
        """Rows of the LM head for int64 [n], times the logits' scale: float [n, d].

        Raises ``ConfigError`` where the LM head is not the embedding.
        """
        if not self.config.tie_embeddings:
            raise ConfigError(
                f"a {self.config.family} model with an LM head of its own takes no heads with a draft vocabulary: "
                "leave out heads"
            )
        return self.embed(token_ids) / self.config.embedding_scale * self.config.logit_scale

    @property
    def cache_dtype(self) -> torch.dtype:
        """The dtype of keys and values."""
        return self.dtype

    @property
    def weight_bytes(self) -> int:
        """The memory of the weights, in bytes."""
        return self._weight_bytes
