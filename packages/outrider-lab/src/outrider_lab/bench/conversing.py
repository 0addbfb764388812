"""Conversations of several turns, as a benchmark's workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.tokenizer.tokenizer import Tokenizer
from outrider_lab.bench.arrivals import ServedRequest
from outrider_lab.bench.backends import BenchBackend
from outrider_lab.data.workloads import Question


@dataclass(frozen=True)
class Conversing:
    """A backend that holds conversations: every turn follows the backend's own answers to earlier turns."""

    backend: BenchBackend
    tokenizer: Tokenizer
    context: int  # tokens; a turn without room for an answer is left out

    @property
    def name(self) -> str:
        return self.backend.name

    def peak_mb(self) -> float:
        return self.backend.peak_mb()

    def run(self, prompts: Sequence[Question], salt: str) -> tuple[list[list[int]], float, list[ServedRequest]]:
        """For each conversation the tokens of all answers, joined; the seconds in all; the requests' timings."""
        talks: list[list[dict[str, str]]] = [[] for _ in prompts]
        tokens: list[list[int]] = [[] for _ in prompts]
        served: list[ServedRequest] = []
        seconds, going = 0.0, list(range(len(prompts)))
        for turn in range(1 + max(len(question.later) for question in prompts)):
            asked: dict[int, list[int]] = {}
            for number in going:
                texts = (prompts[number].text, *prompts[number].later)
                talks[number] += [{"role": "user", "content": text} for text in texts[turn : turn + 1]]
                if turn < len(texts) and len(ids := conversation_ids(self.tokenizer, talks[number])) < self.context:
                    asked[number] = ids
            going = list(asked)
            if not going:
                break
            answers, took, timed = self.backend.run(list(asked.values()), salt)
            seconds += took
            served += timed
            for number, answer in zip(going, answers, strict=True):
                tokens[number] += answer
                talks[number].append({"role": "assistant", "content": self.tokenizer.decode(answer)})
        return tokens, seconds, served


def first_turn(tokenizer: Tokenizer, question: Question) -> list[int]:
    """Token ids of the question's first prompt."""
    return conversation_ids(tokenizer, [{"role": "user", "content": question.text}])


def conversation_ids(tokenizer: Tokenizer, talk: Sequence[Mapping[str, str]]) -> list[int]:
    """Token ids of a conversation; without a chat template, of its texts joined by blank lines."""
    if tokenizer.chat_template:
        return tokenizer.encode_chat(talk)
    return tokenizer.encode("\n\n".join(message["content"] for message in talk))
