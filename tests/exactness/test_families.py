"""Drafts change no output in any family: tokens and log-probabilities, to the bit, on the native library and on torch.

``test_native_matrix`` has every source and option on a Llama. Here every family has a few sources, among them its own
first layers, a model with nearly its weights, and a trained head that reads its features.
"""

from __future__ import annotations

import itertools
from functools import cache
from typing import Any

import pytest
import torch

from outrider.cache import CacheSpec, KVCache
from outrider.config import SamplingParams
from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint
from outrider.drafters.registry import DrafterRegistry
from outrider.models.base import LoadedModel
from outrider.models.factory import make_model
from outrider.native.library import library
from outrider_torch.heads import make_head
from outrider_torch.models.llama import LlamaModel
from tests import small_models
from tests.families import MEMBERS, VOCAB, config_of
from tests.small_engines import engine, request, run

SLOTS, ROOM, TOKENS = 4, 128, 12
PROMPT = [*small_models.ids(22, VOCAB), *small_models.ids(22, VOCAB)]  # longer than the windows
BACKENDS = ("native", "torch") if library() is not None else ("torch",)
SOURCES: dict[str, dict[str, Any]] = {
    "layer_skip": {"draft": "layer_skip"},
    "layer_skip, tree": {"draft": "layer_skip", "tree": "2,2,1"},
    "model": {"draft": "model"},
    "model, tree": {"draft": "model", "tree": "3,2,1"},
    "eagle": {"draft": "eagle"},
    "lookup": {"draft": "lookup"},
    "cascade": {"draft": "ngram,model"},
}
ASKED: tuple[tuple[str, dict[str, Any]], ...] = (
    ("matching", {}),
    ("matching", {"temperature": 0.9, "seed": 6, "top_p": 0.9}),
    ("matching", {"repetition_penalty": 1.3}),
)


@cache
def target(member: str, backend: str, share: float = 0.0) -> LoadedModel:
    """``share``: of other weights, for a draft model that agrees often and not always."""
    config = config_of(member)
    other = small_models.tensors(config, seed=9)
    weights = {name: (1 - share) * w + share * other[name] for name, w in small_models.tensors(config).items()}
    if backend == "torch":
        return LlamaModel(config, weights, dtype=torch.float32)
    return make_model(config, weights, dtype="q8_0")


@cache
def head(member: str, backend: str) -> Any:
    model = target(member, backend)
    fingerprint = TargetFingerprint.of(model.config, model.embed(torch.arange(VOCAB)))
    dims: dict[str, Any] = {
        "num_heads": 2,
        "num_kv_heads": 1,
        "head_dim": 8,
        "intermediate_size": 24,
        "max_seq_len": ROOM,
    }
    torch.manual_seed(7)
    config = HeadConfig(kind="eagle", target=fingerprint, hidden_size=64, vocab_size=VOCAB, **dims)
    return make_head(config).requires_grad_(False)


def differences(member: str, backend: str, source: str) -> list[str]:
    model = target(member, backend)

    def more(kv_cache: KVCache) -> dict[str, Drafter]:
        context = DrafterContext(
            vocab_size=VOCAB,
            cache=CacheSpec(slots=SLOTS, max_seq_len=ROOM),
            draft_models=(target(member, backend, 0.1),),
            heads={"eagle": head(member, backend)},
            target=model,
            target_cache=kv_cache,
        )
        return {name: DrafterRegistry(context)[name] for name in ("layer_skip", "model", "eagle")}

    speculation = {"spec_length": 4} | SOURCES[source]
    asked, wanted = [], {}
    for i, (verifier, options) in enumerate(ASKED):
        params = SamplingParams(max_tokens=TOKENS, logprobs=2, **options)
        plain = request(PROMPT, params)
        outputs = run(engine(model), plain)["r"]
        wanted[f"{i}"] = list(plain.output), [o.logprobs for o in outputs]
        asked.append(request(PROMPT, params, id=f"{i}", verifier=verifier, **speculation))
    outputs_of = run(engine(model, slots=SLOTS, more=more, max_batched_tokens=64), *asked)
    assert {str(r.error or r.stats.draft_error or "") for r in asked} <= {""}
    assert sum(r.stats.num_draft_tokens for r in asked) > 0 or source == "lookup"
    return [r.id for r in asked if (list(r.output), [o.logprobs for o in outputs_of[r.id]]) != wanted[r.id]]


EVERY = list(itertools.product(MEMBERS, BACKENDS, SOURCES))
FAST = {(member, "native", list(SOURCES)[i % len(SOURCES)]) for i, member in enumerate(MEMBERS)}
FAST |= {("gemma2", "torch", "layer_skip, tree"), ("mixtral", "torch", "model, tree"), ("mixtral", "native", "eagle")}


@pytest.mark.parametrize(
    ("member", "backend", "source"),
    [cell if cell in FAST else pytest.param(*cell, marks=pytest.mark.slow) for cell in EVERY],
)
def test_tokens_are_those_of_plain_decoding(member: str, backend: str, source: str) -> None:
    assert differences(member, backend, source) == []
