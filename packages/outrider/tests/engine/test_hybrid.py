"""Models with recurrent states: the same tokens whatever is drafted, dropped, chunked, preempted or found again."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cache import CacheSpec
from outrider.config import SamplingParams
from outrider.drafters.api import RequestView
from outrider.engine import read_plan
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from outrider.errors import ConfigError
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.draft import Draft
from tests.hybrid_toy import HybridToy, logits_after
from tests.small_engines import Scripted, engine, generate, request, run

VOCAB, END = 11, 10
TARGET = HybridToy(VOCAB, seed=1)
DRAFT = HybridToy(VOCAB, seed=1)
BEGINNING = [4, 8, 1, 9, 3, 3, 0, 7, END, 2, 6, 5, 1, 1, 4, 9, 0, 2]


def greedy(prompt: Sequence[int], count: int) -> list[int]:
    """Greedy tokens, each from a pass over the whole text with an empty cache."""
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(logits_after(TARGET, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


def forked(view: RequestView, budget: int) -> Draft:
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
        logits = logits_after(TARGET, [*view.tokens, *path])[-1]
        likely = int(np.argsort(logits)[-rng.choice((1, 1, 1, 2, 3))])
        taken = {tokens[i] for i in range(node) if parents[i] == parents[node]}
        tokens.append(next(t for t in (likely, *range(VOCAB)) if t not in taken))
    return Draft(tuple(tokens), tuple(parents), source="forked")


def make(rng: random.Random, name: str, earlier: Sequence[Request] = ()) -> Request:
    """A random request; half of those with ``earlier`` ones go on from one of them, or from a part of it."""
    options: dict[str, Any] = {"max_tokens": rng.randint(1, 20), "seed": rng.randrange(1000)}
    options |= rng.choice(({}, {"temperature": 1.0}, {"temperature": 0.8, "top_k": 5}, {"prompt_logprobs": 2}))
    prompt = [rng.randrange(VOCAB) for _ in range(rng.choice((1, 2, 5, 17, 40)))]
    if rng.random() < 0.6:
        prompt = [*BEGINNING, *prompt[:20]]
    if earlier and rng.random() < 0.5:
        text = rng.choice(earlier).tokens
        prompt = [*text[: rng.choice((len(text), len(text) - 1, rng.randint(1, len(text))))], *prompt[:3]][:70]
    chosen: dict[str, Any] = {"draft": rng.choice(("none", "ngram", "lookup", "model", "forked"))}
    made = request(
        prompt, SamplingParams(**options), id=name, spec_length=rng.choice((1, 2, 3, 4, 5, 6, "auto")), **chosen
    )
    made.cache_salt = rng.choice(("", "", "tenant"))
    made.priority = rng.choice((0, 0, 1))
    return made


def serving(**options: Any) -> Engine:
    return engine(TARGET, draft=DRAFT, more={"forked": Scripted(forked)}, eos=(END,), **options)


def alone(like: Request) -> Request:
    """The same request by itself, without drafts or a prefix."""
    plain = request(like.prompt, like.params, id=like.id)
    plain.noise = like.noise
    run(engine(TARGET, prefix_reuse=False), plain)
    return plain


@pytest.fixture(autouse=True)
def _copies_of_short_texts() -> Iterator[None]:
    """Reading pauses often enough for texts of some tens of tokens."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(read_plan, "INTERVAL", 12)
        patch.setattr(read_plan, "SPACING", 3)
        patch.setattr(read_plan, "TAIL", 3)
        yield


def test_greedy_tokens_are_those_of_passes_over_the_whole_text() -> None:
    for draft in ("none", "lookup", "model", "forked"):
        assert generate(serving(), BEGINNING, SamplingParams(max_tokens=16), draft=draft) == greedy(BEGINNING, 16)


@settings(max_examples=8, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["contiguous", "paged"]),
    prefix_reuse=st.booleans(),
    slots=st.integers(1, 6),
    budget=st.integers(8, 80),
)
def test_any_traffic_gives_each_request_its_own_tokens(
    seed: int, kind: str, prefix_reuse: bool, slots: int, budget: int
) -> None:
    rng = random.Random(seed)
    served = serving(
        slots=slots,
        kind=kind,
        tokens=rng.choice((96, 160, 400)),  # the smaller ones force preemption
        block_size=rng.choice((1, 4, 16)),
        prefix_reuse=prefix_reuse,
        max_batched_tokens=budget,
        checkpoints=rng.choice((1, 3, 20)),
    )
    requests: list[Request] = []
    aborted = set(rng.sample([str(i) for i in range(16)], 3))
    while len(requests) < 16 or served.busy:
        while len(requests) < 16 and rng.random() < 0.3:
            requests.append(make(rng, str(len(requests)), [r for r in requests if r.finish_reason is not None]))
            served.add(requests[-1])
        served.step()
        for cache in served.memory.caches():
            cache.check()
        if rng.random() < 0.1:
            served.abort(rng.choice(sorted(aborted)))
    for r in requests:
        plain = alone(r)
        assert r.error is None
        assert not r.drafts.disabled_sources, r.stats.draft_error
        if r.id in aborted and r.finish_reason is None:
            assert list(r.output) == list(plain.output)[: len(r.output)]
        else:
            assert list(r.output) == list(plain.output)
            assert list(r.prompt_report.logprobs) == list(plain.prompt_report.logprobs)


