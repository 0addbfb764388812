"""Drafts of a model with other tokens: translation both ways, and what reaches the target."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from outrider import LLM, SamplingParams
from outrider.cache import CacheSpec
from outrider.drafters.draft_cache import DraftModel
from outrider.errors import ConfigError, IncompatibleDraftError
from outrider.models.toy import TableModel
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_drafters.translation import Translation
from outrider_drafters.universal import UniversalDrafter
from tests.drafters.views import grow, propose, request
from tests.model_folders import model_folder, other_vocabulary
from tests.tokenizer.vocabularies import byte_level, sentencepiece

TEXT = "hello world, the h\u00e9llo \u65e5\u672c \U0001f600 and 12 34 of them. "
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory: pytest.TempPathFactory) -> tuple[Tokenizer, Tokenizer]:
    folder = tmp_path_factory.mktemp("tokenizers")
    return Tokenizer.from_folder(byte_level(folder / "bytes")), Tokenizer.from_folder(sentencepiece(folder / "pieces"))


@pytest.mark.parametrize("turned", [False, True])
def test_a_text_that_grows_is_read_as_it_is_encoded(tokenizers: tuple[Tokenizer, Tokenizer], turned: bool) -> None:
    target, own = tokenizers[::-1] if turned else tokenizers
    ids = target.encode(TEXT, add_special_tokens=False)
    translation = Translation(target, own)
    for end in range(1, len(ids) + 1):
        read = translation.read(ids[:end])
    assert read == [*own.encode(""), *own.encode_plain(target.decode(ids), add_special_tokens=False)]


def test_a_long_text_is_settled_piece_by_piece_and_stays_the_text_it_is(
    tokenizers: tuple[Tokenizer, Tokenizer],
) -> None:
    target, own = tokenizers[1], tokenizers[0]
    ids = target.encode(TEXT * 40, add_special_tokens=False)
    translation, before = Translation(target, own), list[int]()
    changed = []
    for end in range(1, len(ids) + 1, 7):
        read = translation.read(ids[:end])
        same = next((i for i, (a, b) in enumerate(zip(before, read, strict=False)) if a != b), len(before))
        changed.append(len(before) - same)
        before = read
    assert own.decode(translation.read(ids)) == target.decode(ids)
    assert max(changed) < 20  # rows of the draft model's cache that are computed again


def test_drafts_come_back_in_the_targets_tokens_without_their_last_one(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    target, own = tokenizers
    translation = Translation(target, own)
    begun, added = "hello world,", " the hello and 12 of 34"
    tokens = target.encode(begun, add_special_tokens=False)
    text = translation.read(tokens)
    drafted = own.encode_plain(begun + added, add_special_tokens=False)[len(text) - len(own.encode("")) :]
    expected = target.encode(begun + added, add_special_tokens=False)[len(tokens) :]
    assert translation.write(tokens, text, drafted, ended=False) == expected[:-1]
    assert translation.write(tokens, text, drafted, ended=True) == [*expected, target.eos_token_ids[0]]
    assert translation.write(tokens, text, [], ended=False) == []


def test_what_a_special_token_spells_is_not_one(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    target, own = tokenizers
    drafted = own.encode_plain("<|eos|> and", add_special_tokens=False)
    translation = Translation(target, own)
    tokens = target.encode("hello", add_special_tokens=False)
    found = translation.write(tokens, translation.read(tokens), drafted, ended=False)
    assert not set(found) & target.special_ids


def test_what_the_draft_model_holds_likeliest_is_drafted(tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    target, own = tokenizers
    text = own.encode_plain("hello world, hello world, hello", add_special_tokens=False)
    table = np.zeros((own.vocab_size, own.vocab_size), np.float32)
    for token, after in itertools.pairwise(text):
        table[token, after] = 9.0
    model = DraftModel(TableModel(table), vocab_size=own.vocab_size, cache=CacheSpec(max_seq_len=64))
    drafter = UniversalDrafter(model, own, target, target.vocab_size)
    view = request(target.encode("hello world,", add_special_tokens=False))
    drafter.start(view)
    expected = target.encode(" hello world, hello world", add_special_tokens=False)
    draft = propose(drafter, view, 8)
    assert list(draft.tokens) == expected[: len(draft)]
    assert len(draft) >= 3
    assert draft.q_logits is None
    grow(drafter, view, [*draft.tokens[:1], *target.encode(" of", add_special_tokens=False)])  # refused in part
    propose(drafter, view, 4)
    assert propose(drafter, view, 0).tokens == ()
    drafter.finish(view.id)
    drafter.finish(view.id)
    assert model.cache.free_tokens() == 64


def test_outputs_are_plain_decodings(tmp_path: Path) -> None:
    folder, other = str(model_folder(tmp_path / "target")), str(other_vocabulary(tmp_path / "other"))
    prompts = [[5, 6, 7], [8, 9], list(range(10, 40))]
    for params in (PARAMS, SamplingParams(max_tokens=24, temperature=0.9, seed=3, ignore_eos=True)):
        plain = LLM(folder, draft="none").generate(prompts, params)
        llm = LLM(folder, draft="universal", draft_model=other, spec_length=4)
        drafted = llm.generate(prompts, params)
        assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
        assert sum(o.stats.num_draft_tokens for o in drafted) > 0


def test_sources_that_need_the_same_tokens_say_so(tmp_path: Path) -> None:
    folder, other = str(model_folder(tmp_path / "target")), str(other_vocabulary(tmp_path / "other"))
    with pytest.raises(IncompatibleDraftError, match="draft='universal', which drafts by way of text"):
        LLM(folder, draft="model", draft_model=other)
    llm = LLM(folder, draft="universal", draft_model=other)
    assert "universal" in llm.drafters
    assert not {"model", "hierarchical"} & set(llm.drafters)
    with pytest.raises(ConfigError, match="draft models of the target's vocabulary"):
        llm.drafters["model"]
