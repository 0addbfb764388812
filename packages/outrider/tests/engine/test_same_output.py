"""On a real architecture, too: the output is that of plain decoding, alone or in company."""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest

from outrider.config import SamplingParams
from outrider.engine.request import Request
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from tests import small_models
from tests.pairwise import pairwise, slow_unless
from tests.small_engines import engine, request, run

PROMPT = [*small_models.ids(30), *small_models.ids(30)]
OPTIONS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 0.9, "seed": 6},
    "everything": {
        "temperature": 1.0,
        "seed": 5,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.02,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.2,
        "logit_bias": {7: 2.0},
        "min_tokens": 10,
        "banned_token_ids": [9],
    },
}


CONFIG = small_models.config(tie_embeddings=False, max_seq_len=1100)
WEIGHTS = small_models.tensors(CONFIG)
WEIGHTS["lm_head.weight"] *= 3  # as sure of itself as a trained model is


@cache
def target(kind: str = "bf16") -> LoadedModel:
    return make_model(CONFIG, WEIGHTS, dtype=small_models.DTYPES[kind])


@cache
def draft() -> LoadedModel:
    """The target's weights with some noise: it agrees often enough, and not always."""
    other = small_models.tensors(CONFIG, seed=9)
    return make_model(CONFIG, {name: 0.92 * w + 0.08 * other[name] for name, w in WEIGHTS.items()})


def params(options: str, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"max_tokens": 24, "logprobs": 4} | OPTIONS[options] | changes)


def ask(options: str, prompt: list[int] | None = None, id: str = "r", **speculation: Any) -> Request:
    return request(prompt or PROMPT, params(options), id=id, stop_ids=[11], **speculation)


@cache
def plain(kind: str, options: str) -> tuple[list[int], list[Any]]:
    """Tokens and log-probabilities without drafts."""
    r = ask(options)
    outputs = run(engine(target(kind), eos=[11]), r)["r"]
    return list(r.output), [o.logprobs for o in outputs]


FACTORS = (tuple(small_models.DTYPES), tuple(OPTIONS), ("ngram", "lookup", "model"), (1, 2, 5, 8, "auto"))


@pytest.mark.parametrize(
    ("kind", "options", "source", "spec_length"), slow_unless(itertools.product(*FACTORS), pairwise(*FACTORS))
)
def test_tokens_and_logprobs_are_those_of_plain_decoding(
    kind: str, options: str, source: str, spec_length: int | str
) -> None:
    r = ask(options, draft=source, spec_length=spec_length)
    outputs = run(engine(target(kind), draft=draft(), eos=[11]), r)["r"]
    tokens, logprobs = plain(kind, options)
    assert list(r.output) == tokens
    assert [o.logprobs for o in outputs] == logprobs  # bit for bit
    assert all(o.logprobs and o.token_id in o.logprobs for o in outputs)
    assert r.stats.draft_error is None
    if source == "model" and spec_length != "auto":
        assert r.stats.num_accepted_draft_tokens > 0


def test_the_draft_is_neither_perfect_nor_useless() -> None:
    """Or the comparisons above would not exercise roll-back."""
    r = ask("greedy", draft="model", spec_length=5)
    run(engine(target(), draft=draft(), eos=[11]), r)
    assert 0 < r.stats.num_accepted_draft_tokens < r.stats.num_draft_tokens


@pytest.mark.parametrize("slots", [2, 4])
def test_in_company_as_alone(slots: int) -> None:
    """Ten requests of all kinds on a few slots, prompts from one token to a thousand."""
    sources = ["none", "ngram", "lookup", "model"]
    lengths = [1, 60, 7, 1040, 512, 20, 513, 3, 60, 600]

    def requests() -> list[Request]:
        return [
            ask(list(OPTIONS)[i % 3], small_models.ids(n, seed=i), str(i), draft=sources[i % 4], spec_length=1 + i % 6)
            for i, n in enumerate(lengths)
        ]

    alone = engine(target(), draft=draft(), eos=[11])
    expected = requests()
    wanted = {r.id: run(alone, r)[r.id] for r in expected}
    together = engine(target(), draft=draft(), eos=[11], slots=slots)
    found = requests()
    outputs = run(together, *found)
    for r, theirs in zip(found, expected, strict=True):
        assert list(r.output) == list(theirs.output)
        assert [o.logprobs for o in outputs[r.id]] == [o.logprobs for o in wanted[r.id]]
        assert r.finish_reason == theirs.finish_reason
        assert r.stats.draft_error is None
    assert together.cache.free_tokens() == slots * together.max_seq_len
