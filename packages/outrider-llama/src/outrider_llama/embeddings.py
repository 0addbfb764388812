"""Embeddings of texts: means of the model's last hidden states."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from outrider import SamplingParams
from outrider_llama.options import POOLING_UNSPECIFIED

if TYPE_CHECKING:
    from outrider_llama.base import LlamaBase


class Embedder:
    """Embeds the texts of one ``Llama``."""

    def __init__(self, llama: LlamaBase, pooling: int) -> None:
        """``pooling``: a number of llama.cpp's; where it is not given, the mean is taken, with a warning."""
        self._llama, self._warned = llama, pooling != POOLING_UNSPECIFIED

    def embed(
        self, texts: Sequence[str], *, normalize: bool = False, truncate: bool = True
    ) -> tuple[list[list[float]], int]:
        """One vector per text, and the number of tokens read.

        Raises:
            RuntimeError: the model was not loaded for embeddings.
            ValueError: a text is longer than ``n_batch`` tokens and is not truncated, or empty.
        """
        llama = self._llama
        if not llama.embeds:
            raise RuntimeError("Llama model must be created with embedding=True to call this method")
        if not self._warned:
            self._warned = True
            warnings.warn(
                "pooling_type is not given: embeddings are means (pooling_type=1), where llama.cpp gives one vector "
                "per token for most language models",
                UserWarning,
                stacklevel=3,
            )
        vectors: list[list[float]] = []
        count = 0
        for text in texts:
            tokens = llama.tokenize(text.encode())
            tokens = tokens[: llama.n_batch] if truncate else tokens
            if len(tokens) > llama.n_batch:
                raise ValueError(f"Requested tokens ({len(tokens)}) exceed batch size of {llama.n_batch}")
            count += len(tokens)
            vectors.append(self._vector(tokens, normalize))
        return vectors, count

    def _vector(self, tokens: Sequence[int], normalize: bool) -> list[float]:
        llm = self._llama.llm
        plain = replace(llm.speculation, draft="none", prediction=None)
        request = llm.request(tokens, SamplingParams(max_tokens=1), plain)
        report = request.prompt_report
        report.final_norm = llm.model.final_norm
        for _ in llm.stream(request):
            pass
        if normalize:
            return [float(x) for x in report.embedding()]
        assert report.hidden_sum is not None
        return [float(x) for x in (report.hidden_sum / len(tokens)).astype(np.float32)]
