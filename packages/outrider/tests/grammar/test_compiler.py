"""Grammars are compiled once, and hostile ones are refused in bounded time and memory."""

from __future__ import annotations

import contextlib
import json
import time
from pathlib import Path
from typing import Any

import pytest

from outrider.config.structured import StructuredOutput
from outrider.errors import InvalidRequestError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.verify.grammar import GrammarCompiler, compiler, matcher, sandbox
from tests.tokenizer.vocabularies import byte_level

DEADLINE = 3.0  # seconds, to keep these tests short


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(byte_level(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> GrammarCompiler:
    grammars = GrammarCompiler(tokenizer, [1])
    grammars._sandbox.children.deadline = DEADLINE
    return grammars


def doubling(levels: int) -> dict[str, Any]:
    """Two references to the next level in each: 2 ** levels strings."""
    pairs = {
        f"d{i}": {"type": "array", "prefixItems": [{"$ref": f"#/$defs/d{i + 1}"}] * 2, "minItems": 2}
        for i in range(levels)
    }
    return {"$defs": pairs | {f"d{levels}": {"type": "string"}}, "$ref": "#/$defs/d0"}


def test_one_domain_does_not_find_what_another_has_compiled(
    grammars: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiling takes longer than finding, which would tell what another has asked for."""
    compiled: list[str] = []

    def compile_grammar(tokenizer: Any, kind: str, text: str, any_whitespace: bool) -> Any:
        compiled.append(text)
        return matcher.compile_grammar(tokenizer, kind, text, any_whitespace)  # type: ignore[arg-type]

    monkeypatch.setattr(compiler, "compile_grammar", compile_grammar)
    for domain in ("one", "other", "one", "other"):
        grammars.constraint(StructuredOutput(regex="secret|hidden"), domain)
    assert len(compiled) == 2


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "regex": ({"regex": "(a"}, "unclosed group"),
    "look-ahead": ({"regex": "(?=a)b"}, "look-around"),
    "back-reference": ({"regex": r"(a)\1"}, "backreferences"),
    "empty language": ({"regex": r"[^\s\S]"}, "allows no output"),
    "type": ({"json_schema": {"type": "nonsense"}}, "Invalid type: nonsense"),
    "keyword": ({"json_schema": {"not": {"type": "string"}}}, "Unimplemented keys"),
    "reference": ({"json_schema": {"$ref": "#/$defs/a"}}, "cannot be used"),
    "circle": ({"json_schema": {"$ref": "#"}}, "allows no output"),
    "unsatisfiable": ({"json_schema": {"type": "integer", "minimum": 3, "maximum": 2}}, "cannot be used"),
    "unknown rule": ({"grammar": "start: x"}, "unknown name"),
    "endless rule": ({"grammar": "start: start"}, "allows no output"),
    "no start": ({"grammar": 'a: "b"'}, "cannot be used"),
    "gibberish": ({"grammar": "%%%"}, "cannot be used"),
}
HOSTILE: dict[str, dict[str, Any]] = {
    "repeated repetition": {"regex": "(a{1000}){1000}"},
    "deep regex": {"regex": "(" * 5000 + "a" + ")" * 5000},
    "deep schema": {"json_schema": '{"type":"array","items":' * 500 + '{"type":"string"}' + "}" * 500},
    "deep grammar": {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
    "large enumeration": {"json_schema": {"enum": [f"value {i}" for i in range(15_000)]}},
    "many properties": {"json_schema": {"type": "object", "properties": {f"p{i}": {} for i in range(1_000)}}},
    "exponential schema": {
        "json_schema": {"allOf": [{"anyOf": [{"properties": {f"p{i}{j}": {}}} for j in range(4)]} for i in range(12)]}
    },
    "exponential terminal": {
        "grammar": "start: A0\n" + "\n".join(f"A{i}: A{i + 1} A{i + 1}" for i in range(40)) + '\nA40: "x"'
    },
    "exponential references": {"json_schema": doubling(40)},
    "ambiguous rule": {"grammar": 'start: e\ne: e e | "a" | e e e'},
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_grammar_says_what_is_wrong(grammars: GrammarCompiler, name: str) -> None:
    options, message = WRONG[name]
    (param,) = options
    with pytest.raises(InvalidRequestError, match=message) as caught:
        grammars.constraint(StructuredOutput(**options))
    assert caught.value.param == param
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_is_refused_or_harmless(grammars: GrammarCompiler, name: str) -> None:
    """Whichever it is, it takes seconds at most, and so does each of its masks."""
    began = time.perf_counter()
    with contextlib.suppress(InvalidRequestError):
        constraint = grammars.constraint(StructuredOutput(**HOSTILE[name]))
        output: list[int] = []
        while len(output) < 30 and (mask := constraint.mask(output)) is not None:
            output.append(int(mask.nonzero()[0][-1]))  # the end, id 1, only where nothing else is possible
    assert time.perf_counter() - began < 3 * DEADLINE


def test_a_grammar_that_never_compiles_is_stopped(tokenizer: Tokenizer) -> None:
    grammars = GrammarCompiler(tokenizer, [1])
    grammars._sandbox.children.deadline = 1.0
    endless = StructuredOutput(json_schema={"type": "integer", "multipleOf": 99999989})
    with pytest.raises(InvalidRequestError, match="takes longer than 1 seconds"):
        grammars.constraint(endless)
    began = time.perf_counter()
    with pytest.raises(InvalidRequestError, match="takes longer than 1 seconds"):
        grammars.constraint(endless)  # known by now
    assert time.perf_counter() - began < 0.5
    assert grammars.constraint(StructuredOutput(regex="a")).mask([]) is not None  # in a new process


def test_a_grammar_that_takes_all_memory_is_stopped(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "TARGET", "tests.grammar.tight:serve")
    greedy = StructuredOutput(regex="(" + "|".join("a" * i + "b" for i in range(1, 700)) + ")*")
    with pytest.raises(InvalidRequestError, match="too much memory"):
        GrammarCompiler(tokenizer, [1]).constraint(greedy)


def test_each_grammar_is_compiled_once(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[str] = []

    def counted(own: Any, kind: Any, text: str, any_whitespace: bool) -> Any:
        compiled.append(text)
        return matcher.compile_grammar(own, kind, text, any_whitespace)

    monkeypatch.setattr(compiler, "compile_grammar", counted)
    grammars = GrammarCompiler(tokenizer, [1])
    for _ in range(3):
        grammars.constraint(StructuredOutput(regex="ab")).mask([])
    assert compiled == ["ab"]
    for i in range(compiler.MAX_CACHED):
        grammars.constraint(StructuredOutput(regex=f"a{i}"))
    grammars.constraint(StructuredOutput(regex="ab"))
    assert compiled.count("ab") == 2  # it had to make room


def test_a_model_without_an_end_cannot_be_constrained(tokenizer: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="no end-of-text token"):
        GrammarCompiler(tokenizer, []).constraint(StructuredOutput(regex="a"))


@pytest.mark.parametrize("any_whitespace", [False, True])
def test_layout_of_json(grammars: GrammarCompiler, tokenizer: Tokenizer, any_whitespace: bool) -> None:
    form = StructuredOutput(json_schema={"const": {"a": [1, 2], "b": {}}}, any_whitespace=any_whitespace)
    constraint = grammars.constraint(form)
    value = json.loads(json.dumps({"a": [1, 2], "b": {}}))
    for text, fixed in ((json.dumps(value), True), (json.dumps(value, indent=1), False)):
        output: list[int] = []
        for byte in text.encode():
            mask = constraint.mask(output)
            token = tokenizer.encode(chr(byte), add_special_tokens=False)[0]
            if mask is None:
                break
            output.append(token)
        assert (constraint.mask(output) is not None) == (fixed or any_whitespace)


def test_every_process_ends_with_its_owner(tmp_path: Path) -> None:
    grammars = GrammarCompiler(Tokenizer.from_folder(byte_level(tmp_path)), [1])
    grammars.constraint(StructuredOutput(regex="a"))
    (child,) = grammars._sandbox.children._free
    assert child.alive
    del grammars, child
