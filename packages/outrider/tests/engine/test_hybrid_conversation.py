"""Conversations with a model that has recurrent states: no token is read twice, and few copies of states suffice."""

from __future__ import annotations

import random
from typing import Any

import pytest

from outrider.cache import HybridCache
from outrider.config import SamplingParams
from outrider.engine.engine import Engine
from outrider.engine.request import Request
from tests.hybrid_toy import HybridToy
from tests.small_engines import engine, request, run

VOCAB, END, BEGIN = 13, 12, [11, 10, 11]
TURNS = 20
TARGET = HybridToy(VOCAB, seed=2, max_seq_len=4096)
PARAMS = SamplingParams(max_tokens=10, temperature=1.0, seed=3)


def serving(kind: str, **options: Any) -> Engine:
    return engine(TARGET, eos=(END,), kind=kind, **{"slots": 2, "max_seq_len": 2600} | options)


def message(rng: random.Random, length: int) -> list[int]:
    return [*(rng.randrange(10) for _ in range(length - 1)), END]


def turn(served: Engine, prompt: list[int], **options: Any) -> tuple[Request, int]:
    """One request, and the prompt tokens that passes read for it."""
    TARGET.passes.clear()
    asked = request(prompt, PARAMS, stop_ids=(END,), **{"draft": "lookup"} | options)
    run(served, asked)
    read = 0
    for batch in TARGET.passes:
        (span,) = batch.spans
        read += max(0, min(span.start + span.count, len(prompt)) - span.start)
    return asked, read


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_a_conversation_of_twenty_turns_reads_no_token_twice(kind: str) -> None:
    rng, served = random.Random(5), serving(kind, checkpoints=4)
    text, known = message(rng, 150), 0
    for _ in range(TURNS):
        prompt = [*text, *message(rng, rng.randint(5, 160)), *BEGIN]
        asked, read = turn(served, prompt)
        assert asked.stats.cached_prompt_tokens == known
        assert read == len(prompt) - known
        assert isinstance(served.cache, HybridCache)
        assert len(served.cache.checkpoints) <= 4
        known = len(asked.tokens) - 1  # the last token was drawn, and never read
        text = asked.tokens if asked.tokens[-1] == END else [*asked.tokens, END]
    assert len(text) > 1500
    plain = request(prompt, PARAMS, stop_ids=(END,))
    run(serving(kind, prefix_reuse=False), plain)
    assert list(plain.output) == list(asked.output)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_conversations_in_turns_do_not_drive_each_other_out(kind: str) -> None:
    rng, served = random.Random(6), serving(kind, checkpoints=6)
    texts, known = [message(rng, 90), message(rng, 120)], [0, 0]
    for n in range(12):
        which = n % 2
        prompt = [*texts[which], *message(rng, rng.randint(5, 90)), *BEGIN]
        asked, read = turn(served, prompt)
        assert read == len(prompt) - known[which]
        known[which] = len(asked.tokens) - 1
        texts[which] = asked.tokens if asked.tokens[-1] == END else [*asked.tokens, END]


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_a_conversation_begins_anew_behind_its_system_prompt(kind: str) -> None:
    """As agents do that replace their earlier turns with a summary."""
    rng, served = random.Random(7), serving(kind, checkpoints=4)
    system = message(rng, 150)
    text = [*system, *message(rng, 90)]
    for _ in range(6):
        asked, _ = turn(served, [*text, *BEGIN])
        text = [*asked.tokens, *([] if asked.tokens[-1] == END else [END]), *message(rng, 90)]
    prompt = [*system, *message(rng, 100), *BEGIN]
    _, read = turn(served, prompt)
    assert read == len(prompt) - len(system)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_an_edited_last_message_is_all_that_is_read(kind: str) -> None:
    rng, served = random.Random(7), serving(kind)
    text = [*message(rng, 100), *message(rng, 80), *message(rng, 70)]
    first, _ = turn(served, [*text, *message(rng, 20), *BEGIN])
    edited, read = turn(served, [*text, *[3] * 20, END, *BEGIN])
    assert (edited.stats.cached_prompt_tokens, read) == (len(text), 24)
    again, read = turn(served, list(first.prompt))
    assert read == (1 if kind == "paged" else 23)  # a slot has the rows of its last sequence alone
    assert list(again.output) == list(first.output)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_an_answer_without_its_thoughts_is_read_and_nothing_else(kind: str) -> None:
    """Templates drop the thoughts of earlier answers, and the token that began them."""
    rng, served = random.Random(8), serving(kind)
    text = [*message(rng, 100), *message(rng, 80)]
    turn(served, [*text, *BEGIN])
    prompt = [*text, *BEGIN[:-1], *message(rng, 30), *message(rng, 20), *BEGIN]
    asked, read = turn(served, prompt)
    assert asked.stats.cached_prompt_tokens == len(text) + len(BEGIN) - 1
    assert read == 50 + len(BEGIN)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_a_shared_system_prompt_is_read_once(kind: str) -> None:
    rng, served = random.Random(9), serving(kind)
    system = message(rng, 200)
    for i in range(3):
        asked, _ = turn(served, [*system, *message(rng, 70), *BEGIN])
        assert asked.stats.cached_prompt_tokens == (len(system) if i else 0)


