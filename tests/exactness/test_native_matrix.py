"""Every draft source with every verifier and sampling option, on a Llama in each precision of the native library, and
on a hybrid with its draft head.

``test_matrix`` has the same on a model that is a table, with distributions. This has tokens and log-probabilities, to
the bit, in the precisions that users run: rows have to come out the same in any company, and keys and values in floats
or 8 bits have to be rolled back. Each test serves all verifiers and options side by side. The fast suite has a source
for each precision, the slow one the full product. Drafts from a grammar need one, and are tested in ``test_matrix``.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from torch import nn

from outrider.cache import CacheSpec, KVCache
from outrider.config import SOURCES as RECORDS
from outrider.config import SamplingParams
from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.trained.mtp_head import MtpHead, mtp_head
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.native.library import library
from tests import small_models
from tests.hybrid.reference import draft_head, random_weights, tiny_config
from tests.small_engines import engine, request, run
from tests.tokenizer.letters import alphabet, letters
from tests.torch_drafters.heads import random_head

from .toy import BY_NAME, EXACT, LOSSY

pytestmark = pytest.mark.skipif(library() is None, reason="no native library here")

PRECISIONS: dict[str, tuple[Any, Any]] = {
    f"{dtype}{', 8-bit cache' * (kv == 'int8')}": (dtype, kv)
    for dtype, kv in itertools.product(("q4_1", "q8_0", "bfloat16"), ("auto", "int8"))
}
HYBRID = "hybrid, "
"""Begins the names of a hybrid's precisions."""
NO_HYBRID = ("layer_skip", "layer_skip, tree", "model, tree", "model, dynamic tree")
"""Sources that recurrent layers do not allow."""
OTHER_TARGETS = ("grammar", "assistant")
"""Sources that need a structured output, or a target of their family: they have tests with one."""
SOURCES: dict[str, dict[str, Any]] = {
    name: {"draft": name}
    for name, record in RECORDS.items()
    if record.builder is not None and name not in OTHER_TARGETS
} | {
    "model, tree": {"draft": "model", "tree": "3,2,1"},
    "model, dynamic tree": {"draft": "model", "tree": "dynamic"},
    "layer_skip, tree": {"draft": "layer_skip", "tree": "2,2,1"},
    "mtp, tree": {"draft": "mtp", "tree": "3,2,1"},
    "suffix, mtp": {"draft": "suffix,mtp"},
    "medusa, tree": {"draft": "medusa", "tree": "3,2"},
    "cascade": {"draft": "ngram,model"},
    "best": {"draft": "lookup/ngram"},
    "merged": {"draft": "suffix+recycling+model", "tree_nodes": 9},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "top-k": {"top_k": 5},
    "top-p": {"top_p": 0.8},
    "min-p": {"min_p": 0.05},
    "penalties": {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.3},
    "bias, banned": {"logit_bias": {7: 2.0}, "banned_token_ids": [9]},
    "minimum": {"min_tokens": 6, "stop_token_ids": [3, 5, 8]},
    "all": {"top_k": 20, "top_p": 0.9, "min_p": 0.02, "repetition_penalty": 1.1, "frequency_penalty": 0.2},
}
LENGTHS: tuple[Any, ...] = (1, 2, 5, 8, "auto")
SLOTS, ROOM, TOKENS = 8, 128, 14
PROMPT = [*small_models.ids(15), *small_models.ids(15)]
CONFIG = small_models.config(tie_embeddings=False, max_seq_len=ROOM, mtp_layers=1)
WEIGHTS = small_models.tensors(replace(CONFIG, mtp_layers=0)) | small_models.draft_head(CONFIG)
WEIGHTS["lm_head.weight"] *= 3  # as sure of itself as a trained model is
RECURRENT = tiny_config(vocab_size=CONFIG.vocab_size, max_seq_len=ROOM, mtp_layers=1)


def recurrent_weights(seed: int) -> dict[str, Any]:
    """A hybrid, with a draft head."""
    found = random_weights(RECURRENT, seed) | draft_head(RECURRENT, seed + 5)
    return found | {"lm_head.weight": 3 * found["lm_head.weight"]}


Result = tuple[list[int], list[Any]]
"""Tokens, and the log-probabilities at each."""


@cache
def target(precision: str) -> LoadedModel:
    dtype, kv = PRECISIONS[precision.removeprefix(HYBRID)]
    if precision.startswith(HYBRID):
        return make_model(RECURRENT, recurrent_weights(0), dtype=dtype, kv_cache_dtype=kv)
    return make_model(CONFIG, WEIGHTS, dtype=dtype, kv_cache_dtype=kv)


@cache
def near(share: float, hybrid: bool) -> LoadedModel:
    """The target's weights with some noise: it agrees often enough, and not always."""
    if hybrid:
        own, noise = recurrent_weights(0), recurrent_weights(9)
        return make_model(RECURRENT, {name: (1 - share) * w + share * noise[name] for name, w in own.items()})
    other = small_models.tensors(replace(CONFIG, mtp_layers=0), seed=9) | small_models.draft_head(CONFIG, seed=9)
    return make_model(CONFIG, {name: (1 - share) * w + share * other[name] for name, w in WEIGHTS.items()})


@cache
def head(name: str) -> nn.Module:
    return random_head(RECORDS[name].head_kinds[-1])


