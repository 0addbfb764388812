"""``/v1/completions``: every option, whole and streamed, and what it says of itself."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outrider import SamplingParams, SpeculationParams
from tests.server.live import Live

PATH = "/v1/completions"
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 12, "seed": 3, "ignore_eos": True}
PLAIN = {"prompt": "hello world", "max_tokens": 12, "seed": 3, "ignore_eos": True}


def test_text_is_what_the_library_gives(live: Live) -> None:
    answer = live.post(PATH, PLAIN | {"temperature": 0.7, "return_token_ids": True})
    params = SamplingParams(max_tokens=12, seed=3, ignore_eos=True, temperature=0.7)
    llm = live.service.engine.llm
    request = llm.request("hello world", params, SpeculationParams(draft="none"))
    assert answer["choices"][0]["prompt_token_ids"] == list(request.prompt)
    again = live.post(PATH, PLAIN | {"temperature": 0.7, "prompt": list(request.prompt), "speculation": "off"})
    assert again["choices"][0]["text"] == answer["choices"][0]["text"]
    assert again["system_fingerprint"] == answer["system_fingerprint"]
    assert again["metrics"]["speculative_decoding"]["num_spec_steps"] == 0


def test_what_an_answer_holds(live: Live) -> None:
    answer = live.post(PATH, PLAIN | {"prompt": ["hello", "hello world"], "n": 2})
    assert answer["object"] == "text_completion"
    assert answer["id"].startswith("cmpl-")
    assert answer["model"] == "tiny"
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["seed"] for c in answer["choices"]] == [3, 4, 3, 4]
    assert all(c["finish_reason"] == "length" for c in answer["choices"])
    lengths = [len(live.post("/tokenize", {"prompt": p})["tokens"]) for p in ("hello", "hello world")]
    assert answer["usage"]["prompt_tokens"] == sum(lengths)  # n outputs share a prompt
    assert answer["usage"]["completion_tokens"] == 48
    assert answer["usage"]["total_tokens"] == sum(lengths) + 48
    alone = live.post(PATH, PLAIN | {"seed": 4})
    assert alone["choices"][0]["text"] == answer["choices"][3]["text"]


def test_the_default_is_16_tokens_at_temperature_1(live: Live) -> None:
    answer = live.post(PATH, {"prompt": "hello", "seed": 1, "ignore_eos": True})
    same = live.post(PATH, {"prompt": "hello", "seed": 1, "ignore_eos": True, "temperature": 1.0, "max_tokens": 16})
    assert answer["usage"]["completion_tokens"] == 16
    assert answer["choices"][0]["text"] == same["choices"][0]["text"]


def test_echo_with_logprobs_gives_those_of_the_prompt(live: Live) -> None:
    ids = live.post("/tokenize", {"prompt": "hello world and"})["tokens"]
    body = {"prompt": [ids, ids[:2]], "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0}
    first, second = live.post(PATH, body)["choices"]
    for choice, length in ((first, len(ids)), (second, 2)):
        told = choice["logprobs"]
        assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["text_offset"]) == length + 1
        assert told["token_logprobs"][0] is None
        assert all(value < 0 for value in told["token_logprobs"][1:])
        assert all(1 <= len(best) <= 2 for best in told["top_logprobs"][1:])
    assert first["logprobs"]["token_logprobs"][1] == second["logprobs"]["token_logprobs"][1]
    only = live.post(PATH, body | {"max_tokens": 0})
    assert only["usage"]["completion_tokens"] == 0
    assert only["choices"][0]["text"] == "hello world and"
    assert only["choices"][0]["logprobs"]["token_logprobs"] == first["logprobs"]["token_logprobs"][:-1]


def test_prefixes_are_shared_by_requests_of_one_salt_only(live: Live) -> None:
    body = PLAIN | {"prompt": "a text that no other test here sends, as long as several blocks of a cache " * 2}
    salts = ("one", "one", "two", None, "two")
    told = [live.post(PATH, body | {"cache_salt": salt})["usage"]["prompt_tokens_details"] for salt in salts]
    assert [each["cached_tokens"] > 0 for each in told] == [False, True, False, False, True]


def test_best_of_gives_the_likeliest_per_token(live: Live) -> None:
    made = live.post(PATH, PLAIN | {"n": 4, "logprobs": 0})["choices"]
    means = [sum(c["logprobs"]["token_logprobs"]) / 12 for c in made]
    best = live.post(PATH, PLAIN | {"n": 2, "best_of": 4})["choices"]
    ranked = sorted(range(4), key=lambda i: -means[i])
    assert [c["text"] for c in best] == [made[i]["text"] for i in ranked[:2]]
    assert [c["index"] for c in best] == [0, 1]


def test_statistics_add_up(live: Live) -> None:
    body = PLAIN | {"prompt": [5, 6, 7, 5, 6, 7, 5, 6], "max_tokens": 60, "temperature": 0, "logit_bias": {"5": 40}}
    answer = live.post(PATH, body)
    told, times = answer["metrics"]["speculative_decoding"], answer["timings"]
    assert told["num_accepted_draft_tokens"] > 20
    assert times["draft_n"] == told["num_draft_tokens"]
    assert times["draft_n_accepted"] == told["num_accepted_draft_tokens"]
    assert sum(told["acceptance_histogram"]) == told["num_spec_steps"]
    weighted = sum(i * count for i, count in enumerate(told["acceptance_histogram"]))
    assert weighted == told["num_accepted_draft_tokens"]
    assert told["mean_acceptance_length"] > 1.5
    assert times["predicted_n"] == 60


@pytest.mark.parametrize(
    ("asked", "source"),
    [
        ({"draft": "ngram"}, "ngram"),
        ({"draft": "lookup"}, "lookup"),
        ({"method": "ngram"}, "lookup"),  # as in vLLM, and in speculative_config
        ({"method": "prompt_lookup"}, "lookup"),
        ({"method": "lookup", "draft": "lookup"}, "lookup"),
        ({"method": "none"}, None),
        ({"method": "off"}, None),
    ],
    ids=str,
)
def test_a_source_has_our_name_or_vllm_s(live: Live, asked: dict[str, str], source: str | None) -> None:
    body = PLAIN | {"prompt": [5, 6, 7] * 4, "max_tokens": 30, "temperature": 0, "logit_bias": {"5": 40}}
    answer = live.post(PATH, body | {"token_details": True, "speculation": asked})
    found = {t["source"] for t in answer["choices"][0]["token_details"] if t["origin"] == "accepted"}
    assert found == ({source} if source else set())


@pytest.mark.parametrize("draft", ["ngram", "lookup", "none"])
def test_the_source_changes_nothing_but_speed(live: Live, draft: str) -> None:
    body = PLAIN | {"prompt": [5, 6, 7] * 4, "max_tokens": 40, "temperature": 0.3}
    asked = live.post(PATH, body | {"speculation": {"draft": draft, "num_speculative_tokens": 3}})
    assert asked["choices"][0]["text"] == live.post(PATH, body | {"speculation": "off"})["choices"][0]["text"]
    assert len(asked["metrics"]["speculative_decoding"]["acceptance_by_position"]) <= 3


def test_token_details_name_origin_and_source(live: Live) -> None:
    body = PLAIN | {"prompt": [5, 6, 7, 5, 6, 7, 5, 6], "max_tokens": 30, "temperature": 0, "logit_bias": {"5": 40}}
    tokens = live.post(PATH, body | {"token_details": True})["choices"][0]["token_details"]
    assert len(tokens) == 30
    assert {t["origin"] for t in tokens} <= {"target", "accepted", "recovered", "bonus"}
    assert all(t["source"] == "ngram" for t in tokens if t["origin"] == "accepted")
    assert sum(t["origin"] == "accepted" for t in tokens) > 10


def joined(chunks: list[dict[str, Any]], n: int) -> list[dict[str, Any]]:
    """What the chunks of a stream come to, choice by choice."""
    whole: list[dict[str, Any]] = [
        {"text": "", "finish_reason": None, "logprobs": [], "token_ids": []} for _ in range(n)
    ]
    for chunk in chunks:
        for choice in chunk["choices"]:
            own = whole[choice["index"]]
            assert own["finish_reason"] is None, "nothing follows the end"
            own["text"] += choice["text"]
            own["finish_reason"] = choice["finish_reason"]
            own["logprobs"] += (choice["logprobs"] or {}).get("token_logprobs", [])
            own["token_ids"] += choice.get("token_ids", [])
    return whole


OPTIONS = st.fixed_dictionaries(
    {"prompt": st.sampled_from(["hello", "hello world, the", [5, 6, 7, 5, 6, 7], ["hello", [3, 4, 3, 4]]])},
    optional={
        "max_tokens": st.integers(1, 24),
        "n": st.integers(1, 3),
        "temperature": st.sampled_from([0.0, 0.5, 1.0]),
        "top_p": st.sampled_from([0.5, 0.9]),
        "top_k": st.integers(1, 20),
        "min_p": st.sampled_from([0.01, 0.2]),
        "frequency_penalty": st.sampled_from([-0.5, 1.0]),
        "repetition_penalty": st.sampled_from([1.3]),
        "logit_bias": st.just({"5": 8.0, "6": 8.0}),
        "stop": st.sampled_from(["e", ["o", "&&"], [" "]]),
        "stop_token_ids": st.just([7]),
        "min_tokens": st.just(1),
        "ignore_eos": st.booleans(),
        "logprobs": st.integers(0, 3),
        "echo": st.booleans(),
        "speculation": st.sampled_from(["off", {"draft": "lookup", "spec_length": 6}, {"draft": "ngram"}]),
        "stream_options": st.just({"include_usage": True}),
    },
)


@given(OPTIONS)
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_streamed_is_what_comes_whole(live: Live, options: dict[str, Any]) -> None:
    body = options | {"seed": 11, "return_token_ids": True}
    whole = live.post(PATH, {k: v for k, v in body.items() if k != "stream_options"})
    chunks = live.stream(PATH, body)
    parts = joined(chunks, len(whole["choices"]))
    for choice, part in zip(whole["choices"], parts, strict=True):
        assert part["text"] == choice["text"]
        assert part["finish_reason"] == choice["finish_reason"]
        assert part["token_ids"] == choice["token_ids"]
        assert part["logprobs"] == (choice["logprobs"] or {}).get("token_logprobs", [])
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert "metrics" in chunks[-1]
    if "stream_options" in body:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert all(chunk["usage"] is None for chunk in chunks[:-1])
    else:
        assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


def test_a_prediction_is_drafted_from_and_changes_nothing(live: Live) -> None:
    body = PLAIN | {"max_tokens": 40, "temperature": 0}
    plain = live.post(PATH, body | {"speculation": "off"})
    expected = {"type": "content", "content": plain["choices"][0]["text"]}
    answer = live.post(PATH, body | {"prediction": expected})
    assert answer["choices"][0]["text"] == plain["choices"][0]["text"]
    told = answer["usage"]["completion_tokens_details"]
    drafted = answer["metrics"]["speculative_decoding"]
    assert told["accepted_prediction_tokens"] == drafted["num_accepted_draft_tokens"]
    assert told["accepted_prediction_tokens"] + told["rejected_prediction_tokens"] == drafted["num_draft_tokens"] > 0
    assert "completion_tokens_details" not in plain["usage"]


@pytest.mark.parametrize(("path", "ask"), [(PATH, PLAIN), ("/v1/chat/completions", CHAT)])
def test_usage_in_every_chunk(live: Live, path: str, ask: dict[str, Any]) -> None:
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    *chunks, last = live.stream(path, ask | options | {"n": 2})
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts)
    assert counts[-1] == last["usage"]["completion_tokens"] == 24
    assert {chunk["usage"]["prompt_tokens"] for chunk in chunks} == {last["usage"]["prompt_tokens"]}
    alone = live.client.post(path, json=ask | {"stream": True, "stream_options": {"continuous_usage_stats": True}})
    assert alone.json()["error"]["param"] == "stream_options"