def test_drafts_are_accepted_and_refused_by_then() -> None:
    """Otherwise the test above shows nothing."""
    served = serving(slots=4, kind="paged", tokens=400, block_size=4, checkpoints=20)
    rng = random.Random(3)
    requests: list[Request] = []
    for i in range(10):
        some = [make(rng, f"{i} {n}", requests) for n in range(4)]
        run(served, *some)
        requests += some
    drafted = sum(r.stats.num_draft_tokens for r in requests)
    accepted = sum(r.stats.num_accepted_draft_tokens for r in requests)
    assert 0.1 * drafted < accepted < 0.9 * drafted
    assert sum(r.stats.cached_prompt_tokens for r in requests) > 100


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.parametrize("length", range(1, 8))
def test_a_pass_can_be_rolled_back_to_every_length(kind: str, length: int) -> None:
    """The rows of a pass of 7 that are left have the bits that passes of one row each give."""
    spec = CacheSpec(max_seq_len=40, kind=kind, block_size=4)  # type: ignore[arg-type]
    cache = TARGET.new_cache(spec)
    slot, text, whole = cache.allocate(), BEGINNING[:14], logits_after(TARGET, BEGINNING[:14])

    def feed(start: int, tokens: Sequence[int], kept: int) -> np.ndarray[Any, Any]:
        cache.extend(slot, len(tokens))
        span = Span(slot, start, len(tokens), kept=kept)
        logits: np.ndarray[Any, Any] = TARGET.forward(
            ForwardBatch(tokens, range(start, start + len(tokens)), (span,), None), cache
        ).logits
        return logits

    feed(0, text[:5], 5)
    feed(5, [*text[5 : 5 + length], *[7] * (7 - length)], 1)
    cache.truncate_to(slot, 5 + length)
    cache.check()
    rest = [feed(at, text[at : at + 1], 1) for at in range(5 + length, 14)]
    assert np.array_equal(np.concatenate(rest), whole[5 + length :])


def test_rows_in_a_state_cannot_be_dropped() -> None:
    cache = TARGET.new_cache(CacheSpec(max_seq_len=40))
    slot = cache.allocate()
    cache.extend(slot, 6)
    TARGET.forward(ForwardBatch(BEGINNING[:6], range(6), (Span(slot, 0, 6, kept=4),), None), cache)
    cache.truncate_to(slot, 4)
    with pytest.raises(ValueError, match="cannot truncate to 3 rows: the recurrent state holds 4"):
        cache.truncate_to(slot, 3)
    assert cache.length(slot) == 4


def test_a_slot_that_is_emptied_begins_from_a_state_of_zeros() -> None:
    cache = TARGET.new_cache(CacheSpec(max_seq_len=40))
    slot = cache.allocate()
    for kept in (9, 4, -1):
        cache.truncate_to(slot, 0)
        cache.extend(slot, 9)
        batch = ForwardBatch(BEGINNING[:9], range(9), (Span(slot, 0, 9, kept=kept),), None)
        assert np.array_equal(TARGET.forward(batch, cache).logits, logits_after(TARGET, BEGINNING[:9]))
        cache.check()


def test_several_outputs_of_a_prompt_read_it_once() -> None:
    served = serving(slots=3, kind="paged", block_size=4)
    params = SamplingParams(max_tokens=8, temperature=1.0)
    prompt = [*BEGINNING, *BEGINNING]
    requests = [request(prompt, params, id=str(i)) for i in range(3)]
    for follower in requests[1:]:
        follower.prefix_leader = requests[0]
    run(served, *requests)
    assert [r.stats.cached_prompt_tokens for r in requests] == [0, len(prompt) - 1, len(prompt) - 1]
    for r in requests:
        assert list(alone(r).output) == list(r.output)


def test_no_prefix_is_found_under_another_salt() -> None:
    for kind in ("contiguous", "paged"):
        served = serving(slots=2, kind=kind, block_size=4)
        first, same, other = (request(BEGINNING, id=name) for name in "abc")
        first.cache_salt = same.cache_salt = "one"
        other.cache_salt = "two"
        for r in (first, other, same):
            run(served, r)
        assert first.stats.cached_prompt_tokens == other.stats.cached_prompt_tokens == 0
        assert same.stats.cached_prompt_tokens == len(BEGINNING) - 1


def test_beams_are_refused() -> None:
    served = serving()
    beams = request(BEGINNING)
    beams.method = object()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match="beam search keeps a tree of rows"):
        served.add(beams)


def test_first_layers_cannot_run_alone() -> None:
    cache = TARGET.new_cache(CacheSpec(max_seq_len=40))
    slot = cache.allocate()
    cache.extend(slot, 1)
    with pytest.raises(ConfigError, match="the first 1 of 3 layers cannot run alone"):
        TARGET.forward(ForwardBatch([1], [0], (Span(slot, 0, 1),), None, layers=1), cache)
