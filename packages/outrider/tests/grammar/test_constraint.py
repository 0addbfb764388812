"""Masks are a function of the output: any order of questions, any refused draft, gives what a new matcher gives."""

from __future__ import annotations

import random
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper

from outrider.config.structured import StructuredOutput
from outrider.errors import GrammarError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.verify.grammar import GrammarCompiler, GrammarConstraint, matcher
from tests.tokenizer.vocabularies import byte_level, sentencepiece

FORMS = {
    "schema": StructuredOutput(
        json_schema={
            "type": "object",
            "properties": {"he": {"type": "integer"}, "wo": {"type": "array", "items": {"enum": ["the", 12, None]}}},
            "required": ["he"],
        }
    ),
    "free layout": StructuredOutput(json_object=True, any_whitespace=True),
    "regex": StructuredOutput(regex=r"(hello |world )+[0-9]{2,4}"),
    "choice": StructuredOutput(choice=["hello", "hello world", "help", "\u65e5\u672c", 'a"\\n.*']),
    "grammar": StructuredOutput(grammar='start: a\na: "(" a ")" | "hello" | /[0-9]+/'),
}


@pytest.fixture(scope="module", params=["byte level", "sentencepiece"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    return Tokenizer.from_folder(byte_level(folder) if request.param == "byte level" else sentencepiece(folder))


@pytest.fixture(scope="module")
def eos(tokenizer: Tokenizer) -> int:
    return next(token for name, token in tokenizer.vocabulary.items() if name in ("<|eos|>", "</s>"))


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer, eos: int) -> GrammarCompiler:
    return GrammarCompiler(tokenizer, [eos])


def allowed(constraint: GrammarConstraint, output: Sequence[int]) -> list[int] | None:
    mask = constraint.mask(output)
    return None if mask is None else [int(i) for i in np.flatnonzero(mask)]


def random_walk(constraint: GrammarConstraint, rng: random.Random, length: int = 40) -> list[int]:
    """Some output of the grammar, with its end if it comes to one."""
    output: list[int] = []
    while len(output) < length and (choices := allowed(constraint, output)):
        output.append(rng.choice(choices))
    return output


@pytest.mark.parametrize("name", FORMS)
def test_questions_in_any_order_are_answered_as_by_a_new_constraint(grammars: GrammarCompiler, name: str) -> None:
    rng = random.Random(name)
    asked = grammars.constraint(FORMS[name])
    for _ in range(6):
        output = random_walk(asked, rng)
        for _ in range(25):  # drafts from anywhere, right and wrong
            path = output[: rng.randint(0, len(output))]
            path += [rng.randrange(256) for _ in range(rng.randint(0, 2))]
            assert allowed(asked, path) == allowed(grammars.constraint(FORMS[name]), path)


class Vocabulary:
    """A tokenizer small enough to see through; longer tokens win."""

    eos_token_id, bos_token_id = 0, None
    tokens = (b"<eos>", b"a", b"b", b"1", b"1c", b"1d", b"c", b"d", b"2")
    special_token_ids = (0,)

    def __call__(self, text: bytes | str) -> list[int]:
        rest = text if isinstance(text, bytes) else text.encode()
        ids: list[int] = []
        while rest:
            ids.append(
                max((i for i, t in enumerate(self.tokens) if rest.startswith(t)), key=lambda i: len(self.tokens[i]))
            )
            rest = rest[len(self.tokens[ids[-1]]) :]
        return ids


def test_a_refused_draft_leaves_no_mask_behind() -> None:
    """The example in which a matcher that is rolled back shows the mask of the place it came from."""
    tokenizer = LLTokenizer(TokenizerWrapper(Vocabulary()))

    def compile() -> LLMatcher:
        return LLMatcher(tokenizer, LLMatcher.grammar_from_lark('start: "a" S "c" | "b" S "d"\nS: /[0-9]/'))

    constraint = GrammarConstraint(compile, compile(), [0], len(Vocabulary.tokens))
    names = {path: [Vocabulary.tokens[i] for i in allowed(constraint, path) or []] for path in ((1,), (2,), (1, 3))}
    assert names == {(1,): [b"1", b"1c", b"2"], (2,): [b"1", b"1d", b"2"], (1, 3): [b"c"]}


def test_what_is_allowed_spells_one_of_the_choices(grammars: GrammarCompiler, tokenizer: Tokenizer, eos: int) -> None:
    choices = [choice.encode() for choice in FORMS["choice"].choice or ()]
    constraint = grammars.constraint(FORMS["choice"])
    open_paths: list[list[int]] = [[]]
    finished = set()
    while open_paths:
        path = open_paths.pop()
        text = b"".join(map(tokenizer.token_bytes, path))
        for token in allowed(constraint, path) or []:
            if token == eos:
                finished.add(text)
            else:
                assert any(choice.startswith(text + tokenizer.token_bytes(token)) for choice in choices)
                open_paths.append([*path, token])
    assert finished == set(choices)


def test_nothing_follows_an_end_or_what_was_not_allowed(
    grammars: GrammarCompiler, tokenizer: Tokenizer, eos: int
) -> None:
    constraint = grammars.constraint(StructuredOutput(choice=["12"]))
    one_two = tokenizer.encode("12", add_special_tokens=False)
    output = [token for token in one_two if tokenizer.token_bytes(token).strip()]  # without SentencePiece's prefix
    assert allowed(constraint, output) == [eos]
    assert constraint.mask([*output, eos]) is None
    assert constraint.mask([*output, eos, eos]) is None
    assert constraint.mask([eos]) is None  # nothing is complete yet
    assert constraint.mask([*output, *output]) is None
    assert allowed(constraint, output) == [eos]  # asking did no harm
    longer = grammars.constraint(StructuredOutput(regex="[0-9]+"))
    assert len(allowed(longer, output) or ()) > 1
    assert longer.mask([*output, eos]) is None  # also where more could have come instead


def test_what_is_kept_of_a_request_does_not_grow_with_its_questions(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path))
    constraint = GrammarCompiler(tokenizer, [1]).constraint(StructuredOutput(regex="[0-9]+"))

    def bytes_kept(outputs: range) -> int:
        """Bytes that Python holds more of once these have been asked for."""
        before, _ = tracemalloc.get_traced_memory()
        for number in outputs:
            constraint.mask([number // 256, number % 256])
        return tracemalloc.get_traced_memory()[0] - before

    tracemalloc.start()
    try:
        bytes_kept(range(100))
        assert bytes_kept(range(100, 2100)) < 50_000
    finally:
        tracemalloc.stop()


def test_a_mask_has_the_width_of_the_vocabulary(grammars: GrammarCompiler, tokenizer: Tokenizer) -> None:
    mask = grammars.constraint(FORMS["regex"]).mask([])
    assert mask is not None
    assert mask.dtype == np.bool_
    assert mask.shape == (tokenizer.vocab_size,)
    assert not any(mask[token] for token in tokenizer.special_ids)


def test_a_grammar_that_becomes_too_complex_ends_with_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each letter more can be read in more ways; the error comes again for the same output, and for no shorter one."""
    monkeypatch.setattr(matcher, "LIMITS", LLParserLimits(max_items_in_row=60, verbose_errors=False))
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path))
    constraint = GrammarCompiler(tokenizer, [1]).constraint(StructuredOutput(grammar='start: e\ne: e e | "a" | e e e'))
    a = tokenizer.encode("a", add_special_tokens=False)

    def error_at(length: int) -> str | None:
        try:
            constraint.mask(a * length)
        except GrammarError as error:
            return str(error)
        return None

    first = next(length for length in range(1, 60) if error_at(length))
    assert first > 3
    message = error_at(first)
    assert message is not None
    assert f"cannot go on after {first} tokens (Parser Error: " in message
    assert "\n" not in message
    assert error_at(first - 1) is None
    assert allowed(constraint, a * (first - 1)) == [1, *a]


@pytest.mark.parametrize("control", ["<|user|>", "<|eos|>"])
def test_a_form_that_spells_a_control_token_is_kept(tmp_path: Path, control: str) -> None:
    """The text is spelled in other tokens, and the form goes on behind it."""
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path))
    form = {"type": "object", "properties": {"a": {"const": f"{control} x"}}, "required": ["a"]}
    structured = StructuredOutput(json_schema=form | {"additionalProperties": False})
    constraint = GrammarCompiler(tokenizer, [1]).constraint(structured)
    path: list[int] = []
    while (tokens := allowed(constraint, path)) != [1]:
        assert tokens
        path.append(tokens[-1])
        assert len(path) < 50
    assert tokenizer.decode(path, skip_special_tokens=False) == f'{{"a": "{control} x"}}'
    assert not tokenizer.special_ids & set(path)
