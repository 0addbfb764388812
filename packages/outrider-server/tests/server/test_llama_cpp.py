"""llama.cpp's own endpoints: its field names, its defaults, and no option that does nothing."""

from __future__ import annotations

import json
from typing import Any

import pytest

from outrider_server.llama_cpp.options import INERT_DEFAULTS, UNSUPPORTED_OFF
from outrider_server.llama_cpp.schema import LlamaCppRequest
from tests.server.live import Live
from tests.server.test_hostile import flaws, told

PATH = "/completion"
ASK: dict[str, Any] = {"prompt": "hello world", "n_predict": 12, "seed": 3}
SAME: dict[str, Any] = {"prompt": "hello world", "max_tokens": 12, "seed": 3}


def streamed(live: Live, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The events of a stream, which has no [DONE] here."""
    answer = live.client.post(PATH, json=body | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line for line in answer.text.split("\n\n") if line.startswith("data: ")]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


@pytest.mark.parametrize("path", [PATH, "/completions"])
def test_what_an_answer_holds(live: Live, path: str) -> None:
    answer = live.post(path, ASK | {"ignore_eos": True})
    assert answer["stop"] is True
    assert answer["stop_type"] == "limit"
    assert answer["stopping_word"] == ""
    assert answer["truncated"] is False
    assert answer["has_new_line"] == ("\n" in answer["content"])
    assert answer["tokens"] == []
    assert answer["tokens_predicted"] == answer["timings"]["predicted_n"] == 12
    assert answer["tokens_evaluated"] == len(live.post("/tokenize", {"prompt": ASK["prompt"]})["tokens"])
    assert answer["generation_settings"]["n_predict"] == 12
    assert answer["generation_settings"]["seed"] == 3


def test_the_text_is_that_of_the_same_options_elsewhere(live: Live) -> None:
    own = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}
    assert live.post(PATH, ASK)["content"] == live.post("/v1/completions", SAME | own)["choices"][0]["text"]
    plain = ASK | {"samplers": []}
    assert live.post(PATH, plain)["content"] == live.post("/v1/completions", SAME)["choices"][0]["text"]
    greedy = live.post(PATH, ASK | {"temperature": -1.0})["content"]
    assert greedy == live.post("/v1/completions", SAME | {"temperature": 0})["choices"][0]["text"]
    penal = {"frequency_penalty": 0.5, "presence_penalty": 0.5}
    theirs = live.post(PATH, ASK | penal | {"repeat_penalty": 1.3, "repeat_last_n": -1})["content"]
    ours = live.post("/v1/completions", SAME | own | penal | {"repetition_penalty": 1.3})["choices"][0]["text"]
    assert theirs == ours


def test_streams_give_the_same_token_by_token(live: Live) -> None:
    body = ASK | {"n_predict": 30, "n_probs": 2, "return_tokens": True}
    whole = live.post(PATH, body)
    *parts, last = streamed(live, body | {"timings_per_token": True})
    assert "".join(part["content"] for part in parts) == whole["content"]
    assert [part["tokens"][0] for part in parts] == whole["tokens"]
    assert [part["completion_probabilities"][0] for part in parts] == whole["completion_probabilities"]
    assert [part["tokens_predicted"] for part in parts] == list(range(1, len(parts) + 1))
    assert all(part["stop"] is False and part["timings"]["predicted_n"] > 0 for part in parts)
    assert last["stop"] is True
    assert {last[name] == whole[name] for name in ("stop_type", "tokens_predicted", "truncated", "prompt")} == {True}


def test_probabilities(live: Live) -> None:
    tokens = live.post(PATH, ASK | {"n_probs": 3})["completion_probabilities"]
    same = live.post(
        "/v1/completions", SAME | {"logprobs": 3, "top_k": 40, "top_p": 0.95, "min_p": 0.05} | {"temperature": 0.8}
    )["choices"][0]["logprobs"]
    assert [token["logprob"] for token in tokens] == same["token_logprobs"]
    assert all(len(token["top_logprobs"]) == 3 for token in tokens)
    assert [token["token"] for token in tokens] == same["tokens"]


def listed(live: Live, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The answers to several prompts."""
    answers: Any = live.post(PATH, body)
    assert isinstance(answers, list)
    return answers


def test_prompts_of_every_shape(live: Live) -> None:
    ids = live.post("/tokenize", {"content": "hello world", "add_special": True})["tokens"]
    both = listed(live, ASK | {"prompt": ["hello world", {"prompt_string": "hello world"}]})
    assert [answer["index"] for answer in both] == [0, 1]
    alone = live.post(PATH, ASK)["content"]
    assert [answer["content"] for answer in both] == [alone, alone]
    assert live.post(PATH, ASK | {"prompt": ids})["content"] == alone
    mixed = live.post(PATH, ASK | {"prompt": [ids[0], "hello", ids[1]]})
    assert mixed["tokens_evaluated"] == 2 + len(live.post("/tokenize", {"content": "hello"})["tokens"])
    many = listed(live, ASK | {"n_cmpl": 2})
    assert [answer["generation_settings"]["seed"] for answer in many] == [3, 4]
    assert many[0]["content"] == alone


def test_how_it_stopped(live: Live) -> None:
    text = live.post(PATH, ASK | {"n_predict": 40, "ignore_eos": True})["content"]
    word = text[10:13]
    stopped = live.post(PATH, ASK | {"n_predict": 40, "ignore_eos": True, "stop": ["never so", word]})
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", word)
    assert stopped["content"] == text[: text.index(word)]
    eos = live.service.engine.llm.tokenizer.eos_token_ids[0]
    ended = live.post(PATH, ASK | {"logit_bias": [[eos, 1000]]})
    assert (ended["stop_type"], ended["content"]) == ("eos", "")
    never = live.post(PATH, ASK | {"logit_bias": [[eos, 1000]], "ignore_eos": True})
    assert never["stop_type"] == "limit"
    assert {"token": eos, "bias": None} in never["generation_settings"]["logit_bias"]


def test_the_context_sets_the_end_where_nothing_else_does(live: Live) -> None:
    long = {"prompt": [5] * 1000, "ignore_eos": True, "seed": 1}
    full = live.post(PATH, long)
    assert full["truncated"] is True
    assert full["tokens_evaluated"] + full["tokens_predicted"] == 1024
    assert live.post(PATH, long | {"n_predict": 4})["truncated"] is False


def test_biases_by_id_by_text_and_never(live: Live) -> None:
    ids = live.post("/tokenize", {"content": "hello"})["tokens"]
    forms: list[Any] = [[[i, 100] for i in ids[:1]], {str(ids[0]): 100}]
    made = [live.post(PATH, ASK | {"logit_bias": form, "return_tokens": True})["tokens"] for form in forms]
    assert made[0] == made[1] == [ids[0]] * 12
    banned = live.post(PATH, ASK | {"logit_bias": [["hello", 50], ["hello", False]], "return_tokens": True})
    assert not set(ids) & set(banned["tokens"])


def test_forms(live: Live) -> None:
    assert live.post(PATH, ASK | {"grammar": 'root ::= "a"{5,5}'})["content"] == "aaaaa"
    assert live.post(PATH, ASK | {"json_schema": {"const": "42"}})["content"] == '"42"'


def test_drafts_of_this_request(live: Live) -> None:
    body = {"prompt": [5, 6, 7] * 4, "n_predict": 40, "seed": 1, "logit_bias": [[5, 30]], "temperature": 0.0}
    drafted, plain = live.post(PATH, body | {"speculative.n_max": 3}), live.post(PATH, body | {"speculative.n_max": 0})
    assert drafted["content"] == plain["content"]
    assert drafted["timings"]["draft_n"] > 0 == plain["timings"]["draft_n"]
    assert plain["generation_settings"]["speculative.types"] == "none"


def test_a_prompt_that_shares_nothing(live: Live) -> None:
    body = ASK | {"prompt": "a prompt of its own, long enough to be found again"}
    live.post(PATH, body)
    assert live.post(PATH, body)["tokens_cached"] > 0
    alone = live.post(PATH, body | {"cache_prompt": False})
    assert alone["tokens_cached"] == 0
    assert alone["content"] == live.post(PATH, body)["content"]


def test_only_the_fields_asked_for(live: Live) -> None:
    fields = ["content", "generation_settings/n_predict", "timings/draft_n", "no/such/field"]
    answer = live.post(PATH, ASK | {"response_fields": fields})
    assert set(answer) == set(fields[:3])
    assert answer["generation_settings/n_predict"] == 12


@pytest.mark.parametrize("name", sorted(UNSUPPORTED_OFF))
def test_what_nothing_here_does_is_refused(live: Live, name: str) -> None:
    field, off = LlamaCppRequest.model_fields[name].alias or name, UNSUPPORTED_OFF[name]
    asked: Any = not off if isinstance(off, bool) else [{"id": 0, "scale": 1.0}] if off == [] else 7
    answer = live.client.post(PATH, json=ASK | {field: asked})
    assert told(answer) == (400, field)
    assert flaws(live, answer) == []
    assert answer.json()["error"]["code"] == "unsupported"
    assert live.post(PATH, ASK | {field: off})["content"] == live.post(PATH, ASK)["content"]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no tokens": ({"n_predict": 0}, "n_predict"),
    "fewer than none": ({"n_predict": -2}, "n_predict"),
    "temperature last": ({"samplers": ["top_k", "top_p", "min_p", "temperature"]}, "samplers"),
    "a sampler twice": ({"samplers": ["top_k", "top_k"]}, "samplers"),
    "a sampler of no one": ({"samplers": ["luck"]}, "samplers"),
    "pictures": ({"prompt": {"prompt_string": "x", "multimodal_data": ["aGk="]}}, "prompt"),
    "a mixed prompt with an unknown token": ({"prompt": [99999, "x"]}, "prompt"),
    "two forms": ({"grammar": 'root ::= "a"', "json_schema": {}}, "json_schema"),
    "no grammar": ({"grammar": "root ::= this is (not valid GBNF"}, "grammar"),
    "no schema": ({"json_schema": {"type": "hiccup"}}, "json_schema"),
    "a bias of three": ({"logit_bias": [[1, 2, 3]]}, "logit_bias[0]"),
    "a bias of nothing": ({"logit_bias": [[]]}, "logit_bias"),
    "a bias of true": ({"logit_bias": {"1": True}}, "logit_bias"),
    "a bias on no token": ({"logit_bias": [[99999, 1]]}, "logit_bias"),
    "a ban on no token": ({"logit_bias": [[99999, False]]}, "logit_bias"),
    "a bias below all tokens": ({"logit_bias": [[-1, 1]]}, "logit_bias"),
    "more probabilities than are kept": ({"n_probs": 21}, "n_probs"),
    "more outputs than allowed": ({"n_cmpl": 100}, "n_cmpl"),
    "a form that never ends": ({"ignore_eos": True, "grammar": 'root ::= "a"'}, "ignore_eos"),
    "two ways to draft": ({"speculation": "off", "speculative.n_max": 2}, "speculative.n_max"),
    "too many prompts": ({"prompt": ["x"] * 65}, "prompt"),
    "OpenAI's name": ({"max_tokens": 3}, "max_tokens"),
}


