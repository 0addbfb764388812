"""``draft_details``: every step's draft as the engine scored it, and the path that was kept."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.live import Live

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
BODY = {"max_tokens": 30, "temperature": 0, "ignore_eos": True, "logit_bias": {"5": 40}, "token_details": True}
PROMPTS: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": [5, 6, 7, 5, 6, 7, 5, 6]},
    CHAT: {"messages": [{"role": "user", "content": "the world the world the world"}]},
}


def check(tokens: list[dict[str, Any]], drafts: list[dict[str, Any]], length: int) -> None:
    """Together the accepted paths, with a token of the target after each, are the output."""
    place = 0
    for draft in drafts:
        assert len(draft["tokens"]) == len(draft["texts"]) == len(draft["parents"]) == len(draft["sources"])
        assert len(draft["tokens"]) <= min(draft["proposed"], draft["budget"])
        parent = -1
        for node in draft["accepted"]:
            assert draft["parents"][node] == parent
            assert tokens[place]["origin"] == "accepted"
            assert (tokens[place]["id"], tokens[place]["source"]) == (draft["tokens"][node], draft["sources"][node])
            parent, place = node, place + 1
        if place < length:
            assert tokens[place]["origin"] != "accepted"
            place += 1
    assert place == length


@pytest.mark.parametrize("path", PROMPTS)
@pytest.mark.parametrize("speculation", [{"draft": "suffix+recycling", "spec_length": 4}, {"draft": "ngram"}, "off"])
def test_each_step_has_its_tree_and_its_path(live: Live, path: str, speculation: Any) -> None:
    body = BODY | PROMPTS[path] | {"draft_details": True, "speculation": speculation}
    (choice,) = live.post(path, body)["choices"]
    check(choice["token_details"], choice["draft_details"], 30)
    assert any(draft["accepted"] for draft in choice["draft_details"]) == (speculation != "off")

    chunks = [chunk["choices"][0] for chunk in live.stream(path, body) if chunk["choices"]]
    steps = [chunk for chunk in chunks if chunk.get("draft_details")]
    assert all(len(step["draft_details"]) == 1 for step in steps), "a chunk is a step"
    check([t for step in steps for t in step["token_details"]], [step["draft_details"][0] for step in steps], 30)


def test_branches_are_told_of(live: Live) -> None:
    body = BODY | PROMPTS[COMPLETIONS] | {"draft_details": True, "temperature": 0.9, "logit_bias": {}}
    asked = {"draft": "suffix+recycling", "spec_length": 4}
    (choice,) = live.post(COMPLETIONS, body | {"speculation": asked})["choices"]
    trees = [draft["parents"] for draft in choice["draft_details"]]
    assert any(len(set(parents)) < len(parents) for parents in trees), "no draft had two children of one node"


@pytest.mark.parametrize("path", PROMPTS)
def test_they_come_only_when_asked_for(live: Live, path: str) -> None:
    assert "draft_details" not in live.post(path, BODY | PROMPTS[path])["choices"][0]
