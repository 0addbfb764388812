"""What ``outrider train answers`` leaves out, each beside what it keeps; counts, guesses and forecasts."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import ConfigError
from outrider_train.answers.filters import Duplicates, Excluded, LoopWatch, loops
from outrider_train.answers.tally import Forecast, Tally, has_code, language

QUESTION = "A train leaves the station at nine and drives sixty miles an hour for three hours. How far does it get?"


def test_loops() -> None:
    text = random.Random(0).choices(range(1000), k=60)
    assert not loops(text)
    assert loops([*text, *text])
    assert loops([*text, *[5, 6, 7] * 20])
    assert loops([8] * 24)
    assert not loops([8] * 23)  # too short to say
    assert not loops([*text, *text[:20]])  # a passage may come twice


@given(st.lists(st.integers(0, 2), max_size=60), st.integers(0, 60), st.integers(0, 5))
def test_a_loop_that_is_seen_early_stays_one(ids: list[int], before: int, step: int) -> None:
    before = min(before, len(ids))
    watch = LoopWatch(len(ids), ids[:before])
    ends = [*range(before, len(ids), 1 + step), len(ids)]
    seen = [watch(ids[before:end]) for end in ends]
    assert seen[-1] == loops(ids)  # nothing is missed, and nothing is claimed that does not hold in the end
    assert seen == sorted(seen)
    assert all(loops(ids[:end]) for end, vain in zip(ends, seen, strict=True) if vain)


def test_a_loop_is_seen_before_its_end() -> None:
    text = random.Random(0).choices(range(1000), k=40) + [5, 6, 7] * 40
    assert [LoopWatch(len(text))(text[:end]) for end in (40, 80, 110)] == [False, False, True]
    assert not LoopWatch(23)([8] * 23)  # too short to say, as for ``loops``


def test_duplicates() -> None:
    known = Duplicates()
    known.add(QUESTION)
    assert known.find(QUESTION.upper().replace(" ", "\n")) == "duplicate"
    assert known.find(QUESTION.replace("nine", "ten")) == "near duplicate"
    assert known.find("How far does a train get that leaves at nine with sixty miles an hour?") is None
    assert known.find("Write a story about a lighthouse.") is None
    assert known.find("") is None
    long = "Of rivers and towns. " * 200
    known.add(f"{long}Summarize.")
    assert known.find(f"{long}Summarize.") == "duplicate"
    assert known.find(f"{long}List the towns.") is None  # another question on the same text


def test_near_duplicates_among_many() -> None:
    dice = random.Random(1)
    words = ["".join(dice.choices("abcdefghijklmnop", k=5)) for _ in range(400)]
    texts = [" ".join(dice.choices(words, k=20)) for _ in range(200)]
    known = Duplicates()
    for text in texts:
        assert known.find(text) is None
        known.add(text)
    assert [known.find(f"{text} indeed") for text in texts].count("near duplicate") > 195


@pytest.mark.parametrize(
    "row",
    [{"turns": ["first", QUESTION]}, {"prompt": QUESTION}, {"question": QUESTION},
     {"messages": [{"role": "user", "content": QUESTION}]}, {"conversations": [{"from": "human", "value": QUESTION}]}],
)  # fmt: skip
def test_excluded_questions(row: Any, tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(row) + "\n")
    excluded = Excluded([path])
    assert excluded.contains(f"Please solve: {QUESTION.lower()} Thank you")
    assert excluded.contains("It leaves the station at nine and drives sixty miles an hour for three hours or so")
    assert not excluded.contains("the station at nine and drives sixty miles an hour for three")  # twelve words
    assert not Excluded().contains(QUESTION)


def test_short_questions_are_excluded_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "questions.txt"
    path.write_text("Why is the sky blue?\n\nWho am I?\n\n天空为什么是蓝色的\n")
    excluded = Excluded([path])
    assert excluded.contains("Tell me: why is the sky blue?")
    assert not excluded.contains("Why is the sea blue?")
    assert excluded.contains("who am i")
    assert not excluded.contains("He asked: who am I to say?")
    assert excluded.contains("请问天空为什么是蓝色的")


def test_files_that_exclude_nothing(tmp_path: Path) -> None:
    path = tmp_path / "questions.jsonl"
    path.write_text('{"answer": "x"}\n')
    with pytest.raises(ConfigError, match="has no question"):
        Excluded([path])
    path.write_text("{nonsense\n")
    with pytest.raises(ConfigError, match="line 1 is not JSON"):
        Excluded([path])


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("The river rises in the hills and is long.", "english"),
        ("Der Fluss entspringt in den Bergen und ist lang.", "german"),
        ("La rivière est longue et elle vient des montagnes.", "french"),
        ("El río es largo y viene de las montañas.", "spanish"),
        ("这条河很长。", "chinese"),
        ("この川は長いです。", "japanese"),
        ("Река длинная.", "russian"),
        ("12 + 30 = 42", "other"),
    ],
)
def test_languages(text: str, name: str) -> None:
    assert language(text) == name


def test_code() -> None:
    assert has_code("So:\n```\nx\n```")
    assert has_code("def add(a, b):\n    return a + b")
    assert not has_code("Import taxes return to the class of the day.")


def line(**changes: Any) -> dict[str, Any]:
    chat = [{"role": "user", "content": "Tell me of glaciers"}, {"role": "assistant", "content": "They are old."}]
    base = {"turn": 0, "source": "own", "kind": "plain", "greedy": True, "finish": "stop", "messages": chat}
    return base | {"prompt_ids": [1, 2, 3], "answer_ids": [4, 5]} | changes


def test_counts() -> None:
    tally = Tally()
    tally.add(line())
    tally.add(line(turn=1, greedy=False, finish="length"))
    tally.add(line(source="given", kind="given"))
    tally.drop({"reason": "loop in answer", "turn": 0})
    tally.drop({"reason": "empty prompt", "turn": 1})
    report = tally.report()
    assert (report["conversations"], report["own"], report["answers"]) == (2, 1, 3)
    assert (report["tokens_in"], report["tokens_out"], report["mean_answer_tokens"]) == (9, 6, 2.0)
    assert (report["greedy_share"], report["truncated_share"]) == (0.6667, 0.3333)
    assert report["dropped"] == {"loop in answer": 1, "empty prompt": 1}
    assert report["dropped_share"] == 0.3333  # of three conversations, one came to nothing
    assert report["topics"] == {"glaciers": 3}
    assert report["answers_by_turn"] == {"1": 2, "2": 1}


def test_forecast() -> None:
    forecast = Forecast(goal=1000, before=100, done=300, seconds=50.0)
    assert forecast.rate == 4.0  # what was there before this run costs it no time
    assert forecast.left == 175.0
    assert Forecast(1000, 100, 100, 50.0).left is None
    assert Forecast(1000, 0, 1200, 50.0).left == 0
