"""Random models that think and call tools in the manner of each family, as folders and as servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tokenizers

from outrider import LLM
from outrider.cache import CacheSpec, KVCache
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.config import ModelConfig
from tests.server.live import Live
from tests.tokenizer.vocabularies import byte_level
from tests.weights.files import write_folder

TOLD = {
    "hermes": "<tool_call>",
    "qwen-xml": "<tool_call>",
    "glm": "<tool_call> <arg_key>",
    "seed": "<seed:tool_call>",
    "mistral": "[TOOL_CALLS]",
    "deepseek": "<｜tool▁call▁begin｜>",
    "deepseek-dsml": "｜DSML｜",
    "kimi": "<|tool_call_begin|>",
    "minimax": "<minimax:tool_call>",
    "gemma": "<|tool_call> <tool_call|>",
    "nemotron": "<TOOLCALL>",
    "hunyuan": "<tool_calls>",
    "llama3": "<|python_tag|>",
    "llama4": "<|python_start|>",
    "lfm2": "<|tool_call_start|>",
    "granite": "<|tool_call|>",
}
"""A template's sign of each notation."""
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|user|>{{ m.role }}: {{ m.content }}"
    "{% if m.tool_calls %}{{ m.tool_calls | tojson }}{% endif %}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% if enable_thinking %}<think>{% else %}<think></think>{% endif %}"
    "{% endif %}"
)
EVERY = 24
"""Positions from one that ends thinking to the next."""


class EndsThinking:
    """Runs the real model, then makes the token that ends thinking likely at some positions."""

    def __init__(self, model: Model, token: int) -> None:
        self.config: ModelConfig = model.config
        self._model, self._token = model, token

    def new_cache(self, spec: CacheSpec) -> KVCache:
        return self._model.new_cache(spec)

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        output = self._model.forward(batch, cache)
        positions = batch.positions if batch.logit_rows is None else [batch.positions[row] for row in batch.logit_rows]
        logits = output.logits.copy()
        for row, position in enumerate(positions):
            if position % EVERY == 0:
                logits[row, self._token] += 20.0
        return ForwardOutput(logits=logits, hidden=output.hidden)


def calling_folder(folder: Path, notation: str, *, seed: int = 0) -> Path:
    """A tiny model that thinks and writes its calls so."""
    byte_level(folder, chat_template=f"{{# {TOLD[notation]} #}}{TEMPLATE}")
    tokenizer: Any = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    added = ["<think>", "</think>", *TOLD[notation].split()]
    tokenizer.add_special_tokens([tokenizers.AddedToken(text, normalized=False, special=True) for text in added])
    tokenizer.save(str(folder / "tokenizer.json"))
    size = tokenizer.get_vocab_size()
    write_folder(folder, vocab_size=size, bos_token_id=0, eos_token_id=1, max_position_embeddings=4096)
    return folder


@contextmanager
def calling(folder: Path, **options: Any) -> Iterator[Live]:
    """A server of such a model."""
    given: dict[str, Any] = {"draft": "suffix", "max_batch_size": 8, "threads": 1, "spec_length": 4} | options
    llm = LLM(str(folder), **given)
    engine: Any = llm.engine
    engine._model = EndsThinking(engine._model, llm.tokenizer.vocabulary["</think>"])
    with Live(llm, name="m") as server:
        yield server
