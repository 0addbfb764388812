"""Times of llama.cpp's forward passes: run by ``benchmarks.rows`` with an interpreter that has llama-cpp-python.

    python llama_cpp_rows.py FILE.gguf THREADS CONTEXT MOST

Prints the version. Then each line of standard input, ``ROWS TIMES LOGITS``, is answered with a JSON list of seconds of
one ``llama_decode`` each: a batch of ROWS tokens behind CONTEXT others (behind none for a prompt: LOGITS is ``last``,
and only the last row's are computed; otherwise it is ``all``). The first time is one more, which warms up and is left
out. MOST is the most rows of a batch.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import llama_cpp as peer  # type: ignore[import-not-found, unused-ignore]


class Passes:
    """A model with a context of its own, and a batch that is filled again for every pass."""

    def __init__(self, file: str, threads: int, context: int, most: int) -> None:
        peer.llama_backend_init()
        self._model: Any = peer.llama_model_load_from_file(file.encode(), peer.llama_model_default_params())
        if not self._model:
            raise SystemExit(f"llama.cpp cannot load {file}")
        options = peer.llama_context_default_params()
        options.n_ctx, options.n_batch = context + most, max(context, most)
        options.n_threads = options.n_threads_batch = threads
        self._context: Any = peer.llama_init_from_model(self._model, options)
        if not self._context:
            raise SystemExit(f"llama.cpp has no room for a context of {context + most} tokens")
        self._batch = peer.llama_batch_init(max(context, most), 0, 1)
        self._vocab_size = peer.llama_vocab_n_tokens(peer.llama_model_get_vocab(self._model))
        self._depth = context

    def seconds(self, rows: int, times: int, *, last_logits: bool) -> list[float]:
        """Seconds of ``times`` passes over ``rows`` rows, after one that warms up."""
        start, found = 0 if last_logits else self._depth, []
        self._read(start)
        for _ in range(times + 1):
            if not self._forget(start):
                self._read(start)
            self._fill(start, rows, last_logits=last_logits)
            began = time.perf_counter()
            self._decode()
            found.append(time.perf_counter() - began)
        return found[1:]

    def _read(self, rows: int) -> None:
        """Begin anew with a context of ``rows`` rows."""
        self._forget(0)
        if rows:
            self._fill(0, rows, last_logits=True)
            self._decode()

    def _forget(self, start: int) -> bool:
        """Drop the rows from ``start`` on; False if that cannot be done, as with recurrent states."""
        return bool(peer.llama_memory_seq_rm(peer.llama_get_memory(self._context), 0, start, -1))

    def _fill(self, start: int, rows: int, *, last_logits: bool) -> None:
        batch = self._batch
        batch.n_tokens = rows
        for i in range(rows):
            batch.token[i], batch.pos[i] = (start + i) % self._vocab_size, start + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = not last_logits or i == rows - 1

    def _decode(self) -> None:
        if peer.llama_decode(self._context, self._batch):
            raise SystemExit(f"llama_decode of {self._batch.n_tokens} rows failed")
        peer.llama_synchronize(self._context)


def main() -> None:
    file, threads, context, most = sys.argv[1], *map(int, sys.argv[2:5])
    passes = Passes(file, threads, context, most)
    print(json.dumps(peer.__version__), flush=True)
    for line in sys.stdin:
        rows, times, logits = line.split()
        print(json.dumps(passes.seconds(int(rows), int(times), last_logits=logits == "last")), flush=True)


if __name__ == "__main__":
    main()
