"""What is tried with every model that runs through transformers' code: parity, drafts, and rows in any company."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from outrider.cache import CacheSpec
from outrider.config import SamplingParams
from outrider.verify.tree import path_to
from outrider_transformers import BridgedModel
from tests import small_models
from tests.bridge_members import VOCAB, bridge, build, like
from tests.small_engines import engine, generate, request, run

TEXT = [1 + token % (VOCAB - 1) for token in [*small_models.ids(26, VOCAB), *small_models.ids(26, VOCAB)]]
"""Longer than the windows, without token 0, which is padding at times."""
NEW = 8
ROOM = 80
SOURCES: dict[str, dict[str, Any]] = {
    "ngram": {"draft": "ngram"},
    "model, tree": {"draft": "model", "tree": "3,2,1"},
}
ASKED: tuple[dict[str, Any], ...] = ({}, {"temperature": 0.9, "seed": 6, "top_p": 0.9})


@dataclass(frozen=True)
class Findings:
    """Of one model."""

    way: str
    apart: float  # largest difference of a logit from transformers', as a part of the largest logit
    like_generate: bool  # the tokens that ``generate`` gives
    exact: bool  # the same tokens and log-probabilities with drafts
    accepted: int  # draft tokens, in all of the above
    invariant: bool  # the same bits in any company


def examine(name: str) -> Findings:
    """Raises what ``bridged`` raises."""
    module = build(name)
    model = bridge(module)
    exact, accepted = with_drafts(model, like(model, build(name, share=0.1)))
    return Findings(
        way=model.way,
        apart=apart(model),
        like_generate=like_generate(model),
        exact=exact,
        accepted=accepted,
        invariant=invariant(model),
    )


@torch.inference_mode()
def apart(model: BridgedModel) -> float:
    """From transformers' own forward pass over the text."""
    cache = model.new_cache(CacheSpec(max_seq_len=ROOM))
    ours, theirs = (
        small_models.feed(model, cache, (cache.allocate(), TEXT))[0],
        model.network.whole(TEXT).float().numpy(),
    )
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@torch.inference_mode()
def like_generate(model: BridgedModel) -> bool:
    """Greedy tokens, and the same ones by transformers' loop with its own caches."""
    with model.network.attention("eager"):
        options: dict[str, Any] = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        ids = torch.tensor([TEXT])
        theirs = model.network.module.generate(ids, attention_mask=torch.ones_like(ids), **options)  # type: ignore[operator]
    ours = generate(engine(model, max_seq_len=ROOM), TEXT, SamplingParams(max_tokens=NEW))
    return bool(ours == theirs[0, len(TEXT) :].tolist())


def with_drafts(model: BridgedModel, draft: BridgedModel) -> tuple[bool, int]:
    """Whether requests in one batch, with drafts, have the tokens and log-probabilities of plain decoding."""
    wanted, asked = {}, []
    for i, options in enumerate(ASKED):
        params = SamplingParams(max_tokens=NEW, logprobs=2, **options)
        plain = request(TEXT, params)
        outputs = run(engine(model, max_seq_len=ROOM), plain)["r"]
        for source, speculation in SOURCES.items():
            asked.append(request(TEXT, params, id=f"{i} {source}", **{"spec_length": 4, **speculation}))
            wanted[asked[-1].id] = list(plain.output), [o.logprobs for o in outputs]
    outputs_of = run(engine(model, draft=draft, slots=3, max_seq_len=ROOM, max_batched_tokens=64), *asked)
    errors = {str(r.error or r.stats.draft_error or "") for r in asked} - {""}
    assert not errors, errors
    same = all((list(r.output), [o.logprobs for o in outputs_of[r.id]]) == wanted[r.id] for r in asked)
    return same, sum(r.stats.num_accepted_draft_tokens for r in asked)


def invariant(model: BridgedModel) -> bool:
    """Whether rows have the same bits alone, in pieces of any size beside others, and on a path of a tree."""
    rng, tokens = random.Random(3), TEXT[:36]
    cache = model.new_cache(CacheSpec(slots=3, max_seq_len=ROOM))
    slot = cache.allocate()
    wanted = np.concatenate([small_models.feed(model, cache, (slot, [token]))[0] for token in tokens])
    cache.free(slot)
    slots, held, found = [cache.allocate() for _ in range(3)], [0] * 3, True
    while min(held) < len(tokens):
        order = [i for i in rng.sample(range(3), 3) if held[i] < len(tokens)]
        ends = {i: min(len(tokens), held[i] + rng.choice((1, 2, 5, 17))) for i in order}
        logits = small_models.feed(model, cache, *((slots[i], tokens[held[i] : ends[i]]) for i in order))
        for i, rows in zip(order, logits, strict=True):
            found &= small_models.identical(rows, wanted[held[i] : ends[i]])
            held[i] = ends[i]
    return found and _tree(model, rng)


def _tree(model: BridgedModel, rng: random.Random) -> bool:
    """A path before and after its siblings are dropped, as in ``test_family_invariance``."""
    cache = model.new_cache(CacheSpec(max_seq_len=ROOM))
    slot = cache.allocate()
    small_models.feed(model, cache, (slot, TEXT[:18]))
    parents = [rng.randint(max(-1, i - 4), i - 1) for i in range(9)]
    path, tokens = path_to(parents, 8), [1 + rng.randrange(VOCAB - 1) for _ in parents]
    chain = small_models.feed(model, cache, (slot, [tokens[i] for i in path]))[0]
    after = small_models.feed(model, cache, (slot, TEXT[:3]))[0]
    cache.truncate_to(slot, 18)
    tree = small_models.feed(model, cache, (slot, tokens), parents=parents)[0]
    cache.keep_path(slot, 18, path)
    same = small_models.identical(tree[path], chain) and small_models.identical(
        small_models.feed(model, cache, (slot, TEXT[:3]))[0], after
    )
    cache.check()
    return same
