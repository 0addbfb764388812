"""Runs a head's decoder layers on a CPU: layers, norm and LM head in one call of the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from outrider.cache import CacheSpec, make_cache
from outrider.drafters.heads.weights import HeadWeights
from outrider.drafters.trained.heads import head_format
from outrider.drafters.trained.native_chain import NativeChain, takes_chains
from outrider.drafters.trained.native_head import NativeHead
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.models.batch import Span
from outrider.models.frequencies import inverse_frequencies
from outrider.models.native_llama import NativeLlamaModel
from outrider.models.native_passes import rotation_table
from outrider.native.model_structs import LayerStruct, MLPStruct, ModelStruct, NormStruct
from outrider.native.structs import WeightStruct
from outrider.native.weights import NativeWeight, pack_array
from outrider.verify.arrays import Floats


class NativeEagle(NativeHead):
    """A ``HeadRunner`` on the native library: a model of a few layers that reads features."""

    def __init__(self, head: HeadWeights, target: NativeLlamaModel, cache: CacheSpec) -> None:
        """Packs the weights of ``head``. ``cache``: the specification of the layers' own cache."""
        c = head.config
        kv_heads, dtype = c.num_kv_heads, target.cache_dtype
        own = make_cache(cache, layers=c.num_layers, kv_heads=kv_heads, head_dim=c.head_dim, dtype=dtype)
        super().__init__(target, own)
        ids = head.draft_ids
        self.vocabulary = None if ids is None else DraftVocabulary(ids, target.config.vocab_size)
        self._reads_embeddings = c.fuses_layers
        self._head, self._format = head, head_format(target)
        fc = head.get("fc.weight")
        self._fc = None if fc is None else self._pack(fc, head.get("fc.bias"))
        self._held: list[NativeWeight | Floats] = []  # keeps the memory that the structs point to
        self._input_norm = self._vector("input_norm")
        self._stream_norm = self._vector("layers.0.hidden_norm") if c.norm_before_residual else None
        self._fc_norms = [self._vector(f"fc_norm.{i}") for i in range(len(c.feature_layers) if c.fc_norm else 0)]
        self._output_norm = self._vector("norm") if c.norm_output else None
        self._lm_head = self._pack_lm_head()
        frequencies = inverse_frequencies(c.head_dim, c.rope_theta, c.rope_scaling)
        self._rotations = rotation_table(frequencies, target.config.max_seq_len)
        layers = [self._layer_struct(i) for i in range(c.num_layers)]
        self._layers = (LayerStruct * len(layers))(*layers)
        self._model = ModelStruct(
            layers=c.num_layers,
            hidden=c.hidden_size,
            heads=c.num_heads,
            kv_heads=c.num_kv_heads,
            head_dim=c.head_dim,
            inner=c.intermediate_size,
            positions=target.config.max_seq_len,
            eps=c.rms_norm_eps,
            logit_scale=target.config.logit_scale if not c.own_lm_head and ids is None else 0.0,
            logit_cap=(target.config.logit_cap or 0.0) if not c.own_lm_head else 0.0,
            layer=ctypes.addressof(self._layers),
            final_norm=NormStruct(weight=self._vector("norm")),
            head=ctypes.addressof(self._lm_head.struct),
        )
        self.chain = self._chain() if takes_chains(c) else None

    def _chain(self) -> NativeChain:
        assert self._fc is not None
        ids = None if self.vocabulary is None else np.ascontiguousarray(self.vocabulary.columns)
        return NativeChain(self._target, self.cache, self._model, self._fc, self._fc_norms, self._output_norm, ids)

    def _pack(self, weight: Floats, bias: Floats | None = None) -> NativeWeight:
        return pack_array(weight, self._format, bias=bias, context=self.context)

    def _pack_lm_head(self) -> NativeWeight:
        """The LM head: the head's own, or the target's, reduced to the rows of the draft vocabulary."""
        own, ids = self._head.get("lm_head.weight"), self._head.draft_ids
        if own is not None:
            return self._pack(own)
        return self._target.head if ids is None else self._pack(self._target.lm_head_rows(ids))

    def _layer_struct(self, i: int) -> LayerStruct:
        c, name = self._head.config, f"layers.{i}."
        attention, mlp = name + "self_attn.", name + "mlp."
        norms_stream = i == 0 and c.norm_before_residual  # before the layer, see ``run``
        return LayerStruct(
            q=self._matrix(attention + "q_proj"),
            k=self._matrix(attention + "k_proj"),
            v=self._matrix(attention + "v_proj"),
            out=self._matrix(attention + "o_proj"),
            mlp=MLPStruct(
                gate=self._matrix(mlp + "gate_proj"),
                up=self._matrix(mlp + "up_proj"),
                down=self._matrix(mlp + "down_proj"),
            ),
            attention_norm=NormStruct(weight=None if norms_stream else self._vector(name + "hidden_norm")),
            mlp_norm=NormStruct(weight=self._vector(name + "post_attention_layernorm")),
            rotations=self._rotations.ctypes.data,
            window=c.window,
            embedding_norm=self._vector(name + "input_layernorm"),
        )

    def _matrix(self, name: str) -> WeightStruct:
        packed = self._pack(self._head[f"{name}.weight"])
        self._held.append(packed)
        return packed.struct

    def _vector(self, name: str) -> int | None:
        """The address of a norm's weight; None if the head does not have this norm."""
        weight = self._head.get(f"{name}.weight")
        if weight is None:
            return None
        own = np.ascontiguousarray(weight)
        self._held.append(own)
        return int(own.ctypes.data)

    def fuse(self, features: Floats) -> Floats:
        """See ``HeadRunner``."""
        if not self._head.config.feature_layers or self._fc is None:
            return self._target.final_norm(features)
        if self._input_norm is not None:
            features = self._normed(features, self._input_norm)
        if self._fc_norms:
            parts = np.split(features, len(self._fc_norms), axis=1)
            features = np.concatenate(list(map(self._normed, parts, self._fc_norms)), axis=1)
        return self._fc(features)

    def run(
        self, features: Floats, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Floats | None = None,
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """See ``HeadRunner``."""
        embeddings = self._embed(tokens, added)
        inputs = features
        if not self._reads_embeddings and self._fc is not None:
            inputs = self._fc(np.concatenate([embeddings, features], axis=1))
        if self._stream_norm is not None:
            inputs = self._normed(inputs, self._stream_norm)
        out, logits = self._forward(inputs, embeddings, positions, spans, logit_rows)
        return out if self._output_norm is None else self._normed(out, self._output_norm), logits
