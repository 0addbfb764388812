"""Recorded requests run again, and the first token at which an answer differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outrider.llm import LLM
from outrider_server.fingerprint import model_digest
from outrider_server.recording import Recorded

__all__ = ["Difference", "Replayed", "replay"]

AT_ONCE = 16  # requests
CANDIDATES = 5


@dataclass(frozen=True)
class Candidate:
    """A token that might have come, and its log-probability. Parts of characters may share a text."""

    token: int
    text: str
    logprob: float


@dataclass(frozen=True)
class Difference:
    """The first token that differs. Token and step count from 1; an id is None where an output has ended."""

    id: str
    token: int
    step: int
    recorded: int | None
    replayed: int | None
    recorded_text: str
    replayed_text: str
    recorded_candidates: list[Candidate] | None
    """Likeliest first; None if the request did not ask for any."""
    replayed_candidates: list[Candidate]

    def line(self) -> str:
        then = "not recorded" if self.recorded_candidates is None else _shown(self.recorded_candidates)
        return (
            f"{self.id}: token {self.token}, in step {self.step}: {self.recorded_text!r} became "
            f"{self.replayed_text!r}; recorded: {then}; here: {_shown(self.replayed_candidates)}"
        )


@dataclass(frozen=True)
class Replayed:
    """One request: its difference, or the reason why it was not run, or neither."""

    recorded: Recorded
    difference: Difference | None = None
    left_out: str | None = None

    def as_data(self) -> dict[str, Any]:
        return {
            "id": self.recorded.id,
            "equal": self.difference is None and self.left_out is None,
            "left_out": self.left_out,
            "difference": None if self.difference is None else asdict(self.difference),
        }


def replay(llm: LLM, recorded: Sequence[Recorded], at_once: int = AT_ONCE) -> Iterator[Replayed]:
    """Run every request again, ``at_once`` of them together, with the engine's own drafts."""
    for start in range(0, len(recorded), at_once):
        part = recorded[start : start + at_once]
        runnable = [one for one in part if one.left_out is None]
        params = [replace(one.sampling(), logprobs=None) for one in runnable]
        outputs = llm.generate([one.prompt for one in runnable], params) if runnable else []
        found = {id(one): output.token_ids for one, output in zip(runnable, outputs, strict=True)}
        for one in part:
            if one.left_out is not None:
                yield Replayed(one, left_out=one.left_out)
            else:
                tokens = found[id(one)]
                yield Replayed(one, None if tokens == one.output else _difference(llm, one, tokens))


def other_model(llm: LLM, recorded: Sequence[Recorded]) -> list[str]:
    """The ways in which the model is another than the recorded one; a difference proves nothing then."""
    now = {"model_digest": model_digest(llm), "dtype": str(llm.model.dtype)}
    return [
        f"{name} is {value} here, and {', '.join(sorted(then))} in the record"
        for name, value in now.items()
        if (then := {getattr(one, name) for one in recorded}) != {value}
    ]


def _difference(llm: LLM, one: Recorded, tokens: Sequence[int]) -> Difference:
    pairs = zip(one.output, tokens, strict=False)
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(one.output), len(tokens)))
    ids = [known[at] if at < len(known) else None for known in (one.output, tokens)]
    texts = ["the end" if token is None else llm.tokenizer.token_text(token) for token in ids]
    then = None if one.logprobs is None or at >= len(one.logprobs) else one.logprobs[at]
    return Difference(
        id=one.id,
        token=at + 1,
        step=one.step_of(at) + 1,
        recorded=ids[0],
        replayed=ids[1],
        recorded_text=texts[0],
        replayed_text=texts[1],
        recorded_candidates=None if then is None else _ranked(llm, {int(k): value for k, value in then.items()}),
        replayed_candidates=_ranked(llm, _candidates(llm, one, at)),
    )


def _candidates(llm: LLM, one: Recorded, at: int) -> Mapping[int, float]:
    """The likeliest tokens here behind the output that both have; of nothing, if this engine's output ends there."""
    params = one.sampling()
    shorter = replace(params, max_tokens=at + 1, min_tokens=min(params.min_tokens, at + 1), logprobs=CANDIDATES)
    steps = llm.generate([one.prompt], shorter)[0].steps
    return (steps[at].logprobs or {}) if at < len(steps) else {}


def _ranked(llm: LLM, logprobs: Mapping[int, float]) -> list[Candidate]:
    ranked = sorted(logprobs.items(), key=lambda item: -item[1])[: CANDIDATES + 1]
    return [Candidate(token, llm.tokenizer.token_text(token), round(value, 4)) for token, value in ranked]


def _shown(candidates: Sequence[Candidate]) -> str:
    return ", ".join(f"{one.text!r} {one.logprob:.3f}" for one in candidates) or "nothing"
