"""Random requests for models with recurrent states: is every output that of plain decoding, alone?

    python -m tests.hybrid_traffic --count 1000 --dtype float32 --dtype q8_0 --dtype q4_1 --kind mamba2

A tiny native hybrid with a draft head serves requests with random options, draft sources, trees, company, chunks,
caches, preemption and prefixes found again. Each output is compared with plain decoding of the same request by itself.
Prints one JSON line; the exit code is 1 if a token differs. ``--broken`` rolls states back one row too few, to show
that this is noticed.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from outrider.cache import CacheSpec, KVCache
from outrider.cache.states import RecurrentStates
from outrider.config import DTypeName, SamplingParams
from outrider.config.engine import Implementation
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.drafters.trained import mtp
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.engine import read_plan
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.engine.runner import ScheduledRequest
from outrider.models.base import Model
from outrider.models.batch import ForwardBatch, Span
from outrider.models.config import Recurrence
from outrider.models.factory import make_model
from outrider.verify.arrays import host
from outrider.verify.draft import Draft
from tests.hybrid.reference import draft_head, random_weights, tiny_config
from tests.small_engines import Scripted, engine, request, run

RECURRENCES: dict[Recurrence, dict[str, Any]] = {
    "delta": {},
    "short": {"kind": "short", "key_heads": 1, "value_heads": 1, "key_dim": 0, "value_dim": 48},
    "mamba2": {"kind": "mamba2", "key_heads": 1, "convolution_bias": True},
}
"""Changes of the tiny hybrid's recurrent layers."""
MOST_STEPS = 3000
MOST_AT_ONCE = 16
NATIVE: tuple[dict[str, Any], ...] = (
    *({"draft": name} for name in ("none", "ngram", "lookup", "suffix", "model", "forked", "mtp", "suffix,mtp")),
    {"draft": "mtp", "tree": "2,2,1"},
    {"draft": "mtp", "tree": "dynamic"},
    *[{"draft": "forked"}, {"draft": "model"}] * 3,  # their drafts are often right
)
"""Settings of speculation for the native hybrid."""


