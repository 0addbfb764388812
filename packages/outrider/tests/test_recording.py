"""An LLM's own record: every kind of call, the digests of logits, and files that are no record."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import LLM
from outrider.errors import ConfigError
from outrider.recording.records import Recorded, read_record
from tests.model_folders import model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("recorded") / "tiny", max_position_embeddings=1024)


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), draft="ngram", spec_length=4, threads=1) as loaded:
        yield loaded


def test_every_call_with_tokens_is_recorded(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    with llm.record(file):
        outputs = llm.generate(["one two", "three"], max_tokens=6, seed=3, ignore_eos=True)
        chat = llm.chat([{"role": "user", "content": "four"}], max_tokens=5, ignore_eos=True)
        streamed = [step.token_id for step in llm.stream("five", max_tokens=4, ignore_eos=True)]
        left = llm.stream("six", max_tokens=64, temperature=0, ignore_eos=True)
        begun = next(left)
        left.close()  # type: ignore[attr-defined]
        llm.embed("seven")
    llm.generate("eight", max_tokens=2)
    found = list(read_record(file))
    assert [one.output for one in found[:4]] == [*(out.token_ids for out in outputs), chat.token_ids, streamed]
    assert [one.text for one in found[:3]] == [*(out.text for out in outputs), chat.text]
    assert (found[4].output, found[4].finish_reason) == ([begun.token_id], None)
    assert len(found) == 5
    assert all(one.logits is None and one.logprobs is None for one in found)
    assert file.stat().st_mode & 0o77 == 0


def digests(llm: LLM, file: Path, company: int = 0) -> Recorded:
    """The record of a greedy request that runs behind ``company`` others."""
    with llm.record(file, logits=True):
        texts = [*(f"company {n}" for n in range(company)), "one two one two one two"]
        llm.generate(texts, max_tokens=24, temperature=0, ignore_eos=True)
    return list(read_record(file))[-1]


def test_digests_of_logits_are_those_of_plain_decoding(llm: LLM, folder: Path, tmp_path: Path) -> None:
    drafted = digests(llm, tmp_path / "drafted", company=2)
    assert "a" in drafted.origins  # accepted drafts, whose rows were scored in a pass with others
    with LLM(str(folder), draft="none", threads=2) as plain:
        alone = digests(plain, tmp_path / "alone")
    assert alone.origins == "t" * 24
    assert alone.logits == drafted.logits
    assert alone.logprobs == drafted.logprobs
    assert drafted.logits is not None
    assert drafted.logprobs is not None
    assert len(set(drafted.logits)) > 12
    assert all(
        str(token) == max(row, key=lambda key: row[key])
        for token, row in zip(alone.output, drafted.logprobs, strict=True)
    )


def test_a_place_that_cannot_be_written_is_refused_at_once(llm: LLM, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no folder"):
        llm.record(tmp_path / "gone" / "talk.jsonl")


def test_files_that_are_no_record_are_named_with_the_line(llm: LLM, tmp_path: Path) -> None:
    file = tmp_path / "talk.jsonl"
    with llm.record(file):
        llm.generate("one", max_tokens=4, ignore_eos=True)
    line = file.read_text()
    known = json.loads(line)
    for text, message in {
        line + line[:90]: "line 2: it is cut off",
        line + "{}\n": "line 2: it is no record",
        "no json\n": "line 1: it is no record",
        json.dumps(known | {"added": 1}): "another version",
        json.dumps(known | {"output": [*known["output"], 5]}): "do not fit together",
        json.dumps(known | {"prompt": "one"}): "do not fit together",
        json.dumps(known | {"logits": ["1"]}): "do not fit together",
    }.items():
        file.write_text(text)
        with pytest.raises(ConfigError, match=message):
            list(read_record(file))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="no text"):
        list(read_record(file))
    with pytest.raises(ConfigError, match="cannot read"):
        list(read_record(tmp_path))


def test_options_of_another_version_are_named() -> None:
    recorded = Recorded([1], {"seed": 1}, [2], "b", "t", "length", None, "m", "d", "f32", id="request-1")
    assert recorded.sampling().seed == 1
    for params in ({"warmth": 1}, {"logit_bias": [1]}, {"structured": {"form": 1}}):
        with pytest.raises(ConfigError, match="request-1 was recorded by another version"):
            replace(recorded, params=params).sampling()
