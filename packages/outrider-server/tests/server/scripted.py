"""A model that says what it is told to say, to test what becomes of an answer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from outrider import LLM
from outrider.cache import CacheSpec, KVCache
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.config import ModelConfig


class Scripted:
    """Runs the real model, then puts all weight on the script's token for each position from ``start`` on."""

    def __init__(self, model: Model, start: int, script: Sequence[int]) -> None:
        self.config: ModelConfig = model.config
        self._model, self._start, self._script = model, start, list(script)

    def new_cache(self, spec: CacheSpec) -> KVCache:
        return self._model.new_cache(spec)

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        output = self._model.forward(batch, cache)
        positions = batch.positions if batch.logit_rows is None else [batch.positions[row] for row in batch.logit_rows]
        logits = np.full_like(output.logits, -20.0)
        for row, position in enumerate(positions):
            place = position + 1 - self._start
            if 0 <= place < len(self._script):
                logits[row, self._script[place]] = 20.0
        return ForwardOutput(logits=logits, hidden=output.hidden)


@contextmanager
def saying(llm: LLM, text: str, *, after: int) -> Iterator[None]:
    """Let ``llm`` answer every prompt of ``after`` tokens with ``text`` and the end of text."""
    engine: Any = llm.engine
    real = engine._model
    engine._model = Scripted(real, after, [*llm.tokenizer.encode(text), llm.tokenizer.eos_token_ids[0]])
    try:
        yield
    finally:
        engine._model = real
