"""A server for trying clients: a tiny random model of Qwen 2.5's tokenizer and template that says what it is told to.

A message asks for words with ``SAY <<text>>`` and for a tool's call with ``CALL <<{"name": ..., "arguments": ...}>>``;
after the tool's result the answer repeats it. The words follow the request's grammar, as of every model.

    python -m tests.clients.lab FOLDER_OF_TOKENIZER --port 8500
"""

from __future__ import annotations

import argparse
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from outrider import LLM
from outrider.cache import CacheSpec, KVCache
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.config import ModelConfig
from outrider.tokenizer.tokenizer import Tokenizer
from tests.server.live import Live
from tests.weights.files import write_folder

NAME = "lab"
CONTEXT = 65536
_WANTED = re.compile(r"(SAY|CALL) <<(.*?)>>(?!>)", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)


def answers(prompt: str) -> list[str]:
    """What to say after ``prompt``, best first: the second is a call for grammars that force one."""
    wanted = list(_WANTED.finditer(prompt))
    if not wanted:
        return ["Hello from the lab."]
    kind, text = wanted[-1].groups()
    if kind == "SAY":
        return [text]
    results = _RESULT.findall(prompt, wanted[-1].end())
    if results:
        return [f"The tool said: {results[-1][:200].strip()}"]
    return [f"<tool_call>\n{text}\n</tool_call>", text]


class Obedient:
    """A model that puts its weight on the next token of ``answers``. It needs whole prompts: no drafts, no reuse."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self.config: ModelConfig = model.config
        self._model, self._tokenizer = model, tokenizer
        self._rows: dict[int, list[int]] = {}  # by slot: the tokens so far
        self._scripts: dict[int, tuple[int, list[list[int]]]] = {}  # by slot: where the answer begins, and answers

    def new_cache(self, spec: CacheSpec) -> KVCache:
        return self._model.new_cache(spec)

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        output = self._model.forward(batch, cache)
        logits = np.array(output.logits, np.float32)
        wanted = list(range(len(batch.token_ids)) if batch.logit_rows is None else batch.logit_rows)
        place = 0
        for span in batch.spans:
            known = self._rows.setdefault(span.slot, [])
            if span.start == 0:
                self._scripts.pop(span.slot, None)
            known[span.start :] = batch.token_ids[place : place + span.count]
            for row, index in enumerate(wanted):
                if place <= index < place + span.count:
                    self._lead(logits[row], span.slot, span.start + index - place + 1)
            place += span.count
        return replace(output, logits=logits)

    def _lead(self, logits: np.ndarray[Any, Any], slot: int, length: int) -> None:
        """Weigh the tokens that may come after the first ``length`` of the slot."""
        if slot not in self._scripts:
            prompt = self._tokenizer.decode(self._rows[slot][:length], skip_special_tokens=False)
            ends = [*self._tokenizer.eos_token_ids][:1]
            self._scripts[slot] = length, [[*self._tokenizer.encode(text), *ends] for text in answers(prompt)]
        start, scripts = self._scripts[slot]
        said = self._rows[slot][start:length]
        for weight, script in zip((60.0, 50.0), scripts, strict=False):
            if script[: len(said)] == said and len(script) > len(said):
                logits[script[len(said)]] += weight


def folder_of(tokenizer: Path, folder: Path) -> Path:
    """A model folder with the tokenizer's files."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, folder / name)
    ids = Tokenizer.from_folder(folder).vocabulary
    small: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": CONTEXT}
    write_folder(folder, vocab_size=max(ids.values()) + 1, bos_token_id=None, eos_token_id=ids["<|im_end|>"], **small)
    return folder


def serving(tokenizer: Path, folder: Path, **settings: Any) -> Live:
    """The server, to be used in ``with``."""
    llm = LLM(str(folder_of(tokenizer, folder)), draft="none", prefix_reuse=False, max_batch_size=4, threads=2)
    engine: Any = llm.engine
    engine._model = Obedient(engine._model, llm.tokenizer)
    return Live(llm, NAME, **settings)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("--port", type=int, default=8500)
    args = parser.parse_args(given)
    with tempfile.TemporaryDirectory() as folder, serving(args.tokenizer, Path(folder), port=args.port) as live:
        print(live.url, flush=True)
        while True:
            time.sleep(60)


if __name__ == "__main__":
    main()