@pytest.mark.parametrize(("changes", "param"), WRONG.values(), ids=WRONG)
def test_refusals_name_the_field(live: Live, changes: dict[str, Any], param: str) -> None:
    answer = live.client.post(PATH, json=ASK | changes)
    assert told(answer) == (400, param)
    assert flaws(live, answer) == []


def test_details_of_samplers_that_are_off_say_nothing(live: Live) -> None:
    answer = live.post(PATH, ASK | INERT_DEFAULTS | {"dry_base": 3.0})
    assert answer["content"] == live.post(PATH, ASK)["content"]
    assert answer["generation_settings"]["dry_base"] == 3.0


def test_props_say_what_holds(live: Live) -> None:
    props = live.client.get("/props").json()
    assert props["total_slots"] == 4
    assert props["default_generation_settings"]["n_ctx"] == 1024
    defaults = props["default_generation_settings"]["params"]
    own = live.post(PATH, {"prompt": "hello", "n_predict": 1})["generation_settings"]
    same = set(own) - {"seed", "n_predict", "max_tokens"}
    assert {name: defaults[name] for name in same} == {name: own[name] for name in same}
    assert "/" not in props["model_path"]
    assert props["eos_token"] == live.service.engine.llm.tokenizer.decode([1], skip_special_tokens=False)


def test_slots_and_templates(live: Live) -> None:
    places = live.client.get("/slots").json()
    assert [place["id"] for place in places] == [0, 1, 2, 3]
    assert not any(place["is_processing"] for place in places)
    chat = {"messages": [{"role": "user", "content": "hello"}]}
    text = live.post("/apply-template", chat)["prompt"]
    assert "hello" in text
    ids = live.post("/tokenize", chat)["tokens"]
    assert live.post("/tokenize", {"content": text})["tokens"] == ids
    assert live.post("/chat/completions/input_tokens", chat)["input_tokens"] == len(ids)
    assert told(live.client.post("/apply-template", json={"messages": []})) == (400, "messages")
