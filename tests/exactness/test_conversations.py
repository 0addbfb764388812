"""Whole conversations have the noted digests: in this process here, and in others on each instruction set."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import conversations
from tests.paths import DOCS, LAB

NOTED = json.loads(conversations.NOTED.read_text())
TARGET = str(LAB / "target")


def test_a_conversation_has_the_noted_digest_with_any_drafts_and_threads() -> None:
    for threads, draft in ((1, "ngram"), (2, "none")):
        found = conversations.conversation(TARGET, "q4_1", threads, draft)
        assert found == NOTED["lab target"]["q4_1"], "after a change that is meant to change bits: --write"
    assert conversations.conversation(TARGET, "q4_1", 1, seed=1) != NOTED["lab target"]["q4_1"]


def test_the_documented_table_is_the_noted_one() -> None:
    assert conversations.table() in (DOCS / "native.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_lab_s_models_on_every_instruction_set(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["conversations", "--models", "lab"])
    assert conversations.main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) >= 1 + sum(len(digests) for name, digests in NOTED.items() if name.startswith("lab"))
    assert "control with other seeds" in lines[-1]


@pytest.mark.slow
def test_another_digest_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = tmp_path / "noted.json"
    changed.write_text(json.dumps(NOTED | {"lab hybrid": {"auto": "0" * 16}}))
    monkeypatch.setattr(conversations, "NOTED", changed)
    monkeypatch.setattr("sys.argv", ["conversations", "--models", "hybrid", "--isa", "portable"])
    assert conversations.main() == 1
    assert "<- DIFFERS from 0000000000000000" in capsys.readouterr().out
