"""Memory that runs out at any line of a draft source costs speed, never output, and nothing stays behind."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import FrameType
from typing import Any

import pytest
from torch import nn

from outrider.cache import CacheSpec, KVCache
from outrider.config import SOURCES, SamplingParams
from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.engine.engine import Engine
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from tests import small_models
from tests.small_engines import engine, request, run
from tests.tokenizer.letters import alphabet, letters
from tests.torch_drafters.heads import random_head

PROMPT = [*small_models.ids(12), *small_models.ids(12)]
PARAMS = SamplingParams(max_tokens=10, temperature=0.8, seed=4)
SLOTS = 2
# Grammar drafts need a structured output, and an assistant a target of its family: they have tests with one.
OTHERS = ("grammar", "assistant")
NAMES = [name for name, record in SOURCES.items() if record.builder is not None and name not in OTHERS]
PLACE, CALLER = "/outrider/drafters/", "/engine/drafting/isolation.py"
POINTS = (0.0, 0.1, 0.35, 0.6, 0.85, 0.99)  # of the lines that a source runs for a request


@cache
def target() -> LoadedModel:
    """With a draft head of its own, for ``mtp``."""
    config, own = small_models.config(), small_models.config(mtp_layers=1)
    return make_model(own, small_models.tensors(config) | small_models.draft_head(own))


@cache
def head(name: str) -> nn.Module:
    return random_head(SOURCES[name].head_kinds[-1])


def served(name: str) -> Engine:
    record = SOURCES[name]
    spec = CacheSpec(slots=SLOTS, max_seq_len=target().config.max_seq_len)

    tokens = letters(alphabet(target().config.vocab_size))

    def more(kv_cache: KVCache) -> dict[str, Drafter]:
        context = DrafterContext(
            vocab_size=target().config.vocab_size,
            cache=spec,
            draft_models=(target(),) * record.min_draft_models,
            heads={"mtp": mtp_head(target())} | ({name: head(name)} if record.head_kinds else {}),
            target=target(),
            target_cache=kv_cache,
            tokenizer=tokens,
            draft_tokenizers=(tokens,) * record.min_draft_models,
        )
        return {name: DrafterRegistry(context)[name]}

    return engine(target(), slots=SLOTS, more=more)


def ask(name: str, id: str = "r", **options: Any) -> Any:
    extra: dict[str, Any] = {"prediction": tuple(PROMPT)} if name == "prediction" else {}
    return request(PROMPT, PARAMS, id=id, draft=name, spec_length=3, **extra | options)


@cache
def plain() -> list[int]:
    r = request(PROMPT, PARAMS)
    run(engine(target()), r)
    return list(r.output)


@contextmanager
def no_memory_at(line: int) -> Iterator[list[int]]:
    """``MemoryError`` at the given line, counted from 0, of those that draft sources run; -1: only count."""
    seen, calls = [0], [0]

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename.endswith(CALLER) and code.co_name in ("_call", "finish"):
            calls[0] += (event == "call") - (event == "return")
            return trace
        if not calls[0] or PLACE not in code.co_filename:
            return None
        if event == "line":
            seen[0] += 1
            if seen[0] == line + 1:
                raise MemoryError("none left")
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield seen
    finally:
        sys.settrace(before)


@cache
def lines_of(name: str) -> int:
    made = served(name)
    with no_memory_at(-1) as seen:
        run(made, ask(name))
    return seen[0]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("name", NAMES)
def test_no_memory_at_any_line_of_a_source(name: str, point: float) -> None:
    lines = lines_of(name)
    assert lines > 10
    made = served(name)
    broken, company = ask(name, "broken"), request(PROMPT, PARAMS, id="company")
    with no_memory_at(int(point * lines)) as seen:
        run(made, broken, company)
    assert seen[0] > int(point * lines)
    assert list(broken.output) == list(company.output) == plain()
    again = [ask(name, str(i)) for i in range(SLOTS + 1)]  # more than the source has places for
    run(made, *again)
    assert [list(r.output) for r in again] == [plain()] * len(again)
    assert [r.stats.draft_error for r in again] == [None] * len(again)
