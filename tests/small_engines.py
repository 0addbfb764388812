"""Engines on small models, run to the end with every invariant checked after every step."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from outrider.cache import CacheSpec, KVCache
from outrider.config import SamplingParams, SpeculationParams
from outrider.drafters.api import Drafter, Outcome, RequestView, SingleRequestDrafter
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.model.model import ModelDrafter
from outrider.drafters.text.grammar import GrammarDrafter
from outrider.drafters.text.lookup import LookupDrafter
from outrider.drafters.text.ngram import NgramDrafter
from outrider.engine.engine import Engine
from outrider.engine.request import Request, StepOutput
from outrider.models.base import Model
from outrider.verify.draft import Draft
from outrider_drafters.hierarchical import HierarchicalDrafter
from outrider_drafters.layer_skip import LayerSkipDrafter
from outrider_drafters.lookahead import LookaheadDrafter
from outrider_drafters.models import ModelsDrafter

MOST_STEPS = 5000  # of what tests generate, many times more than it takes


class Scripted(SingleRequestDrafter):
    """A draft source that says what a function says."""

    def __init__(self, script: Callable[[RequestView, int], Draft]) -> None:
        self._script = script
        self.running: set[str] = set()
        self.outcomes: list[Outcome] = []

    def start(self, request: RequestView) -> None:
        self.running.add(request.id)

    def draft(self, request: RequestView, budget: int) -> Draft:
        return self._script(request, budget)

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        self.outcomes += outcomes

    def finish(self, request_id: str) -> None:
        self.running.remove(request_id)


class Letters:
    """Shows token 0 as a, token 1 as b, ..."""

    def push(self, ids: Sequence[int]) -> str:
        return "".join(chr(97 + i) for i in ids)

    def flush(self) -> str:
        return ""


def engine(
    model: Model,
    *,
    draft: Model | None = None,
    slots: int = 1,
    eos: Sequence[int] = (),
    vocab_size: int | None = None,
    more: Mapping[str, Drafter] | Callable[[KVCache], Mapping[str, Drafter]] | None = None,
    max_batched_tokens: int = 512,
    **cache: Any,
) -> Engine:
    """With every draft source, ``draft`` or the target as draft model, and ``more``; ``cache`` as CacheSpec.

    ``more``: drafters, or what makes them from the target's cache.
    """
    vocab = model.config.vocab_size if vocab_size is None else vocab_size
    small = draft or model
    spec = CacheSpec(slots=slots, **({"max_seq_len": model.config.max_seq_len} | cache))
    first, second = (DraftModel(m, vocab_size=vocab, cache=spec) for m in (small, model))
    kv_cache = model.new_cache(spec)
    drafters: dict[str, Drafter] = {
        "ngram": NgramDrafter(vocab),
        "lookup": LookupDrafter(),
        "model": ModelDrafter(first),
        "models": ModelsDrafter([ModelDrafter(first), ModelDrafter(second)]),
        "hierarchical": HierarchicalDrafter(first, NgramDrafter(vocab)),
        "layer_skip": LayerSkipDrafter(model, kv_cache, layers=1, vocab_size=vocab),
        "lookahead": LookaheadDrafter(),
        "grammar": GrammarDrafter(),
    }
    return Engine(
        model,
        drafters=drafters | dict((more(kv_cache) if callable(more) else more) or {}),
        eos_token_ids=eos,
        vocab_size=vocab,
        cache=spec,
        kv_cache=kv_cache,
        max_batched_tokens=max_batched_tokens,
    )


def request(
    prompt: Sequence[int],
    params: SamplingParams | None = None,
    *,
    id: str = "r",
    stop_ids: Sequence[int] = (),
    letters: bool = False,
    **speculation: Any,
) -> Request:
    """A request that ends at ``stop_ids`` and its own."""
    options = params or SamplingParams(max_tokens=12)
    chosen: dict[str, Any] = {"draft": "none", "spec_length": 5} | speculation
    stops = frozenset(stop_ids) | frozenset(options.stop_token_ids)
    return Request(id, tuple(prompt), options, SpeculationParams(**chosen), stops, Letters() if letters else None)


def run(engine: Engine, *requests: Request) -> dict[str, list[StepOutput]]:
    """Serve the requests to their end: each one's tokens in order."""
    for r in requests:
        engine.add(r)
    outputs: dict[str, list[StepOutput]] = {r.id: [] for r in requests}
    steps = 0
    while engine.busy:
        for output in engine.step():
            outputs[output.request_id].append(output)
        engine.cache.check()
        steps += 1
        assert steps < MOST_STEPS, "it never ends"
    for r in requests:
        assert [output.token_id for output in outputs[r.id]] == list(r.output)
        assert "".join(output.text for output in outputs[r.id]) == r.text
        assert r.slot is None
        assert (r.finish_reason is None) == (r.error is not None)
    return outputs


def generate(engine: Engine, prompt: Sequence[int], params: SamplingParams | None = None, **options: Any) -> list[int]:
    """One request's output."""
    r = request(prompt, params, **options)
    run(engine, r)
    return list(r.output)
