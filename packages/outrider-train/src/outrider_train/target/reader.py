"""The target's features and labels from the code that serves it.

On a CPU the native library is many times as fast as torch, and its weights have the precision that is served by
default. Elsewhere torch reads the targets that are no Llamas.
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.models.base import LoadedModel
from outrider.models.batch import ForwardBatch, Span
from outrider.native.library import library
from outrider.weights.loader import load_model
from outrider_torch.kernels.native_tensors import as_tensors
from outrider_train.data.documents import Document

_CHUNK = 256  # tokens of a forward pass: rows of logits are large


class Reader:
    """Runs the target over one document at a time, in chunks of tokens."""

    def __init__(self, model: LoadedModel, layers: tuple[int, ...] | None, top_k: int, longest: int) -> None:
        """``layers``, ``top_k``: as in ``FeatureSpec``. ``longest``: tokens of a document, at most."""
        self._model, self._layers, self._top_k = model, layers, top_k
        self._cache = model.new_cache(CacheSpec(slots=1, max_seq_len=longest, prefix_reuse=False))
        self._slot = self._cache.allocate()

    @property
    def precision(self) -> str:
        """The precision of the weights."""
        return self._model.precision

    @torch.inference_mode()
    def read(self, document: Document) -> tuple[Tensor, Tensor, Tensor]:
        """Features, ids and probabilities of the most likely tokens, shaped as in ``Features``."""
        device = torch.device(self._model.device).type
        with torch.autocast(device, enabled=False):  # evaluations turn autocast on, and it cannot concatenate float16
            self._cache.truncate_to(self._slot, 0)
            parts = [self._chunk(document, start) for start in range(0, len(document.ids), _CHUNK)]
            rows, ids, probs = (torch.cat(each) for each in zip(*parts, strict=True))
        return rows, ids, probs

    def _chunk(self, document: Document, start: int) -> tuple[Tensor, Tensor, Tensor]:
        tokens = list(document.ids[start : start + _CHUNK])
        self._cache.extend(self._slot, len(tokens))
        first = min(len(tokens), max(0, document.start - 1 - start))
        batch = ForwardBatch(
            tokens,
            range(start, start + len(tokens)),
            (Span(self._slot, start, len(tokens)),),
            range(first, len(tokens)),
            features=self._layers or (self._model.config.num_layers,),
        )
        out = self._model.forward(batch, self._cache)
        assert out.features is not None
        logits = as_tensors(out.logits).float()
        rows = as_tensors(out.features if self._layers else self._model.final_norm(out.features))
        if self._layers is None:
            rows = rows[:, :0]
        top = logits.topk(self._top_k, dim=-1)
        probs = (top.values - logits.logsumexp(-1, keepdim=True)).exp()
        return rows.to(torch.bfloat16), top.indices.to(torch.int32), probs.half()


def target_reader(
    folder: Path, layers: tuple[int, ...] | None, top_k: int, longest: int, device: torch.device
) -> Reader:
    """A reader for the model in ``folder``: the native library's on a CPU that has it, else torch's."""
    native = device.type == "cpu" and library() is not None
    options = ModelOptions(device=str(device), implementation="native" if native else "torch")
    return Reader(load_model(folder, options), layers, top_k, longest)
