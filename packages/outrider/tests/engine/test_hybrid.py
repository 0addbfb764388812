"""Models with recurrent states: the same tokens whatever is drafted, dropped, chunked, preempted or found again."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.cache import CacheSpec
from outrider.config import SamplingParams
from outrider.errors import ConfigError
from outrider.models.batch import ForwardBatch, Span
from outrider.models.config import Recurrence
from outrider.native.library import library
from tests.hybrid_toy import HybridToy
from tests.hybrid_traffic import (
    Traffic,
    logits_after,
    native,
    random_options,
    rolled_back_one_row_too_few,
    short_texts,
)
from tests.small_engines import generate, request, run

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


needs_library = pytest.mark.skipif(library() is None, reason="no native library")
TRAFFIC = Traffic(
    TARGET, DRAFT, BEGINNING, END, [{"draft": name} for name in ("none", "ngram", "lookup", "model", "forked")]
)


@pytest.fixture(autouse=True)
def _copies_of_short_texts() -> Iterator[None]:
    with short_texts():
        yield


def test_greedy_tokens_are_those_of_passes_over_the_whole_text() -> None:
    for draft in ("none", "lookup", "model", "forked"):
        assert generate(TRAFFIC.engine(), BEGINNING, SamplingParams(max_tokens=16), draft=draft) == greedy(
            BEGINNING, 16
        )


@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_any_traffic_gives_each_request_its_own_tokens(seed: int) -> None:
    served = TRAFFIC.serve(seed, 16, **random_options(random.Random(seed)))
    assert [TRAFFIC.differs(each) for each in served] == [""] * 16


@needs_library
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), dtype=st.sampled_from(["float32", "q8_0", "q4_1"]))
def test_native_traffic_gives_each_request_its_own_tokens(seed: int, dtype: Any) -> None:
    traffic = native(dtype)
    served = traffic.serve(seed, 16, **random_options(random.Random(seed)))
    assert [traffic.differs(each) for each in served] == [""] * 16


@needs_library
@pytest.mark.parametrize("kind", ["short", "mamba2"])
def test_a_short_convolution_or_mamba_changes_no_token_by_drafts(kind: Recurrence) -> None:
    traffic = replace(native("q8_0", kind), counts=Counter())
    served = traffic.serve(3, 24, slots=4, kind="paged", tokens=256, block_size=4, checkpoints=20)
    assert [traffic.differs(each) for each in served] == [""] * 24
    counts = traffic.counts
    assert 0.05 * counts["drafted"] < counts["accepted"] < 0.9 * counts["drafted"]
    assert counts["found"] > 20
    with rolled_back_one_row_too_few():
        served = traffic.serve(1, 24, slots=4)
    assert sum(traffic.differs(each) != "" for each in served) > 4


@pytest.mark.parametrize("which", ["toy", pytest.param("native", marks=needs_library)])
def test_traffic_drafts_preempts_and_finds_prefixes(which: str) -> None:
    """Otherwise the tests above show nothing."""
    traffic = replace(TRAFFIC if which == "toy" else native("float32"), counts=Counter())
    for seed, slots, tokens in ((1, 4, 128), (2, 8, 800)):
        options = {"slots": slots, "kind": "paged", "tokens": tokens, "block_size": 4, "checkpoints": 20}
        assert [traffic.differs(served) for served in traffic.serve(seed, 24, **options)] == [""] * 24
    counts = traffic.counts
    assert 0.05 * counts["drafted"] < counts["accepted"] < 0.9 * counts["drafted"]
    assert counts["preemptions"] > 0
    assert counts["found"] > 100


@needs_library
def test_a_state_rolled_back_one_row_too_few_is_noticed() -> None:
    traffic = native("float32")
    with rolled_back_one_row_too_few():
        served = traffic.serve(1, 24, slots=4)
    assert sum(traffic.differs(each) != "" for each in served) > 4


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
    served = TRAFFIC.engine(slots=3, kind="paged", block_size=4)
    params = SamplingParams(max_tokens=8, temperature=1.0)
    prompt = [*BEGINNING, *BEGINNING]
    requests = [request(prompt, params, id=str(i)) for i in range(3)]
    for follower in requests[1:]:
        follower.prefix_leader = requests[0]
    run(served, *requests)
    assert [r.stats.cached_prompt_tokens for r in requests] == [0, len(prompt) - 1, len(prompt) - 1]
    for r in requests:
        assert list(TRAFFIC.alone(r).output) == list(r.output)


def test_no_prefix_is_found_under_another_salt() -> None:
    for kind in ("contiguous", "paged"):
        served = TRAFFIC.engine(slots=2, kind=kind, block_size=4)
        first, same, other = (request(BEGINNING, id=name) for name in "abc")
        first.cache_salt = same.cache_salt = "one"
        other.cache_salt = "two"
        for r in (first, other, same):
            run(served, r)
        assert first.stats.cached_prompt_tokens == other.stats.cached_prompt_tokens == 0
        assert same.stats.cached_prompt_tokens == len(BEGINNING) - 1


def test_first_layers_cannot_run_alone() -> None:
    cache = TARGET.new_cache(CacheSpec(max_seq_len=40))
    slot = cache.allocate()
    cache.extend(slot, 1)
    with pytest.raises(ConfigError, match="the first 1 of 3 layers cannot run alone"):
        TARGET.forward(ForwardBatch([1], [0], (Span(slot, 0, 1),), None, layers=1), cache)
