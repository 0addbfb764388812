"""Counts of the written lines, from the lines alone, and a forecast of the remaining time."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_TOPICS = 20  # keywords that are reported
_MOST_WORDS = 50_000  # kept while counting; beyond this, the rarer half is dropped
_SCRIPTS = (
    ("chinese", r"[\u4e00-\u9fff]"), ("japanese", r"[\u3040-\u30ff]"), ("korean", r"[\uac00-\ud7af]"),
    ("russian", r"[\u0400-\u04ff]"), ("arabic", r"[\u0600-\u06ff]"), ("hindi", r"[\u0900-\u097f]"),
    ("greek", r"[\u0370-\u03ff]"), ("hebrew", r"[\u0590-\u05ff]"), ("thai", r"[\u0e00-\u0e7f]"),
)  # fmt: skip
_COMMON = {
    "english": "the and of to in is that for with you it this are as on be what how can a an i my your or if have do "
    "from by at which was not will would should me we they their there some about make write using use following "
    "given text sentence example provide explain describe create want need like help please could one two each more "
    "tell know new most way get today first user users needs good best better great something suggest offer include "
    "based response think make take sure see now just only very such through who "
    "between into when why where who does any all also has but so than then these those",
    "german": "der die das und ist nicht ein eine ich mit wie auf zu für sie den von dem es werden kann",
    "french": "le la les et est une des je pour que dans vous comment sur avec qui du pas ce mon",
    "spanish": "el la los y es una que de para en por con cómo qué del se un mi las como",
    "italian": "il lo gli e è una che di per come con sono del si un mi della non quali posso",
    "portuguese": "o os e é uma que de para em por com como não do da um meu as são você",
}
_STOP_WORDS = {name: frozenset(words.split()) for name, words in _COMMON.items()}
_NO_TOPICS = frozenset().union(*_STOP_WORDS.values())
_CODE = re.compile(r"```|^\s*(?:def|class|import|from|return|function|#include|public|SELECT)\b.*[:;({]?$", re.M)


def language(text: str) -> str:
    """A guess by script, else by the most frequent words of six languages; ``other`` where no such word occurs."""
    counts = {name: len(re.findall(pattern, text)) for name, pattern in _SCRIPTS}
    letters = sum(map(str.isalpha, text))
    if counts["japanese"] * 10 > letters:
        return "japanese"
    best = max(counts, key=lambda name: counts[name])
    if counts[best] * 3 > letters:
        return best
    words = Counter(re.findall(r"[^\W\d_]+", text.lower()))
    scores = {name: sum(words[word] for word in stop) for name, stop in _STOP_WORDS.items()}
    # English lists more words, which keeps them out of the topics, and therefore loses ties.
    best = max(reversed(scores), key=lambda name: scores[name])
    return best if scores[best] else "other"


def has_code(text: str) -> bool:
    """Whether ``text`` has a code fence, or a line that begins as a line of a program."""
    return _CODE.search(text) is not None


@dataclass
class Tally:
    """Counts of lines. ``add`` and ``drop`` take the records of the folder, old and new ones alike."""

    conversations: int = 0
    own: int = 0  # conversations whose prompt the target wrote
    answers: int = 0
    tokens_in: int = 0  # read before answers
    tokens_out: int = 0  # of answers
    greedy: int = 0
    truncated: int = 0
    code: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    dropped_conversations: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    turns: Counter[int] = field(default_factory=Counter)
    languages: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)  # answers to given lines, by category
    words: Counter[str] = field(default_factory=Counter)  # prompts, by word

    def add(self, line: Mapping[str, Any]) -> None:
        """Count an answer."""
        first = line["turn"] == 0
        messages = line.get("messages")
        prompt = messages[-2]["content"] if messages else line["prompt"]
        answer = messages[-1]["content"] if messages else line["answer"]
        self.conversations += first
        self.own += first and line["source"] == "own"
        self.answers += 1
        self.tokens_in += len(line["prompt_ids"])
        self.tokens_out += len(line["answer_ids"])
        self.greedy += line["greedy"]
        self.truncated += line["finish"] == "length"
        self.code += has_code(answer)
        self.kinds[line["kind"]] += first
        self.turns[line["turn"] + 1] += 1
        self.languages[language(answer)] += 1
        if "category" in line:
            self.categories[line["category"]] += 1
        found = set(re.findall(r"[^\W\d_]{3,}", prompt.lower()[-2000:])) - _NO_TOPICS
        self.words.update(found)
        if len(self.words) > _MOST_WORDS:
            self.words = Counter(dict(self.words.most_common(_MOST_WORDS // 2)))

    def drop(self, record: Mapping[str, Any]) -> None:
        """Count a dropped text."""
        self.dropped[record["reason"]] += 1
        self.dropped_conversations += record["turn"] == 0

    @property
    def dropped_share(self) -> float:
        """The share of conversations without a kept answer."""
        return self.dropped_conversations / max(1, self.dropped_conversations + self.conversations)

    def report(self) -> dict[str, Any]:
        """The counts for ``report.json``."""
        n = max(1, self.answers)
        return {
            "conversations": self.conversations,
            "own": self.own,
            "answers": self.answers,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            "mean_answer_tokens": round(self.tokens_out / n, 1),
            "greedy_share": round(self.greedy / n, 4),
            "truncated_share": round(self.truncated / n, 4),
            "code_share": round(self.code / n, 4),
            "dropped": dict(self.dropped.most_common()),
            "dropped_share": round(self.dropped_share, 4),
            "kinds": dict(self.kinds.most_common()),
            "answers_by_turn": {str(turn): count for turn, count in sorted(self.turns.items())},
            "answers_by_category": dict(self.categories.most_common()),
            "languages": dict(self.languages.most_common()),
            "topics": {word: count for word, count in self.words.most_common(_TOPICS) if count > 1},
        }


@dataclass(frozen=True)
class Forecast:
    """``done`` of ``goal`` (None: unknown), ``before`` of them from earlier runs."""

    goal: int | None
    before: int
    done: int
    seconds: float

    @property
    def rate(self) -> float | None:
        """Progress of this run per second; None while unknown."""
        return (self.done - self.before) / self.seconds if self.done > self.before and self.seconds > 0 else None

    @property
    def left(self) -> float | None:
        """Seconds until the goal at this run's rate; None while unknown."""
        if self.goal is None or self.rate is None:
            return None
        return max(0, self.goal - self.done) / self.rate
