"""Runs Gemma 4's assistant on a CPU: it has queries alone, and reads the target's keys and values where they lie."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence

import numpy as np

from outrider.cache import KVCache
from outrider.drafters.trained.assistant_files import POST, PRE, AssistantHead
from outrider.drafters.trained.heads import head_format
from outrider.models.batch import Span
from outrider.models.native_layers import NativeLayers
from outrider.models.native_llama import NativeLlamaModel
from outrider.models.native_names import matrix_names
from outrider.models.native_packer import Packer
from outrider.models.native_passes import CacheView, address, check_status, int64s, span_structs
from outrider.models.native_struct import struct_fields
from outrider.native.library import native_library
from outrider.native.model_structs import BatchStruct, LayerStruct, ModelStruct
from outrider.native.plans import Target
from outrider.verify.arrays import Floats

__all__ = ["NativeAssistant"]

_FLOATS = ("F32", "F16", "BF16")


class NativeAssistant:
    """An ``AssistantHead``, packed.

    ::

        token ── the target's embedding ─┐
                                         ├─ pre_projection ── layers ── norm ─┬─ LM head: the next token
        the target's hidden state behind ┘                                    └─ post_projection: the state that
        its last norm, or the state that                                         the next level goes on from
        the level before leaves
    """

    def __init__(self, head: AssistantHead, target: NativeLlamaModel, cache: KVCache) -> None:
        """``cache``: the target's. Floats are rounded to 8 bits, or not at all for a float32 target."""
        c = self.config = head.config
        self._target, self._cache, self._view = target, cache, CacheView(cache)
        kind = head_format(target)
        rounded: Mapping[str, Target] = dict.fromkeys(_FLOATS, kind)
        parts = self._parts = Packer(head.tensors, "float32" if kind == "float32" else None, rounded=rounded)
        parts.pack([*matrix_names(c), "model.embed_tokens", PRE, POST], ())
        build = NativeLayers(c, parts)
        self._layers = (LayerStruct * c.num_layers)(*map(build.layer, range(c.num_layers)))
        self._held = build.held
        self._before, self._after = parts.matrix(PRE), parts.matrix(POST)
        self._model = ModelStruct(
            **struct_fields(c),
            layer=ctypes.addressof(self._layers),
            final_norm=build.norm("model.norm"),
            head=ctypes.addressof(parts.matrix("model.embed_tokens").struct),
        )
        self._library = native_library()

    def run(
        self, tokens: Sequence[int], states: Floats, slots: Sequence[int], lengths: Sequence[int]
    ) -> tuple[Floats, Floats]:
        """A level of drafts: n rows, each by itself.

        Args:
            tokens: the tokens that the drafts go on from.
            states: float32 [n, d of the target], of the tokens before these.
            slots, lengths: where the target's cache has each row's sequence, and of how many tokens. The position of a
                row is the one behind them, at every level.

        Returns:
            float32 states [n, d of the target], and logits [n, vocab].
        """
        embeddings = self._target.embed(np.array(tokens, np.int64))
        inputs = self._before(np.concatenate([embeddings, states], axis=1))
        spans, held = span_structs([Span(s, n - 1, 1) for s, n in zip(slots, lengths, strict=True)], self._cache)
        rows, positions = int64s(range(len(tokens))), int64s(lengths)
        hidden = np.empty((len(tokens), self.config.hidden_size), np.float32)
        logits = np.empty((len(tokens), self.config.vocab_size), np.float32)
        batch = BatchStruct(
            rows=len(tokens),
            spans=len(tokens),
            layers=self.config.num_layers,
            logit_rows=len(tokens),
            positions=address(positions),
            inputs=inputs.ctypes.data,
            span=ctypes.addressof(spans),
            logit_row=address(rows),
            hidden_out=hidden.ctypes.data,
            logits=logits.ctypes.data,
        )
        context, model = self._target.context.address, ctypes.byref(self._model)
        check_status(self._library.outrider_forward(context, model, self._view.address, ctypes.byref(batch)))
        del held
        return self._after(hidden), logits
