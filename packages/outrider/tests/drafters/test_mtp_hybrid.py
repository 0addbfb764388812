"""Models with recurrent states and a draft head: any traffic gives each request the tokens of plain decoding."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from outrider.cache import CacheSpec, KVCache
from outrider.config import SamplingParams
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.engine import read_plan
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.models.config import Experts
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.library import library
from outrider.verify.draft import Draft
from tests import small_models
from tests.hybrid.reference import random_weights, tiny_config
from tests.small_engines import Scripted, engine, request, run

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

VOCABULARY, ROOM = 70, 96
KINDS: dict[str, dict[str, Any]] = {
    "dense": {},
    "experts": {"experts": Experts(count=4, used=2, size=32, normalised=True, shared_size=32)},
}
DRAFTS: tuple[dict[str, Any], ...] = (
    {"draft": "mtp"},
    {"draft": "suffix,mtp"},
    {"draft": "knowing+mtp"},
    {"draft": "knowing/mtp"},
    {"draft": "mtp", "tree": (2, 2, 1)},
    {"draft": "knowing+mtp", "tree": "dynamic", "tree_nodes": 7},
)


@cache
def target(kind: str) -> NativeLlamaModel:
    config = tiny_config(**KINDS[kind])
    weights: dict[str, Any] = {**random_weights(config), **small_models.draft_head(config)}
    return NativeLlamaModel(replace(config, mtp_layers=1), weights, target="float32")


def plain(kind: str, prompt: list[int], params: SamplingParams) -> list[int]:
    """The tokens of a request alone, without drafts or a prefix."""
    alone = request(prompt, params)
    run(engine(target(kind), max_seq_len=ROOM, prefix_reuse=False), alone)
    return list(alone.output)


def serving(model_kind: str, right: dict[str, list[int]], lowest: int, budget: int, **options: Any) -> Engine:
    """``right``: by request, its whole text; the source ``knowing`` says some of it, and something wrong behind."""
    model, spec = target(model_kind), CacheSpec(max_seq_len=ROOM, **options)
    head = mtp_head(model)
    assert head is not None

    def knowing(view: RequestView, nodes: int) -> Draft:
        n, rng = len(view.tokens), random.Random(f"{view.id} {len(view.tokens)}")
        said = [*right[view.id][n : n + rng.randint(0, 4)], rng.randrange(VOCABULARY)]
        return Draft.chain(said[:nodes])

    def more(cache: KVCache) -> dict[str, Drafter]:
        context = DrafterContext(
            vocab_size=VOCABULARY, cache=spec, heads={"mtp": replace(head, lowest=lowest)}, target=model,
            target_cache=cache,
        )  # fmt: skip
        own = {"mtp": DrafterRegistry(context)["mtp"], "suffix": SuffixDrafter(VOCABULARY)}
        return own | {"knowing": Scripted(knowing)}

    return engine(model, more=more, max_seq_len=ROOM, max_batched_tokens=budget, **options)


def asked(rng: random.Random, name: str, kind: str, earlier: list[Request]) -> tuple[Request, list[int]]:
    """A random request, and its tokens without drafts; some go on from an earlier one's text."""
    options: dict[str, Any] = {"max_tokens": rng.randint(1, 14), "seed": rng.randrange(100)}
    options |= rng.choice(({}, {}, {"temperature": 0.9}, {"temperature": 0.8, "top_k": 5}))
    prompt = [rng.randrange(VOCABULARY) for _ in range(rng.choice((1, 2, 9, 30)))]
    if earlier and rng.random() < 0.5:
        text = list(rng.choice(earlier).tokens)
        prompt = [*text[: rng.randint(1, len(text))], *prompt[:4]][:60]
    params = SamplingParams(**options)
    made = request(prompt, params, id=name, **rng.choice(DRAFTS), spec_length=rng.choice((1, 3, 6, "auto")))
    made.cache_salt = rng.choice(("", "", "tenant"))
    return made, plain(kind, prompt, params)


def serve_traffic(kind: str, paged: bool, seed: int) -> list[Request]:
    """Twelve random requests in three waves, each with the tokens of plain decoding."""
    rng, right, done = random.Random(f"{kind} {paged} {seed}"), dict[str, list[int]](), list[Request]()
    options: dict[str, Any] = {"slots": rng.randint(1, 4)}
    if paged:
        options |= {"kind": "paged", "block_size": rng.choice((4, 8))}
    served = serving(kind, right, rng.choice((16, 32, VOCABULARY)), rng.randint(12, 60), **options)
    for wave in range(3):
        pairs = [asked(rng, f"{wave}.{i}", kind, done) for i in range(4)]
        for made, tokens in pairs:
            right[made.id] = [*made.prompt, *tokens]
        run(served, *(made for made, _ in pairs))
        assert [list(made.output) for made, _ in pairs] == [tokens for _, tokens in pairs]
        assert [made.stats.draft_error for made, _ in pairs] == [None] * 4
        done += [made for made, _ in pairs]
    return done


@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
@pytest.mark.parametrize("kind", KINDS)
def test_any_traffic_gives_each_request_its_own_tokens(kind: str, paged: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_plan, "INTERVAL", 12)
    monkeypatch.setattr(read_plan, "SPACING", 3)
    monkeypatch.setattr(read_plan, "TAIL", 3)
    done = [made for seed in range(6) for made in serve_traffic(kind, paged, seed)]
    assert sum(made.stats.num_draft_tokens for made in done) > 200
    assert len({count for made in done for _, count in made.stats.rounds}) > 3