def test_a_preempted_request_goes_on_from_its_last_copy() -> None:
    served = serving("paged", slots=2, tokens=640)
    rng = random.Random(10)
    prompts = [[*message(rng, 280), *BEGIN], [*message(rng, 280), *BEGIN]]
    params = SamplingParams(max_tokens=60, min_tokens=60, temperature=1.0, seed=1)
    TARGET.passes.clear()
    requests = [request(prompt, params, id=str(i)) for i, prompt in enumerate(prompts)]
    run(served, *requests)
    assert served._scheduler.preemptions > 0
    for r in requests:
        plain = request(r.prompt, params)
        run(serving("paged", prefix_reuse=False), plain)
        assert list(plain.output) == list(r.output)


def test_the_least_recently_used_copy_makes_room() -> None:
    rng, served = random.Random(11), serving("contiguous", slots=4, checkpoints=2)
    texts = [[*message(rng, 100), *BEGIN] for _ in range(3)]
    one = {"draft": "none"}
    for text in texts[:2]:
        turn(served, text, **one)
    assert turn(served, texts[1], **one)[1] == 1
    turn(served, texts[2], **one)  # takes the places of the other two
    assert [turn(served, text, **one)[1] for text in (texts[2], texts[0])] == [1, 103]


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
def test_of_two_that_begin_together_one_reads_what_they_share(kind: str) -> None:
    rng = random.Random(9)
    served, system = serving(kind, checkpoints=4, max_batched_tokens=96), message(rng, 700)
    pair = [request([*system, *message(rng, 60), *BEGIN], PARAMS, id=name, stop_ids=(END,)) for name in "ab"]
    run(served, *pair)
    assert [asked.stats.cached_prompt_tokens for asked in pair] == [0, len(system)]
    for asked in pair:
        alone = request(asked.prompt, PARAMS, stop_ids=(END,))
        run(serving(kind, prefix_reuse=False), alone)
        assert list(alone.output) == list(asked.output)


def test_others_of_the_tenant_go_on_while_one_waits_for_what_another_reads() -> None:
    """The second of two that begin alike is first in the queue, and holds up nobody."""
    rng = random.Random(9)
    served, system = serving("paged", checkpoints=4, max_batched_tokens=96, slots=3), message(rng, 900)
    pair = [request([*system, *message(rng, 60), *BEGIN], PARAMS, id=name, stop_ids=(END,)) for name in "ab"]
    short = request([*message(rng, 20), *BEGIN], PARAMS, id="short", stop_ids=(END,))
    for asked in (*pair, short):
        served.add(asked)
    while not short.output:
        served.step()
    assert pair[0].num_computed_tokens < 600
    assert pair[1].slot is None
    while served.busy:
        served.step()
    assert pair[1].stats.cached_prompt_tokens == len(system)
    assert all(asked.finish_reason for asked in (*pair, short))


def test_a_tenant_does_not_wait_for_anothers_reading() -> None:
    rng = random.Random(9)
    served, system = serving("paged", checkpoints=4, max_batched_tokens=96), message(rng, 700)
    pair = [request([*system, *message(rng, 60), *BEGIN], PARAMS, id=name, stop_ids=(END,)) for name in "ab"]
    pair[0].tenant, pair[1].tenant = "a", "b"
    for asked in pair:
        served.add(asked)
    while pair[1].slot is None:
        served.step()
    assert 0 < pair[0].num_computed_tokens < 3 * 96