def own_head(model: LoadedModel) -> MtpHead:
    """The head that the target brings, which scores a third of the vocabulary and the tokens of the texts."""
    found = mtp_head(model)
    assert found is not None
    return replace(found, lowest=16)


def serving(precision: str) -> Engine:
    model, hybrid = target(precision), precision.startswith(HYBRID)
    tokens = letters(alphabet(CONFIG.vocab_size))

    def more(kv_cache: KVCache) -> dict[str, Drafter]:
        context = DrafterContext(
            vocab_size=CONFIG.vocab_size,
            cache=CacheSpec(slots=SLOTS, max_seq_len=ROOM),
            draft_models=(near(0.08, hybrid), near(0.15, hybrid)),
            heads={name: head(name) for name, record in RECORDS.items() if record.head_kinds}
            | {"mtp": own_head(model)},
            target=model,
            target_cache=kv_cache,
            tokenizer=tokens,
            draft_tokenizers=(tokens,) * 2,
        )
        return {
            name: DrafterRegistry(context)[name]
            for name, record in RECORDS.items()
            if record.builder is not None and name != "assistant" and not (hybrid and name in NO_HYBRID)
        }

    return engine(model, slots=SLOTS, more=more, max_batched_tokens=64)


def params(option: str, sampled: bool) -> SamplingParams:
    chance: dict[str, Any] = {"temperature": 0.9, "seed": 6} if sampled else {}
    return SamplingParams(**{"max_tokens": TOKENS, "logprobs": 2} | chance | OPTIONS[option])


@cache
def plain(precision: str, option: str, sampled: bool) -> Result:
    """Without drafts, and alone."""
    options = params(option, sampled)
    r = request(PROMPT, options)
    outputs = run(engine(target(precision)), r)["r"]
    return list(r.output), [o.logprobs for o in outputs]


def differences(precision: str, source: str, cells: list[tuple[str, str, bool, Any]]) -> list[str]:
    """Serves all cells (verifier, option, sampled, length of draft) side by side, and names those that differ."""
    asked: dict[str, tuple[Request, Result]] = {}
    prediction = {"prediction": tuple(PROMPT)} if source == "prediction" else {}
    for verifier, option, sampled, length in cells:
        speculation = {"verifier": verifier, "spec_length": length} | prediction | SOURCES[source]
        name = f"{verifier}, {option}, {'sampled' if sampled else 'greedy'}, {length}"
        r = request(PROMPT, params(option, sampled), id=name, **speculation)
        asked[name] = r, plain(precision, option, sampled)
    outputs = run(serving(precision), *(r for r, _ in asked.values()))
    errors = {str(r.error or r.stats.draft_error or "") for r, _ in asked.values()}
    assert {e for e in errors if "TimeoutError" not in e} <= {""}  # a busy machine is nobody's fault
    assert sum(r.stats.num_draft_tokens for r, _ in asked.values()) > 0
    return [
        name for name, (r, wanted) in asked.items() if (list(r.output), [o.logprobs for o in outputs[name]]) != wanted
    ]


def cells_of(source: str) -> list[tuple[str, str, bool, Any]]:
    """Greedy output with every exact verifier, and sampled output with those that keep the tokens."""
    branches = "tree" in SOURCES[source] or RECORDS.get(source, RECORDS["none"]).shape.branches or source == "merged"
    fitting = [v for v in EXACT if BY_NAME[v].takes_trees or not branches]
    greedy = [(v, o, False, LENGTHS[(i + j) % 5]) for i, v in enumerate(fitting) for j, o in enumerate(OPTIONS)]
    coupled = [v for v in fitting if BY_NAME[v].shares_noise]
    return greedy + [(v, o, True, k) for v, o, k in itertools.product(coupled, OPTIONS, LENGTHS)]


CELLS = list(itertools.product(PRECISIONS, SOURCES))
CELLS += [(HYBRID + precision, source) for precision, source in CELLS if source not in NO_HYBRID]
FAST = list(zip(PRECISIONS, ("layer_skip", "model, tree", "suffix", "eagle", "recycling", "lookahead"), strict=True))
FAST += [(f"{HYBRID}q8_0", "suffix, mtp"), (f"{HYBRID}bfloat16, 8-bit cache", "pass")]


@pytest.mark.parametrize(("precision", "source"), FAST)
def test_tokens_are_those_of_plain_decoding(precision: str, source: str) -> None:
    """A third of the cells, in which every verifier, option and length comes up."""
    assert differences(precision, source, cells_of(source)[::3]) == []


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "source"), CELLS)
def test_tokens_are_those_of_plain_decoding_in_every_cell(precision: str, source: str) -> None:
    assert differences(precision, source, cells_of(source)) == []


@pytest.mark.parametrize(
    "precision",
    [
        p if p in ("q4_1", f"{HYBRID}q4_1") else pytest.param(p, marks=pytest.mark.slow)
        for p in (*PRECISIONS, *(HYBRID + precision for precision in PRECISIONS))
    ],
)
def test_a_sampler_that_is_wrong_is_caught(precision: str) -> None:
    """A control: what keeps neither tokens nor distribution is found, wherever the tokens come from."""
    assert LOSSY
    for verifier in LOSSY:
        assert differences(precision, "model", [(verifier, option, True, 5) for option in OPTIONS])
