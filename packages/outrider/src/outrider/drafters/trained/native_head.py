"""The base of heads whose decoder layers run on a CPU: layers, norm and LM head in one call of the native library."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np

from outrider.cache import KVCache
from outrider.drafters.trained.native_chain import NativeChain
from outrider.drafters.trees.draft_vocabulary import DraftVocabulary
from outrider.models.batch import Span
from outrider.models.native_llama import NativeLlamaModel
from outrider.models.native_passes import CacheView, address, check_status, int64s, norm_rows, span_structs
from outrider.native.library import native_library
from outrider.native.model_structs import BatchStruct, ModelStruct
from outrider.native.structs import WeightStruct
from outrider.verify.arrays import Floats

__all__ = ["NativeHead"]


class NativeHead:
    """Runs the layers of a head over rows that have gone through its own input projection."""

    def __init__(self, target: NativeLlamaModel, cache: KVCache) -> None:
        """``cache``: of the head's layers."""
        self.cache = cache
        self.vocabulary: DraftVocabulary | None = None
        """The tokens that logits score; None: all of the target's."""
        self.chain: NativeChain | None = None
        """Drafts a chain in one call; None for heads that the library cannot run so."""
        self.context = target.context
        """Threads and instruction set of forward passes."""
        self._target, self._view, self._library = target, CacheView(cache), native_library()
        self._model: ModelStruct

    def _embed(self, tokens: Sequence[int], added: Floats | None) -> Floats:
        """The target's embeddings of tokens, plus ``added`` [n, d]."""
        embeddings = self._target.embed(np.array(tokens, np.int64))
        return embeddings if added is None else embeddings + added

    def _forward(
        self, inputs: Floats, embeddings: Floats, positions: Sequence[int], spans: Sequence[Span],
        logit_rows: Sequence[int],
    ) -> tuple[Floats, Floats]:  # fmt: skip
        """The layers' outputs [T, d] before the final norm, and the LM head's logits.

        ``inputs``, ``embeddings``: float [T, d], the residual stream, and the tokens' embeddings.
        """
        at, scored = int64s(positions), int64s(logit_rows)
        inputs = np.ascontiguousarray(inputs, np.float32)
        structs, held = span_structs(spans, self.cache)
        out = np.empty((len(inputs), int(self._model.hidden)), np.float32)
        logits = np.empty((len(logit_rows), int(WeightStruct.from_address(self._model.head).outputs)), np.float32)
        batch = BatchStruct(
            rows=len(inputs),
            spans=len(structs),
            layers=self._model.layers,
            logit_rows=len(logit_rows),
            positions=address(at),
            inputs=inputs.ctypes.data,
            span=ctypes.addressof(structs),
            logit_row=address(scored),
            logits=logits.ctypes.data,
            residual=out.ctypes.data,
            embeddings=embeddings.ctypes.data,
        )
        model, cache = ctypes.byref(self._model), self._view.address
        check_status(self._library.outrider_forward(self.context.address, model, cache, ctypes.byref(batch)))
        del held
        return out, logits

    def _normed(self, x: Floats, weight: int | None) -> Floats:
        """The RMS norm of ``x`` [n, d]. ``weight``: the address of the weight [d]; None: all ones."""
        return norm_rows(self.context, x, weight, float(self._model.eps))
