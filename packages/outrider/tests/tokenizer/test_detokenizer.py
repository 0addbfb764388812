"""Streaming text: pieces join to the text of all ids, no piece holds part of a character, cost stays flat."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers

from outrider.tokenizer.tokenizer import IncrementalDetokenizer, Tokenizer
from tests.tokenizer.vocabularies import SAMPLE, byte_level, sentencepiece


def words(folder: Path) -> Path:
    """Whole words, joined by spaces: a tokenizer without a decoder."""
    folder.mkdir(parents=True, exist_ok=True)
    backend = Backend(models.WordLevel({"a": 0, "b": 1, "c": 2, "?": 3}, unk_token="?"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module", params=[byte_level, sentencepiece, words])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer.from_folder(request.param(tmp_path_factory.mktemp("tokenizer")))


def stream(tokenizer: Tokenizer, ids: list[int], cuts: list[int], tail: list[int], skip: bool) -> list[str]:
    detokenizer = IncrementalDetokenizer(tokenizer, tail, skip_special_tokens=skip)
    bounds = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    pieces = [detokenizer.push(ids[a:b]) for a, b in pairwise(bounds)]
    return [*pieces, detokenizer.flush()]


@pytest.fixture(scope="module")
def some_ids(tokenizer: Tokenizer) -> st.SearchStrategy[list[int]]:
    """Tokens of all kinds: any, those of text, and pieces of characters."""
    some = st.one_of(
        st.integers(0, tokenizer.vocab_size + 2),
        st.sampled_from(tokenizer.encode(SAMPLE)),
        st.sampled_from([i for i in range(tokenizer.vocab_size) if not tokenizer.token_bytes(i).isascii()] or [0]),
    )
    return st.lists(some, max_size=20)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_pieces_join_to_the_whole_text(
    data: st.DataObject, tokenizer: Tokenizer, some_ids: st.SearchStrategy[list[int]]
) -> None:
    ids = data.draw(some_ids, label="ids")
    cuts = data.draw(st.lists(st.integers(0, 20), max_size=20), label="cuts")
    skip = data.draw(st.booleans(), label="skip")
    assert "".join(stream(tokenizer, ids, cuts, [], skip)) == tokenizer.decode(ids, skip_special_tokens=skip)


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_text_continues_the_prompt(data: st.DataObject, tokenizer: Tokenizer) -> None:
    text = tokenizer.encode(SAMPLE if len(tokenizer.vocabulary) > 9 else "a b c a b")
    start = data.draw(st.integers(0, len(text)), label="start")
    ids = [*text[start:], *data.draw(st.lists(st.integers(0, tokenizer.vocab_size - 1), max_size=8), label="ids")]
    cuts = data.draw(st.lists(st.integers(0, 20), max_size=20), label="cuts")
    shown = tokenizer.decode(text[:start]).rstrip("\ufffd")
    whole = tokenizer.decode([*text[:start], *ids])
    assert "".join(stream(tokenizer, ids, cuts, text[:start], True)) == whole[len(shown) :]


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=30).filter(lambda t: "\ufffd" not in t))
def test_never_part_of_a_character(text: str, tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(text)
    pieces = stream(tokenizer, ids, list(range(len(ids))), [], True)
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_is_shown_when_it_is_whole(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path))
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.push([tokenizer.vocabulary[c]]) for c in "\u00f0\u0141\u012f\u0122"]  # F0 9F 8D 80
    assert pieces == ["", "", "", "\U0001f340"]


@pytest.mark.parametrize("known", range(4))
def test_a_character_may_begin_in_the_prompt(tmp_path: Path, known: int) -> None:
    tokenizer = Tokenizer.from_folder(byte_level(tmp_path))
    ids = [tokenizer.vocabulary[c] for c in "\u00f0\u0141\u012f\u0122"]  # F0 9F 8D 80
    assert "".join(stream(tokenizer, ids[known:], [], tokenizer.encode(SAMPLE) + ids[:known], True)) == "\U0001f340"


def test_cost_does_not_grow_with_the_text(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded = 0
    real = Tokenizer.decode

    def counting(self: Tokenizer, ids: list[int], *, skip_special_tokens: bool = True) -> str:
        nonlocal decoded
        decoded += len(ids)
        return real(self, ids, skip_special_tokens=skip_special_tokens)

    monkeypatch.setattr(Tokenizer, "decode", counting)
    high = [i for i in range(tokenizer.vocab_size) if not tokenizer.token_bytes(i).isascii()] or [0]
    for ids in (tokenizer.encode(SAMPLE) * 10, high * 20):  # text, and nothing but pieces of characters
        decoded = 0
        stream(tokenizer, ids, list(range(len(ids))), [], True)
        assert decoded <= 8 * len(ids)


def test_of_a_long_prompt_its_end_alone_is_read(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    token_bytes, has_token = Tokenizer.token_bytes, Tokenizer.has_token

    def counted(real: Callable[[Tokenizer, int], Any]) -> Callable[[Tokenizer, int], Any]:
        def counting(self: Tokenizer, token_id: int) -> Any:
            nonlocal asked
            asked += 1
            return real(self, token_id)

        return counting

    monkeypatch.setattr(Tokenizer, "token_bytes", counted(token_bytes))
    monkeypatch.setattr(Tokenizer, "has_token", counted(has_token))
    IncrementalDetokenizer(tokenizer, tokenizer.encode(SAMPLE) * 100)
    assert 0 < asked < 100
