"""The answers that come with the package: a datastore for every tokenizer, made beside the work and kept."""

from __future__ import annotations

import lzma
import re
import sys
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from outrider import LLM, SamplingParams
from outrider.drafters import shared_answers
from outrider.drafters.shared_answers import TEXTS, VARIABLE, SharedAnswers, make, place, write
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.errors import ConfigError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.user_cache import cache_root
from tests.model_folders import model_folder, other_vocabulary

from .views import propose, request

SIZE = 1000  # tokens of models, more than those of their tokenizers
ANSWERS = ["One two three four five.", "Seven, eight — 零九十 ☂ nine.", "One two three four five."]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("answers") / "target")


@pytest.fixture
def texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A few answers in place of those that are shipped, and an empty cache."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shared_answers, "TEXTS", tmp_path / "answers.xz")
    shared_answers.TEXTS.write_bytes(lzma.compress("\0".join(ANSWERS).encode()))
    return shared_answers.TEXTS


def written(folder: Path, texts: Path, size: int = SIZE) -> Path:
    """The file of a datastore for a model of ``size`` tokens."""
    file = place(folder, size, texts)
    write(folder, size, texts, file)
    return file


def kept() -> list[Path]:
    return sorted((cache_root() / "answers").glob("*.safetensors"))


def test_the_shipped_answers_are_those_of_the_card() -> None:
    answers = lzma.decompress(TEXTS.read_bytes()).decode().split("\0")
    counts = re.findall(r"data: ([\d,]+) answers", TEXTS.with_suffix(".md").read_text())
    assert len(answers) == sum(int(count.replace(",", "")) for count in counts)
    assert all(answers)


def test_a_first_start_makes_it_beside_its_answers_and_the_next_has_it(
    target: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "")
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    with LLM(str(target), draft="none") as plain:
        wanted = plain.generate("One two", params).token_ids
        answers = plain.drafters["suffix"].datastore  # type: ignore[attr-defined]
        assert answers.store is None
        assert not kept()  # nothing is made for a source that nobody uses
    with LLM(str(target)) as first:
        answers = first.drafters["suffix"].datastore  # type: ignore[attr-defined]
        assert answers.store is None
        assert first.generate("One two", params).token_ids == wanted
        made = answers.wait(60)
        assert made is not None
        assert made.origin.texts == len(ANSWERS)
        assert first.generate("One two", params).token_ids == wanted
    (file,) = kept()
    content = file.read_bytes()
    with LLM(str(target)) as second:
        found = second.drafters["suffix"].datastore.store  # type: ignore[attr-defined]
        assert len(found) == len(made)
        assert second.generate("One two", params).token_ids == wanted
    assert file.read_bytes() == content


def test_what_is_drafted_comes_from_it_from_the_next_request_on(target: Path, texts: Path) -> None:
    tokenizer = Tokenizer.from_folder(target)
    answer = tokenizer.encode(ANSWERS[0], add_special_tokens=False)
    source = SuffixDrafter(tokenizer.vocab_size, 0, SharedAnswers(target, tokenizer.vocab_size, texts))
    first, second = request(answer[:6], id="first"), request(answer[:6], id="second")
    source.start(first)
    assert propose(source, first, 3).tokens == ()
    source.finish("first")
    assert isinstance(source.datastore, SharedAnswers)
    assert source.datastore.wait(60) is not None
    source.start(second)
    assert propose(source, second, 3).tokens == tuple(answer[6:9])


def test_every_tokenizer_has_its_own_and_a_damaged_one_is_made_again(target: Path, texts: Path, tmp_path: Path) -> None:
    folders = target, other_vocabulary(tmp_path / "other")
    files = [written(folder, texts) for folder in folders]
    assert kept() == sorted(set(files))
    assert len(kept()) == 2
    content = [load_file(file) for file in files]
    for folder, file, before in zip(folders, files, content, strict=True):
        file.write_bytes(file.read_bytes()[:-5])
        answers = SharedAnswers(folder, SIZE, texts)
        answers.load()
        assert answers.store is None
        assert written(folder, texts) == file
        answers.load()
        assert answers.store is not None
        after = load_file(file)
        assert all((after[name] == before[name]).all() for name in ("tokens", "order"))


def test_the_cache_keeps_the_newest(target: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_answers, "_KEPT", 2)
    files = [written(target, texts, SIZE + more) for more in range(4)]
    assert set(kept()) == set(files[2:])


def test_its_size_has_a_bound_and_tokens_that_the_model_lacks_are_left_out(
    target: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.from_folder(target)
    ids = [tokenizer.encode(answer, add_special_tokens=False) for answer in ANSWERS]
    assert max(ids[0]) < max(ids[1])
    assert len(make(tokenizer, tokenizer.vocab_size, texts)) == sum(map(len, ids))
    assert len(make(tokenizer, max(ids[1]), texts)) == 2 * len(ids[0])
    with pytest.raises(ConfigError, match="no answers"):
        make(tokenizer, 1, texts)
    monkeypatch.setattr(shared_answers, "MOST_TOKENS", len(ids[0]) + 3)
    assert len(make(tokenizer, tokenizer.vocab_size, texts)) == len(ids[0]) + 3


def test_where_it_cannot_be_made_there_is_none(target: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert SharedAnswers(target, 1, texts).wait(60) is None  # no answer is left
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/nowhere/python")
        assert SharedAnswers(target, 99, texts).wait(60) is None
    assert not kept()


@pytest.mark.parametrize(
    ("when", "datastore", "there"), [("now", "auto", True), ("now", "none", False), ("off", "auto", False)]
)
def test_when_it_is_made(
    when: str, datastore: str, there: bool, target: Path, texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, when)
    with LLM(str(target), datastore=datastore) as llm:
        held = llm.drafters["suffix"].datastore  # type: ignore[attr-defined]
        assert (held is not None and held.store is not None) == there
    assert len(kept()) == there


def test_another_value_is_refused(target: Path, texts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "later")
    with pytest.raises(ConfigError, match="'later': choose now or off"):
        LLM(str(target))
