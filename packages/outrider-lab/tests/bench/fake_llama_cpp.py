"""A stand-in for llama-cpp-python, copied into a folder as ``llama_cpp.py``: it answers at once, and notes its batches.

``FAKE_BATCHES`` names the file of the notes: a JSON line ``[positions, positions with logits]`` for each
``llama_decode``, and one, ``"forget"`` and the first position, for each removal.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

__version__ = "9.8.7"


def _note(what: Any) -> None:
    with open(os.environ["FAKE_BATCHES"], "a") as notes:
        notes.write(json.dumps(what) + "\n")


def llama_backend_init() -> None:
    """Nothing to begin."""


def llama_model_default_params() -> SimpleNamespace:
    return SimpleNamespace()


llama_context_default_params = llama_model_default_params


def llama_model_load_from_file(path: bytes, params: object) -> str | None:
    return path.decode() if os.path.exists(path) else None


def llama_init_from_model(model: str, params: SimpleNamespace) -> SimpleNamespace:
    _note(["threads", params.n_threads, params.n_threads_batch, params.n_ctx, params.n_batch])
    return params


def llama_batch_init(tokens: int, embd: int, sequences: int) -> SimpleNamespace:
    names = ("token", "pos", "n_seq_id", "logits")
    lists = {name: [0] * tokens for name in names}
    return SimpleNamespace(**lists, seq_id=[[0] * sequences for _ in range(tokens)], n_tokens=0)


def llama_model_get_vocab(model: str) -> str:
    return model


def llama_vocab_n_tokens(vocab: str) -> int:
    return 50


def llama_get_memory(context: object) -> object:
    return context


def llama_memory_seq_rm(memory: object, sequence: int, start: int, stop: int) -> bool:
    _note(["forget", start])
    return True


def llama_decode(context: SimpleNamespace, batch: SimpleNamespace) -> int:
    n = batch.n_tokens
    _note([batch.pos[:n], [batch.pos[i] for i in range(n) if batch.logits[i]]])
    return 0


def llama_synchronize(context: object) -> None:
    """Nothing to wait for."""


class Llama:
    """Continues every prompt with its last token plus 1, 2, 3 and so on."""

    def __init__(self, file: str, **options: Any) -> None:
        _note(["loaded", file, options["n_threads"], options["n_threads_batch"]])
        self._counts: defaultdict[str, int] = defaultdict(int)

    def token_eos(self) -> int:
        return -1

    def reset(self) -> None:
        self._counts["reset"] += 1

    def generate(self, ids: list[int], temp: float, repeat_penalty: float) -> Iterator[int]:
        assert (temp, repeat_penalty) == (0.0, 1.0)
        for i in range(1, 1000):
            yield ids[-1] + i
