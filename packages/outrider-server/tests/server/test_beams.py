"""Beam search over HTTP, by vLLM's names."""

from __future__ import annotations

from typing import Any

import pytest

from outrider import SamplingParams
from tests.server.live import Live

BEAMS = {"prompt": "hello world", "max_tokens": 8, "use_beam_search": True, "n": 3}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8, "use_beam_search": True, "n": 2}


def test_the_best_beams_with_their_scores(live: Live) -> None:
    answer = live.post("/v1/completions", BEAMS | {"length_penalty": 0.5, "early_stopping": True})
    params = SamplingParams(beam_width=3, n=3, max_tokens=8, length_penalty=0.5, early_stopping=True)
    mine: Any = live.service.engine.llm.requests("hello world", params)
    assert [len(mine[0].method.outputs), len(mine)] == [3, 3]
    scores = [choice["score"] for choice in answer["choices"]]
    assert scores == sorted(scores, reverse=True)
    assert len({choice["text"] for choice in answer["choices"]}) == 3
    wide = live.post("/v1/completions", BEAMS | {"n": 1, "best_of": 3, "length_penalty": 0.5, "early_stopping": True})
    assert wide["choices"][0]["text"] == answer["choices"][0]["text"]
    assert wide["choices"][0]["score"] == scores[0]


def test_a_stream_has_all_beams_at_the_end(live: Live) -> None:
    whole = live.post("/v1/chat/completions", CHAT)
    texts: dict[int, str] = {}
    for event in live.stream("/v1/chat/completions", CHAT | {"stream": True}):
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
    assert [texts[i] for i in sorted(texts)] == [choice["message"]["content"] for choice in whole["choices"]]


@pytest.mark.parametrize("draft", ["off", {"draft": "lookup", "spec_length": 4}])
def test_a_stream_of_texts_has_tokens_scores_and_usage(live: Live, draft: Any) -> None:
    body = BEAMS | {"length_penalty": 0.0, "beam_width": 5, "return_token_ids": True, "speculation": draft}
    whole = live.post("/v1/completions", body)
    assert len(whole["choices"]) == 3
    events = live.stream("/v1/completions", body | {"stream": True, "stream_options": {"include_usage": True}})
    found: dict[int, dict[str, Any]] = {i: {"text": "", "token_ids": []} for i in range(3)}
    for choice in (choice for event in events for choice in event["choices"]):
        one = found[choice["index"]]
        one["text"] += choice["text"]
        one["token_ids"] += choice.get("token_ids") or []
        one |= {name: choice[name] for name in ("score", "finish_reason") if choice.get(name) is not None}
    for choice in whole["choices"]:
        assert found[choice["index"]] == {
            name: choice[name] for name in ("text", "token_ids", "score", "finish_reason")
        }
    assert [event["usage"] for event in events if event.get("usage")][-1] == whole["usage"]
    assert whole["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in whole["choices"])


def test_beams_keep_to_a_form(live: Live) -> None:
    body = BEAMS | {"n": 3, "max_tokens": 6, "structured_outputs": {"choice": ["a", "b"]}}
    *found, none = live.post("/v1/completions", body)["choices"]
    assert sorted(choice["text"] for choice in found) == ["a", "b"]
    assert found[0]["score"] > found[1]["score"]
    assert (none["text"], none.get("score")) == ("", None)  # there is no third output


@pytest.mark.parametrize(
    ("change", "param"), [({"temperature": 0.7}, "temperature"), ({"stop": "x"}, "stop"), ({"logprobs": 2}, "logprobs")]
)
def test_what_beams_do_not_take(live: Live, change: dict[str, Any], param: str) -> None:
    answer = live.client.post("/v1/completions", json=BEAMS | change)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert "beam search" in error["message"]


def test_a_length_penalty_needs_beams(live: Live) -> None:
    body = {"prompt": "hello", "length_penalty": 0.5}
    answer = live.client.post("/v1/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "length_penalty"