@contextmanager
def short_texts() -> Iterator[None]:
    """Reading pauses often enough for texts of some tens of tokens."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in (("INTERVAL", 12), ("SPACING", 3), ("TAIL", 3)):
            patch.setattr(read_plan, name, value)
        yield


class _TooMany(int):
    """Rows kept, a refused one among them."""


@contextmanager
def rolled_back_one_row_too_few() -> Iterator[None]:
    """The first row of a chain of drafts is taken into the state, and nobody knows."""
    right, note = ScheduledRequest.kept, RecurrentStates.passed

    def kept(self: ScheduledRequest) -> int | None:
        rows = right.__get__(self)
        return _TooMany(rows + 1) if rows is not None and self.draft and self.draft.is_chain else rows

    def passed(self: RecurrentStates, spans: Sequence[Span]) -> None:
        note(self, [replace(s, kept=s.kept - 1) if isinstance(s.kept, _TooMany) else s for s in spans])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScheduledRequest, "kept", property(kept))
        patch.setattr(RecurrentStates, "passed", passed)
        yield


def logits_after(model: Model, tokens: Sequence[int]) -> Any:
    """float32 [len(tokens), vocab], read in one pass by a cache of its own."""
    spare = model.new_cache(CacheSpec(max_seq_len=len(tokens) + 1))
    slot, count = spare.allocate(), len(tokens)
    spare.extend(slot, count)
    return model.forward(ForwardBatch(tokens, range(count), (Span(slot, 0, count),), None), spare).logits


@dataclass
class Traffic:
    """Requests for one target."""

    target: Model
    draft: Model
    beginning: Sequence[int]  # of many prompts
    end: int  # ends messages and answers
    settings: Sequence[dict[str, Any]]  # of speculation
    more: Callable[[KVCache, CacheSpec], dict[str, Drafter]] = lambda cache, spec: {}
    longest: int = 70  # tokens of a prompt
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def vocab_size(self) -> int:
        return self.target.config.vocab_size

    def engine(self, **options: Any) -> Engine:
        sizes = {name: value for name, value in options.items() if name != "max_batched_tokens"}
        spec = CacheSpec(**{"slots": 1, "max_seq_len": self.target.config.max_seq_len} | sizes)

        def more(kv: KVCache) -> dict[str, Drafter]:
            return {"forked": Scripted(self.forked)} | self.more(kv, spec)

        return engine(self.target, draft=self.draft, more=more, eos=(self.end,), **options)

    def forked(self, view: RequestView, budget: int) -> Draft:
        """A random tree in which some paths are the target's own."""
        rng = random.Random(f"{view.id} {len(view.tokens)}")
        count = rng.randint(0, min(budget, 6))
        parents = [rng.randrange(-1, node) for node in range(count)]
        tokens: list[int] = []
        for node, parent in enumerate(parents):
            path: list[int] = []
            while parent >= 0:
                path.insert(0, tokens[parent])
                parent = parents[parent]
            logits = logits_after(self.target, [*view.tokens, *path])[-1]
            likely = int(np.argsort(host(logits))[-rng.choice((1, 1, 1, 2, 3))])
            taken = {tokens[i] for i in range(node) if parents[i] == parents[node]}
            tokens.append(next(t for t in (likely, *range(self.vocab_size)) if t not in taken))
        return Draft(tuple(tokens), tuple(parents), source="forked")

    def request(self, rng: random.Random, name: str, earlier: Sequence[Request] = ()) -> Request:
        """A random request; half of those with ``earlier`` ones go on from one of them, or from a part of it."""
        options: dict[str, Any] = {"max_tokens": rng.randint(1, 20), "seed": rng.randrange(1000)}
        options |= rng.choice(({}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 5}, {"prompt_logprobs": 2}))
        prompt = [rng.randrange(self.vocab_size) for _ in range(rng.choice((1, 2, 5, 17, 40)))]
        if rng.random() < 0.6:
            prompt = [*self.beginning, *prompt[:20]]
        if earlier and rng.random() < 0.5:
            text = rng.choice(earlier).tokens
            part = text[: rng.choice((len(text), len(text) - 1, rng.randint(1, len(text))))]
            prompt = [*part, *prompt[:3]][: self.longest]
        chosen = {"spec_length": rng.choice((1, 2, 3, 4, 5, 6, "auto"))} | rng.choice(self.settings)
        made = request(prompt, SamplingParams(**options), id=name, **chosen)
        made.cache_salt = rng.choice(("", "", "tenant"))
        made.priority = rng.choice((0, 0, 1))
        return made

    def alone(self, like: Request) -> Request:
        """The same request by itself, without drafts or a prefix."""
        plain = request(like.prompt, like.params, id=like.id)
        plain.noise = like.noise
        run(self.engine(prefix_reuse=False), plain)
        return plain

    def serve(self, seed: int, count: int, **options: Any) -> list[Request]:
        """Random requests that come at random times, some of which are aborted; all ended."""
        rng = random.Random(seed)
        served, requests = self.engine(**options), list[Request]()
        aborted = set(rng.sample([str(i) for i in range(count)], count // 6))
        for _ in range(MOST_STEPS):
            while len(requests) < count and rng.random() < 0.3:
                ended = [r for r in requests if r.finish_reason is not None]
                requests.append(self.request(rng, str(len(requests)), ended))
                served.add(requests[-1])
            if len(requests) == count and not served.busy:
                break
            served.step()
            for each in served.memory.caches():
                each.check()
            if aborted and rng.random() < 0.1:
                served.abort(rng.choice(sorted(aborted)))
        assert not served.busy, "it never ends"
        self.counts["preemptions"] += served._scheduler.preemptions
        return requests

    def differs(self, served: Request) -> str:
        """The difference between a served request and the same request alone, in words; empty if there is none."""
        plain, stats = self.alone(served), served.stats
        self.counts["drafted"] += stats.num_draft_tokens
        self.counts["accepted"] += stats.num_accepted_draft_tokens
        self.counts["found"] += stats.cached_prompt_tokens
        failed = stats.draft_error is not None and "TimeoutError" not in stats.draft_error  # of a busy machine
        if served.error is not None or failed:
            return f"{served.error} {stats.draft_error}"
        expected = list(plain.output)
        if served.finish_reason is None:  # it was aborted
            expected = expected[: len(served.output)]
        if list(served.output) != expected:
            return f"{list(served.output)} in place of {expected}"
        if served.finish_reason and list(served.prompt_report.logprobs) != list(plain.prompt_report.logprobs):
            return "other log-probabilities of the prompt"
        return ""


def random_options(rng: random.Random) -> dict[str, Any]:
    """Options of an engine."""
    return {
        "slots": rng.choice((1, 2, 4, 8, MOST_AT_ONCE)),
        "kind": rng.choice(("contiguous", "paged")),
        "tokens": rng.choice((128, 256, 800)),  # the smaller ones force preemption
        "block_size": rng.choice((1, 4, 16)),
        "prefix_reuse": rng.random() < 0.8,
        "max_batched_tokens": rng.randint(MOST_AT_ONCE, 90),
        "checkpoints": rng.choice((1, 3, 20)),
    }


@cache
def native(dtype: DTypeName, kind: Recurrence = "delta", implementation: Implementation = "native") -> Traffic:
    """Traffic for a hybrid with a draft head; another one, which is like it, drafts as a model."""
    config = tiny_config(mtp_layers=1, max_seq_len=128)
    assert config.recurrent is not None
    config = replace(config, recurrent=replace(config.recurrent, **RECURRENCES[kind]))
    weights = random_weights(config) | draft_head(tiny_config(), 3)
    weights["lm_head.weight"] *= 3  # as sure of itself as a trained model is
    target = make_model(config, weights, dtype=dtype, implementation=implementation)
    other, plain = random_weights(config, 9), replace(config, mtp_layers=0)
    near = {name: 0.99 * weights[name] + 0.01 * w for name, w in other.items()}
    draft = make_model(plain, near, implementation=implementation)

    def more(kv: KVCache, spec: CacheSpec) -> dict[str, Drafter]:
        context = DrafterContext(
            vocab_size=config.vocab_size,
            cache=spec,
            heads={"mtp": mtp_head(target)},
            target=target,
            target_cache=kv,
        )
        return {"mtp": mtp.build(context), "suffix": SuffixDrafter(config.vocab_size)}

    beginning = [(7 * i * i + 3 * i + 5) % 70 for i in range(30)]
    return Traffic(target, draft, beginning, end=69, settings=NATIVE, more=more)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtype", action="append")
    parser.add_argument("--kind", action="append", help="of recurrent layers: delta, short, mamba2")
    parser.add_argument("--implementation", default="native", choices=["native", "torch"])
    parser.add_argument("--broken", action="store_true")
    given = parser.parse_args()
    rng, seen, wrong = random.Random(given.seed), 0, 0
    dtypes = given.dtype or ("float32", "q8_0", "q4_1")
    kinds = [native(dtype, kind, given.implementation) for dtype in dtypes for kind in given.kind or ("delta",)]
    with short_texts(), rolled_back_one_row_too_few() if given.broken else nullcontext():
        while seen < given.count:
            traffic, options, seed = rng.choice(kinds), random_options(rng), rng.randrange(10**6)
            for each in traffic.serve(seed, min(24, given.count - seen), **options):
                seen += 1
                if difference := traffic.differs(each):
                    wrong += 1
                    print(seed, options, each.id, each.speculation.draft, difference, file=sys.stderr)
    counts = sum((traffic.counts for traffic in kinds), Counter[str]())
    print(json.dumps({"requests": seen, "differ": wrong, **counts}))
    sys.exit(wrong > 0)


if __name__ == "__main__":
    main()
