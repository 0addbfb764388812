"""Run by a Python that has llama-cpp-python: a line of JSON in for each file, a line of JSON out.

``{"path": .., "ids": [..]}`` gives the logits of every position, in float32, attention's cache included.
``{"path": .., "texts": [..]}`` gives the token ids of texts, special tokens parsed, framed as the file says.
"""

import contextlib
import ctypes
import json
import os
import sys
from typing import Any

import llama_cpp


def answer(path: str, ids: "list[int] | None" = None, texts: "list[str] | None" = None) -> "dict[str, Any]":
    llm = llama_cpp.Llama(
        path, n_ctx=256, n_batch=64, n_threads=1, n_threads_batch=1, logits_all=bool(ids), verbose=False,
        use_mmap=False, type_k=0, type_v=0, flash_attn=False, vocab_only=not ids,
    )  # fmt: skip
    with contextlib.closing(llm):
        if texts is not None:
            return {"ids": [llm.tokenize(text.encode(), add_bos=True, special=True) for text in texts]}
        assert ids is not None
        llm.eval(ids)
        suppressed = llama_cpp.llama_cpp._lib.llama_vocab_get_suppress_tokens
        suppressed.restype, count = ctypes.POINTER(ctypes.c_int32), ctypes.c_int32(0)
        found = suppressed(ctypes.c_void_p(llm._model.vocab), ctypes.byref(count))
        rows = [[float(f"{x:.6g}") for x in row] for row in llm.scores[: len(ids)]]
        return {"logits": rows, "suppressed": [found[i] for i in range(count.value)]}


def main() -> None:
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the library prints
    print(json.dumps({"version": llama_cpp.__version__}), file=out, flush=True)
    for line in sys.stdin:
        try:
            said = answer(**json.loads(line))
        except Exception as error:  # noqa: BLE001 - the file is at fault
            said = {"error": str(error)[:200]}
        print(json.dumps(said), file=out, flush=True)


if __name__ == "__main__":
    main()
