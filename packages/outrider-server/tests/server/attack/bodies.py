"""JSON that callers may send to every endpoint, with the statuses that are right."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

COMPLETIONS, CHAT, LLAMA = "/v1/completions", "/v1/chat/completions", "/completion"
BASE: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "hello", "max_tokens": 2},
    CHAT: {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2},
    LLAMA: {"prompt": "hello", "n_predict": 2},
}
OK, BAD, EITHER = (200,), (400,), (200, 400)
REFUSED = (400, 413)


@dataclass(frozen=True)
class Body:
    """A body for ``path``, and the statuses that are right for it."""

    name: str
    path: str
    content: bytes
    right: tuple[int, ...]


def changed(path: str, fields: dict[str, Any]) -> bytes:
    return json.dumps(BASE.get(path, {}) | fields).encode()


def raw(path: str, field: str, text: str) -> bytes:
    """A body whose ``field`` is spelt as JSON, or what looks like it."""
    rest = json.dumps({name: value for name, value in BASE.get(path, {}).items() if name != field})
    return f'{rest[:-1]}{"," if len(rest) > 2 else ""} "{field}": {text}}}'.encode()


NUMBERS: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "max_tokens of 1e400": ("max_tokens", "1e400", BAD),
    "max_tokens NaN": ("max_tokens", "NaN", BAD),
    "max_tokens -Infinity": ("max_tokens", "-Infinity", BAD),
    "max_tokens 3.0": ("max_tokens", "3.0", EITHER),
    "max_tokens as text": ("max_tokens", '"3"', BAD),
    "max_tokens true": ("max_tokens", "true", BAD),
    "max_tokens of 400 digits": ("max_tokens", "9" * 400, BAD),
    "max_tokens of 6000 digits": ("max_tokens", "9" * 6000, BAD),
    "max_tokens with a plus": ("max_tokens", "+3", BAD),
    "max_tokens with a leading zero": ("max_tokens", "03", BAD),
    "max_tokens in hexadecimal": ("max_tokens", "0x3", BAD),
    "temperature minus zero": ("temperature", "-0.0", OK),
    "temperature denormal": ("temperature", "1e-320", OK),
    "temperature that underflows": ("temperature", "1e-99999", OK),
    "temperature of 100": ("temperature", "100", OK),
    "temperature just above": ("temperature", "100.00001", BAD),
    "top_p denormal": ("top_p", "5e-324", OK),
    "top_p zero": ("top_p", "0", BAD),
    "min_p one": ("min_p", "1", OK),
    "top_k minus two": ("top_k", "-2", BAD),
    "the largest seed": ("seed", str(2**63 - 1), OK),
    "the least seed": ("seed", str(-(2**63)), OK),
    "a seed too large": ("seed", str(2**63), BAD),
    "a seed with a point": ("seed", "1.5", BAD),
    "n of zero": ("n", "0", BAD),
    "n of minus one": ("n", "-1", BAD),
    "n of 17": ("n", "17", BAD),
    "n of 2**31": ("n", str(2**31), BAD),
    "n of 16": ("n", "16", OK),
    "repetition_penalty at its least": ("repetition_penalty", "0.01", OK),
    "repetition_penalty at its most": ("repetition_penalty", "100", OK),
    "presence_penalty beyond": ("presence_penalty", "2.0000001", BAD),
    "min_tokens above max_tokens": ("min_tokens", "50", EITHER),
    "stream as text": ("stream", '"true"', BAD),
    "stream as a number": ("stream", "1", BAD),
    "a priority": ("priority", "-2147483648", BAD),
}

COMPLETION_FIELDS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "a bias of 100 on all": ({"logit_bias": {str(i): 100 for i in range(60)}}, OK),
    "a bias of -100 on all": ({"logit_bias": {str(i): -100 for i in range(60)}}, OK),
    "a bias of an Arabic digit": ({"logit_bias": {"\u0665": 1}}, BAD),
    "a bias of a superscript": ({"logit_bias": {"\u00b2": 1}}, BAD),
    "a bias with a space": ({"logit_bias": {" 5": 1}}, BAD),
    "a bias with an underscore": ({"logit_bias": {"5_0": 1}}, BAD),
    "a bias with a plus": ({"logit_bias": {"+5": 1}}, BAD),
    "a bias with an exponent": ({"logit_bias": {"1e1": 1}}, BAD),
    "a bias of a negative id": ({"logit_bias": {"-1": 1}}, BAD),
    "a bias beyond the vocabulary": ({"logit_bias": {"99999": 1}}, BAD),
    "a bias of null": ({"logit_bias": {"5": None}}, BAD),
    "a bias as a list": ({"logit_bias": [[5, 1]]}, BAD),
    "an empty bias": ({"logit_bias": {}}, OK),
    "two spellings of an id": ({"logit_bias": {"5": 1, "05": 2}}, BAD),
    "a thousand stop ids": ({"stop_token_ids": [7] * 1000}, OK),
    "an allowed id a thousand times": ({"allowed_token_ids": [5] * 1000}, OK),
    "an allowed id that is biased away": ({"allowed_token_ids": [5], "logit_bias": {"5": -100}}, OK),
    "an empty list of allowed ids": ({"allowed_token_ids": []}, BAD),
    "best_of below n": ({"best_of": 2, "n": 3}, BAD),
    "best_of of 17": ({"best_of": 17}, BAD),
    "best_of with a stream": ({"best_of": 2, "stream": True}, BAD),
    "best_of with echo and logprobs": ({"best_of": 3, "echo": True, "logprobs": 2}, OK),
    "logprobs of 21": ({"logprobs": 21}, BAD),
    "logprobs true": ({"logprobs": True}, BAD),
    "more alternatives than tokens": ({"logprobs": 20, "echo": True, "prompt": [5]}, OK),
    "no tokens and no echo": ({"max_tokens": 0}, BAD),
    "no tokens, echo and logprobs": ({"max_tokens": 0, "echo": True, "logprobs": 1}, OK),
    "no tokens, echo, a stream": ({"max_tokens": 0, "echo": True, "stream": True}, OK),
    "a null character": ({"prompt": "\0"}, OK),
    "a byte order mark": ({"prompt": "\ufeffhello"}, OK),
    "a noncharacter": ({"prompt": "\uffff\U0010ffff"}, OK),
    "a pair of surrogates the wrong way round": ({"prompt": "\udc00\ud800"}, BAD),
    "a right-to-left override": ({"prompt": "\u202ehello\u2066"}, OK),
    "an empty prompt among others": ({"prompt": ["hello", ""]}, BAD),
    "65 prompts": ({"prompt": ["hello"] * 65}, BAD),
    "prompts of both kinds": ({"prompt": ["hello", [5, 6]]}, OK),
    "nested lists of prompts": ({"prompt": [[[5]]]}, BAD),
    "an empty stop string": ({"stop": ""}, BAD),
    "an empty list of stops": ({"stop": []}, OK),
    "17 stops": ({"stop": ["x"] * 17}, BAD),
    "a stop of 4097 characters": ({"stop": "x" * 4097}, BAD),
    "the replacement character as a stop": ({"stop": "\ufffd"}, OK),
    "half a character as a stop": ({"stop": "\ud83d"}, BAD),
    "a salt of half a character": ({"cache_salt": "\ud83d"}, EITHER),
    "a salt too long": ({"cache_salt": "x" * 257}, BAD),
    "a user with control characters": ({"user": "a\r\nb\x1b[31m\0"}, OK),
    "a user of half a character": ({"user": "\ud83d"}, BAD),
    "a model that is a path": ({"model": "../../etc/passwd"}, (404,)),
    "a model with a line break": ({"model": "tiny\r\nX: y"}, (404,)),
    "a model of half a character": ({"model": "\ud83d"}, BAD),
    "an empty model": ({"model": ""}, (200, 400, 404)),
    "a field of half a character": ({"\ud83d": 1}, BAD),
    "a field of a hundred thousand characters": ({"x" * 100_000: 1}, BAD),
    "__class__": ({"__class__": "x"}, BAD),
    "model_config": ({"model_config": {}}, BAD),
    "a chat's field": ({"messages": []}, BAD),
    "suffix": ({"suffix": "x"}, BAD),
    "usage without a stream": ({"stream_options": {"include_usage": True}}, BAD),
    "an unknown stream option": ({"stream": True, "stream_options": {"x": True}}, BAD),
    "a source of one's own": ({"speculation": {"draft": "os:system"}}, BAD),
    "a source that is a path": ({"speculation": {"draft": "../x"}}, BAD),
    "a thousand sources": ({"speculation": {"draft": "+".join(["ngram"] * 1000)}}, BAD),
    "a source with a huge length": ({"speculation": {"draft": "ngram:999999999"}}, BAD),
    "no source": ({"speculation": {"draft": ""}}, BAD),
    "drafts of 1025": ({"speculation": {"spec_length": 1025}}, BAD),
    "drafts of -1": ({"speculation": {"spec_length": -1}}, BAD),
    "a huge tree": ({"speculation": {"draft": "ngram", "tree": "64x64x64"}}, BAD),
    "a lossy verifier": ({"speculation": {"verifier": "lenient"}}, BAD),
    "an unknown verifier": ({"speculation": {"verifier": "none"}}, BAD),
    "speculation on": ({"speculation": "on"}, BAD),
    "speculation off": ({"speculation": "off"}, OK),
    "an empty prediction": ({"prediction": {"type": "content", "content": ""}}, OK),
    "a prediction of half a character": ({"prediction": {"type": "content", "content": "\ud83d"}}, BAD),
    "a prediction of parts": ({"prediction": {"type": "content", "content": [{"type": "text", "text": "hello"}]}}, OK),
    "metadata 100 deep": ({"metadata": {"a": json.loads("[" * 100 + "]" * 100)}}, (200, 400, 413)),
}


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


USER = {"role": "user", "content": "hello"}
CHAT_FIELDS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "no messages": (chat(), BAD),
    "4097 messages": (chat(*[USER] * 4097), REFUSED),
    "an unknown role": (chat({"role": "root", "content": "x"}), BAD),
    "a role in capitals": (chat({"role": "User", "content": "x"}), BAD),
    "no role": (chat({"content": "x"}), BAD),
    "content null": (chat({"role": "user", "content": None}), EITHER),
    "no parts": (chat({"role": "user", "content": []}), EITHER),
    "a part without text": (chat({"role": "user", "content": [{"type": "text"}]}), BAD),
    "an unknown part": (chat({"role": "user", "content": [{"type": "x", "text": "y"}]}), BAD),
    "a file to read": (chat({"role": "user", "content": [{"type": "file", "file": {"path": "/etc/passwd"}}]}), BAD),
    "a name with control tokens": (chat(USER | {"name": "<|im_end|>"}), EITHER),
    "a message of half a character": (chat({"role": "user", "content": "\udc00"}), BAD),
    "a system message alone": (chat({"role": "system", "content": "x"}), EITHER),
    "a tool's message alone": (chat({"role": "tool", "content": "x", "tool_call_id": "1"}), EITHER),
    "both ways to end": (chat(USER, add_generation_prompt=True, continue_final_message=True), BAD),
    "a user's message to continue": (chat(USER, continue_final_message=True, add_generation_prompt=False), EITHER),
    "a template of one's own": (chat(USER, chat_template="{{ 7 * 7 }}"), BAD),
    "messages by another way": (chat(USER, chat_template_kwargs={"messages": []}), BAD),
    "the sandbox by another way": (chat(USER, chat_template_kwargs={"raise_exception": "x"}), EITHER),
    "a name of Python's": (chat(USER, chat_template_kwargs={"__class__": 1, "self": 2, "loop": 3}), EITHER),
    "a name of half a character": (chat(USER, chat_template_kwargs={"\ud83d": "\ud83d"}), EITHER),
    "a deep variable": (chat(USER, chat_template_kwargs={"a": json.loads("[" * 900 + "]" * 900)}), (200, 400, 413)),
    "a special token by another way": (chat(USER, chat_template_kwargs={"bos_token": "x", "eos_token": []}), EITHER),
    "top_logprobs alone": (chat(USER, top_logprobs=2), BAD),
    "21 alternatives": (chat(USER, logprobs=True, top_logprobs=21), BAD),
    "20 alternatives": (chat(USER, logprobs=True, top_logprobs=20), OK),
    "two limits": (chat(USER, max_tokens=1, max_completion_tokens=2), EITHER),
    "no tokens": (chat(USER, max_tokens=0), BAD),
    "a tool without a name": (chat(USER, tools=[{"type": "function", "function": {}}]), BAD),
    "a tool with a strange name": (chat(USER, tools=[{"type": "function", "function": {"name": "a b"}}]), BAD),
    "a choice without tools": (chat(USER, tool_choice="required"), BAD),
    "a choice of a tool that is not there": (
        chat(
            USER,
            tools=[{"type": "function", "function": {"name": "a"}}],
            tool_choice={"type": "function", "function": {"name": "b"}},
        ),
        BAD,
    ),
    "sound": (chat(USER, modalities=["audio"]), BAD),
    "a function call of old": (chat({"role": "assistant", "content": None, "function_call": {"name": "x"}}), BAD),
}

REGEX = {
    "a huge repetition": ("(a{1,1000}){1,1000}", EITHER),
    "a repetition of a repetition": ("((a*)*)*b", EITHER),
    "a long class": ("[\\w]{10000}", EITHER),
    "a look ahead": ("(?=a)a", EITHER),
    "a back reference": ("(a)\\1", BAD),
    "unbalanced": ("((((", BAD),
    "nothing to repeat": ("*", BAD),
    "empty": ("", EITHER),
    "a reversed range": ("[z-a]", BAD),
    "a property": ("\\p{L}{1,3}", EITHER),
    "an unknown property": ("\\p{Nothing}", BAD),
    "half a character": ("\ud83d", BAD),
    "nothing at all": ("[^\\s\\S]", BAD),
    "ten thousand groups": ("(" * 10_000 + "a" + ")" * 10_000, EITHER),
    "ten thousand choices": ("|".join(f"a{i}" for i in range(10_000)), EITHER),
}
SCHEMAS: dict[str, tuple[Any, tuple[int, ...]]] = {
    "itself": ({"$ref": "#"}, EITHER),
    "a circle": ({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}, EITHER),
    "another machine": ({"$ref": "http://127.0.0.1:1/x"}, BAD),
    "a file": ({"$ref": "file:///etc/passwd"}, BAD),
    "nowhere": ({"$ref": "#/$defs/none"}, BAD),
    "false": (False, BAD),
    "a list": ([1], BAD),
    "text": ("{}", EITHER),
    "an unknown type": ({"type": "nothing"}, BAD),
    "nobody's number": ({"type": "integer", "minimum": 5, "maximum": 4}, BAD),
    "a number of no size": ({"type": "integer", "minimum": 1e308, "maximum": 1.7e308}, EITHER),
    "a long text": ({"type": "string", "minLength": 10**9}, EITHER),
    "a negative length": ({"type": "string", "minLength": -1}, BAD),
    "a long list": ({"type": "array", "minItems": 10**9, "items": {"type": "null"}}, EITHER),
    "a multiple of nothing": ({"type": "number", "multipleOf": 0}, BAD),
    "a multiple of next to nothing": ({"type": "number", "multipleOf": 1e-300}, EITHER),
    "a strange pattern": ({"type": "string", "pattern": "^(a+)+$"}, EITHER),
    "a pattern that is none": ({"type": "string", "pattern": "("}, BAD),
    "ten thousand values": ({"enum": [f"v{i}" for i in range(10_000)]}, EITHER),
    "no value": ({"enum": []}, BAD),
    "half a character": ({"const": "\ud83d"}, BAD),
    "a deep constant": ({"const": json.loads("[" * 200 + "]" * 200)}, (200, 400, 413)),
    "five thousand properties": ({"type": "object", "properties": {f"p{i}": {} for i in range(5000)}}, EITHER),
    "a required one that is not there": ({"type": "object", "properties": {}, "required": ["a"]}, EITHER),
    "an object of no size": ({"type": "object", "minProperties": 10**9}, EITHER),
    "all of much": ({"allOf": [{"anyOf": [{"const": i}, {"const": i + 1}]} for i in range(300)]}, EITHER),
    "one of much": ({"oneOf": [{"type": "string"}] * 500}, EITHER),
    "not": ({"not": {}}, BAD),
    "a chain of references": (
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{f"d{i}": {"$ref": f"#/$defs/d{i + 1}"} for i in range(500)},
                "d500": {"type": "null"},
            },
        },
        EITHER,
    ),
    "a doubling": (
        {
            "$ref": "#/$defs/d0",
            "$defs": {
                **{f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2} for i in range(40)},
                "d40": {"type": "null"},
            },
        },
        EITHER,
    ),
    "a wrong keyword": ({"type": "string", "format": "\r\n"}, EITHER),
}
GRAMMARS: dict[str, tuple[str, tuple[int, ...]]] = {
    "nothing": ("", EITHER),
    "a comment": ("# nothing", BAD),
    "no root": ('a ::= "x"', BAD),
    "itself": ("root ::= root", EITHER),
    "left recursion": ('root ::= root "a" | "b"', EITHER),
    "an unknown rule": ("root ::= other", BAD),
    "a repetition of nothing": ('root ::= ("")* "a"', EITHER),
    "repetitions of repetitions": ('root ::= ((("a"*)*)*)*', EITHER),
    "a huge repetition": ('root ::= "a"{1000000}', EITHER),
    "a repetition of a huge one": ('root ::= ("a"{1000}){1000}', EITHER),
    "a character beyond": ('root ::= "\\U0011FFFF"', BAD),
    "half a character": ('root ::= "\\ud83d"', EITHER),
    "an empty class": ("root ::= []", EITHER),
    "unbalanced": ("root ::= (((", BAD),
    "an import of a file": ("%import ../../etc/passwd\nstart: /a/", BAD),
    "an import of Lark's": ("%import common.INT\nstart: INT", EITHER),
    "a Lark circle": ("start: a\na: start", EITHER),
    "a Lark terminal that holds itself": ("start: A\nA: A", BAD),
    "three thousand rules": (
        "\n".join(f"r{i} ::= r{i + 1}" for i in range(3000)) + '\nroot ::= r0\nr3000 ::= "a"',
        EITHER,
    ),
    "null characters": ('root ::= "\0"', EITHER),
    "binary": ("\x01\x02\x03", BAD),
}
STRUCTURED: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    **{f"regex: {name}": ({"structured_outputs": {"regex": text}}, right) for name, (text, right) in REGEX.items()},
    **{f"schema: {name}": ({"structured_outputs": {"json": form}}, right) for name, (form, right) in SCHEMAS.items()},
    **{f"grammar: {name}": ({"grammar": text}, right) for name, (text, right) in GRAMMARS.items()},
    "choice: none": ({"structured_outputs": {"choice": []}}, BAD),
    "choice: an empty one": ({"structured_outputs": {"choice": [""]}}, EITHER),
    "choice: numbers": ({"structured_outputs": {"choice": [1, 2]}}, BAD),
    "choice: half a character": ({"structured_outputs": {"choice": ["\ud83d"]}}, BAD),
    "choice: ten thousand": ({"structured_outputs": {"choice": [f"c{i}" for i in range(10_000)]}}, EITHER),
    "two at once": ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, BAD),
    "two ways at once": ({"structured_outputs": {"regex": "a"}, "grammar": 'root ::= "a"'}, BAD),
    "none": ({"structured_outputs": {}}, BAD),
    "unknown": ({"structured_outputs": {"yaml": "a"}}, BAD),
    "with ignore_eos": ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, BAD),
    "with everything banned": ({"structured_outputs": {"regex": "a"}, "allowed_token_ids": [1]}, EITHER),
    "with a stop in it": ({"structured_outputs": {"regex": "aaaa"}, "stop": "aa", "max_tokens": 8}, OK),
}
LLAMA_FIELDS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "21 alternatives": ({"n_probs": 21}, BAD),
    "fields upwards": ({"response_fields": ["generation_settings/../prompt"]}, OK),
    "fields of Python": ({"response_fields": ["__class__", "generation_settings/__dict__"]}, OK),
    "empty fields": ({"response_fields": ["", "/", "//"]}, OK),
    "65 fields": ({"response_fields": ["content"] * 65}, BAD),
    "an image": ({"prompt": {"prompt_string": "x", "multimodal_data": ["AAAA"]}}, BAD),
    "a mixed prompt": ({"prompt": [5, "hello", 6]}, OK),
    "a mixed prompt with true": ({"prompt": [True, "hello"]}, BAD),
    "n_predict of -2": ({"n_predict": -2}, BAD),
    "n_predict of zero": ({"n_predict": 0}, EITHER),
    "an unknown sampler": ({"samplers": ["nothing"]}, EITHER),
    "bias never": ({"logit_bias": [[5, False], ["hello", -1]]}, OK),
    "a bias of one": ({"logit_bias": [[5]]}, BAD),
    "a bias of three": ({"logit_bias": [[5, 1, 2]]}, BAD),
    "a bias of no text": ({"logit_bias": [["", 1]]}, EITHER),
    "a bias true": ({"logit_bias": [[5, True]]}, EITHER),
    "a bias of half a character": ({"logit_bias": [["\ud83d", 1]]}, BAD),
    "a bias of infinity": ({"logit_bias": {"5": 1e300}}, BAD),
    "grammar and schema": ({"grammar": 'root ::= "a"', "json_schema": {}}, BAD),
    "200 outputs": ({"n_cmpl": 128}, BAD),
    "a slot": ({"id_slot": 0}, OK),
    "a slot below all": ({"id_slot": -2}, BAD),
    "an adapter": ({"lora": [{"id": 0, "scale": 1}]}, BAD),
    "a time": ({"t_max_predict_ms": 1}, BAD),
    "an unknown field": ({"n_gpu_layers": 1}, BAD),
    "temperature of -100": ({"temperature": -100}, OK),
    "penalties of the last two": ({"repeat_last_n": 2}, BAD),
}
OTHERS: dict[str, tuple[str, dict[str, Any], tuple[int, ...]]] = {
    "tokenize: nothing": ("/tokenize", {}, BAD),
    "tokenize: two things": ("/tokenize", {"content": "a", "prompt": "b"}, BAD),
    "tokenize: half a character": ("/tokenize", {"content": "\ud83d"}, BAD),
    "tokenize: a number": ("/tokenize", {"content": 5}, BAD),
    "tokenize: empty": ("/tokenize", {"content": ""}, OK),
    "tokenize: one too long": ("/tokenize", {"content": "x" * ((1 << 20) + 1)}, REFUSED),
    "tokenize: pieces of bytes": ("/tokenize", {"content": "\U0001f600\0", "with_pieces": True}, OK),
    "detokenize: nothing": ("/detokenize", {"tokens": []}, OK),
    "detokenize: negative": ("/detokenize", {"tokens": [-1]}, BAD),
    "detokenize: beyond": ("/detokenize", {"tokens": [99999]}, BAD),
    "detokenize: beyond 64 bits": ("/detokenize", {"tokens": [2**64]}, BAD),
    "detokenize: a float": ("/detokenize", {"tokens": [1.0]}, BAD),
    "detokenize: true": ("/detokenize", {"tokens": [True]}, BAD),
    "detokenize: 300,000": ("/detokenize", {"tokens": [5] * 300_000}, (200, 400, 413)),
    "template: nothing": ("/apply-template", {"messages": []}, BAD),
    "template: an image": (
        "/apply-template",
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        BAD,
    ),
    "template: half a character": ("/apply-template", {"messages": [{"role": "user", "content": "\ud83d"}]}, EITHER),
}


def bodies() -> Iterator[Body]:
    for name, (field, text, right) in NUMBERS.items():
        yield Body(name, COMPLETIONS, raw(COMPLETIONS, field, text), right)
    tables = {COMPLETIONS: COMPLETION_FIELDS | STRUCTURED, CHAT: CHAT_FIELDS, LLAMA: LLAMA_FIELDS}
    for path, table in tables.items():
        for name, (fields, right) in table.items():
            yield Body(f"{path} {name}", path, changed(path, fields), right)
    for name, (path, fields, right) in OTHERS.items():
        yield Body(name, path, json.dumps(fields).encode(), right)
    twice = b'{"prompt": "hello", "max_tokens": 2, "prompt": "world"}'
    yield Body("a field twice", COMPLETIONS, twice, EITHER)
    yield Body("UTF-8 with a byte order mark", COMPLETIONS, b"\xef\xbb\xbf" + changed(COMPLETIONS, {}), EITHER)
    yield Body("an overlong encoding", COMPLETIONS, b'{"prompt": "\xc0\xaf"}', BAD)
    yield Body("encoded surrogates", COMPLETIONS, b'{"prompt": "\xed\xa0\x80"}', BAD)
    yield Body("Latin-1", COMPLETIONS, '{"prompt": "é"}'.encode("latin-1"), BAD)
    yield Body("UTF-32", COMPLETIONS, '{"prompt": "x"}'.encode("utf-32"), BAD)
    yield Body("a comment", COMPLETIONS, b'{"prompt": "x" /* y */}', BAD)
    yield Body("a comma too many", COMPLETIONS, b'{"prompt": "x",}', BAD)
    yield Body("single quotes", COMPLETIONS, b"{'prompt': 'x'}", BAD)
    yield Body("a control character in a text", COMPLETIONS, b'{"prompt": "a\nb"}', BAD)
    yield Body("a bad escape", COMPLETIONS, b'{"prompt": "\\x41"}', BAD)
