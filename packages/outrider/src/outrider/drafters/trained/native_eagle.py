"""A head's decoder layers on a CPU: layers, norm and LM head are one call of the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from outrider.cache import CacheSpec, make_cache
from outrider.drafters.heads.eagle import DecoderLayer, EagleLayer, Norm
from outrider.drafters.trained.head_parts import draft_vocabulary, lm_head_weight
from outrider.drafters.trained.heads import head_format
from outrider.drafters.trained.native_chain import NativeChain, takes_chains
from outrider.models.batch import Span
from outrider.models.frequencies import inverse_frequencies
from outrider.native.model_structs import BatchStruct, LayerStruct, MLPStruct, ModelStruct, NormStruct
from outrider.native.passes import CacheView, address, check_status, int64s, rotation_table, span_structs
from outrider.native.structs import WeightStruct
from outrider.native.weights import native_library
from outrider_torch.drafters.torch_target import TorchTarget
from outrider_torch.kernels.native_tensors import TensorWeight, pack_tensor


class NativeEagle:
    """A model of a few layers whose inputs are features; an ``EagleRunner``."""

    def __init__(self, head: EagleLayer, target: TorchTarget, cache: CacheSpec) -> None:
        """The weights of ``head`` are packed; it is not needed afterwards."""
        c = head.config
        self._target, self._hidden, self._library = target, c.hidden_size, native_library()
        self.vocabulary = draft_vocabulary(head, target)
        self.cache = make_cache(
            cache, layers=c.num_layers, kv_heads=c.num_kv_heads, head_dim=c.head_dim, dtype=target.cache_dtype
        )
        self._view = CacheView(self.cache)
        self._reads_embeddings = c.fuses_layers
        self._fc = pack_tensor(
            head.fc.weight.float(), head_format(target), bias=None if head.fc.bias is None else head.fc.bias.detach()
        )
        self._eps = c.rms_norm_eps
        self._held: list[TensorWeight | Tensor] = []  # what the structs point to
        self._input_norm = self._vector(head.input_norm) if c.norm_before_fc else None
        self._stream_norm = self._vector(head.layer.hidden_norm) if c.norm_before_residual else None
        self._fc_norms = [self._vector(norm) for norm in head.fc_norm or () if isinstance(norm, Norm)]
        self._output_norm = self._vector(head.norm) if c.norm_output else None
        self._lm_head = lm_head_weight(head, target)
        frequencies = inverse_frequencies(c.head_dim, c.rope_theta, c.rope_scaling)
        self._rotations = rotation_table(frequencies, target.config.max_seq_len)
        layers = [self._layer_struct(layer) for layer in head.layers if isinstance(layer, DecoderLayer)]
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
            logit_scale=target.config.logit_scale if head.lm_head is None and head.draft_ids is None else 0.0,
            logit_cap=(target.config.logit_cap or 0.0) if head.lm_head is None else 0.0,
            layer=ctypes.addressof(self._layers),
            final_norm=NormStruct(weight=self._vector(head.norm) if c.fuses_layers else None),
            head=ctypes.addressof(self._lm_head.struct),
        )
        self.chain = self._chain() if takes_chains(head) else None
        """Drafts a chain in one call, where the library can."""

    def _chain(self) -> NativeChain:
        ids = None if self.vocabulary is None else torch.from_numpy(self.vocabulary.columns).contiguous()
        return NativeChain(self._target, self.cache, self._model, self._fc, self._fc_norms, self._output_norm, ids)

    def _layer_struct(self, layer: DecoderLayer) -> LayerStruct:
        attention, mlp = layer.self_attn, layer.mlp
        return LayerStruct(
            q=self._matrix(attention.q_proj),
            k=self._matrix(attention.k_proj),
            v=self._matrix(attention.v_proj),
            out=self._matrix(attention.o_proj),
            mlp=MLPStruct(
                gate=self._matrix(mlp.gate_proj), up=self._matrix(mlp.up_proj), down=self._matrix(mlp.down_proj)
            ),
            attention_norm=NormStruct(
                weight=None if layer.norms_residual else self._vector(layer.hidden_norm)  # see ``run``
            ),
            mlp_norm=NormStruct(weight=self._vector(layer.post_attention_layernorm)),
            rotations=self._rotations.ctypes.data,
            window=layer.self_attn.config.window,
            embedding_norm=self._vector(layer.input_layernorm),
        )

    def _matrix(self, linear: nn.Linear) -> WeightStruct:
        packed = pack_tensor(linear.weight.float(), head_format(self._target))
        self._held.append(packed)
        return packed.struct

    def _vector(self, norm: Norm | None) -> int | None:
        """The address of a norm's weight; None, which norms nothing, without one."""
        if norm is None:
            return None
        weight = norm.weight.detach().to(torch.float32, copy=True).contiguous()
        self._held.append(weight)
        return weight.data_ptr()

    def fuse(self, features: Tensor) -> Tensor:
        """See ``EagleRunner``."""
        if not self._reads_embeddings:
            return self._target.final_norm(features)
        if self._input_norm is not None:
            features = self._normed(features, self._input_norm)
        if self._fc_norms:
            parts = features.chunk(len(self._fc_norms), dim=1)
            features = torch.cat(list(map(self._normed, parts, self._fc_norms)), dim=1)
        return self._fc(features)

    def _normed(self, x: Tensor, weight: int | None) -> Tensor:
        """The RMS norm of x: [n, d], with the weight at an address."""
        x = x.to(torch.float32).contiguous()
        out = torch.empty_like(x)
        check_status(
            self._library.outrider_norm(len(x), x.shape[1], x.data_ptr(), weight, None, self._eps, out.data_ptr())
        )
        return out

    def run(
        self, features: Tensor, tokens: Sequence[int], positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int], added: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        """See ``EagleRunner``."""
        at, scored = int64s(positions), int64s(logit_rows)
        embeddings = self._target.embed(torch.tensor(tokens))
        if added is not None:
            embeddings = embeddings + added
        inputs = features if self._reads_embeddings else self._fc(torch.cat([embeddings, features], dim=1))
        if self._stream_norm is not None:
            inputs = self._normed(inputs, self._stream_norm)
        inputs = inputs.contiguous()
        structs, held = span_structs(spans, self.cache)
        out = torch.empty(len(tokens), self._hidden)
        logits = torch.empty(len(logit_rows), self._lm_head.outputs)
        batch = BatchStruct(
            rows=len(tokens),
            spans=len(structs),
            layers=len(self._layers),
            logit_rows=len(logit_rows),
            positions=address(at),
            inputs=inputs.data_ptr(),
            span=ctypes.addressof(structs),
            logit_row=address(scored),
            logits=logits.data_ptr(),
            residual=out.data_ptr(),
            embeddings=embeddings.data_ptr(),
        )
        check_status(self._library.outrider_forward(ctypes.byref(self._model), self._view.address, ctypes.byref(batch)))
        del held
        return out if self._output_norm is None else self._normed(out, self._output_norm), logits
