"""Runs a model's own draft head (multi-token prediction) on a CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from outrider.cache import CacheSpec, make_cache
from outrider.drafters.trained.heads import head_format
from outrider.drafters.trained.mtp_head import PROJECTION, MtpHead
from outrider.drafters.trained.mtp_vocabulary import Scored, lower_rows
from outrider.drafters.trained.native_chain import NativeChain
from outrider.drafters.trained.native_head import NativeHead
from outrider.models.batch import Span
from outrider.models.native_layers import NativeLayers
from outrider.models.native_llama import NativeLlamaModel
from outrider.models.native_names import matrix_names, router_names
from outrider.models.native_packer import Packer
from outrider.models.native_struct import struct_fields
from outrider.native.model_structs import LayerStruct, ModelStruct
from outrider.native.plans import Target
from outrider.native.weights import NativeWeight
from outrider.verify.arrays import Floats

__all__ = ["NativeMtp"]

_FLOATS = ("F32", "F16", "BF16")


class NativeMtp(NativeHead):
    """A ``HeadRunner`` of an ``MtpHead``.

    ::

        token t + 1 ── embedding ── norm ─┐
                                          ├─ fc ── layer ── norm ─┬─ the LM head or a part of it: token t + 2
        feature at t: the target's ─ norm ┘                       └─ the feature of the next level
        hidden state after its last norm
    """

    def __init__(self, head: MtpHead, target: NativeLlamaModel, cache: CacheSpec) -> None:
        """Packs the weights of ``head``. ``cache``: the specification of the layer's own cache.

        Quantised matrices stay as they are stored. Floats are rounded to 8 bits, or not at all for a float32 target.
        """
        c = head.config
        own = make_cache(
            cache, layers=c.num_layers, kv_heads=c.num_kv_heads, head_dim=c.head_dim, value_dim=c.value_dim,
            dtype=target.cache_dtype,
        )  # fmt: skip
        super().__init__(target, own)
        kind = head_format(target)
        rounded: Mapping[str, Target] = dict.fromkeys(_FLOATS, kind)
        self._parts = parts = Packer(head.tensors, "float32" if kind == "float32" else None, rounded=rounded)
        parts.pack([*matrix_names(c), PROJECTION], router_names(c))
        build = NativeLayers(c, parts)
        self._layers = (LayerStruct * c.num_layers)(*map(build.layer, range(c.num_layers)))
        self._held = build.held
        self._fc = parts.matrix(PROJECTION)
        self._embedding_norm, self._feature_norm, self._output_norm = (
            parts.vector(f"model.{name}.weight").ctypes.data
            for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        )
        self._lm_head, scaled = lower_rows(target, head.lowest) if head.scores_part else (target.head, False)
        self._more: NativeWeight | None = None
        self._model = ModelStruct(
            **struct_fields(c) | ({"logit_scale": 0.0} if scaled else {}),
            layer=ctypes.addressof(self._layers),
            final_norm=build.norm("model.norm"),
            head=ctypes.addressof(self._lm_head.struct),
        )
        self.chain: NativeChain = NativeChain(
            target, self.cache, self._model, self._fc, [self._feature_norm], self._output_norm, None,
            embedding_norm=self._embedding_norm, read=self.fuse,
        )  # fmt: skip

    def fuse(self, features: Floats) -> Floats:
        """See ``HeadRunner``."""
        return self._target.final_norm(features)

    def run(
        self, features: Floats, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Floats | None = None,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """See ``HeadRunner``."""
        embeddings = self._embed(tokens, added)
        parts = self._normed(embeddings, self._embedding_norm), self._normed(features, self._feature_norm)
        inputs = self._fc(np.concatenate(parts, axis=1))
        out, logits = self._forward(inputs, embeddings, positions, spans, logit_rows)
        out = self._normed(out, self._output_norm)
        return out, logits if self._more is None else np.hstack([logits, self._more(out[list(logit_rows)])])

    def score(self, tokens: Scored) -> None:
        """Score these tokens from now on."""
        self.vocabulary, self._more = tokens.vocabulary, tokens.more
        self.chain.score(tokens.vocabulary.columns, tokens.more)

    def logits(self, outputs: Floats) -> Floats:
        """The logits [n, scored] of outputs [n, d] of ``run``."""
        logits = self._lm_head(outputs)
        if scale := float(self._model.logit_scale):
            logits *= np.float32(scale)
        return logits if self._more is None else np.hstack([logits, self._more(outputs)])
