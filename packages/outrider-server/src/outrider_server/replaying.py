"""Recorded requests run again, and the first token at which an answer differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from outrider.errors import InvalidRequestError
from outrider.llm import LLM
from outrider.recording.model_files import model_digest, precision_name
from outrider.recording.records import Recorded

__all__ = ["Difference", "Replayed", "find_difference", "other_model", "replay"]

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
    """The first token that differs. Token and step count from 1; an id is None where an output has ended.

    The ids are equal where only the logits differ.
    """

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
        became = f"{self.recorded_text!r} became {self.replayed_text!r}"
        if self.recorded == self.replayed:
            became = f"{self.recorded_text!r} comes from other logits"
        return (
            f"{self.id}: token {self.token}, in step {self.step}: {became}; recorded: {then}; "
            f"here: {_shown(self.replayed_candidates)}"
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
    text = llm.tokenizer.token_text
    for start in range(0, len(recorded), at_once):
        part = recorded[start : start + at_once]
        reasons = [one.left_out or _impossible(llm, one) for one in part]
        runnable = [one for one, reason in zip(part, reasons, strict=True) if reason is None]
        params = [replace(one.sampling(), logprobs=None) for one in runnable]
        prompts = [one.prompt for one in runnable]
        outputs = iter(llm.generate(prompts, params, reports_logits=True) if runnable else [])
        for one, reason in zip(part, reasons, strict=True):
            if reason is not None:
                yield Replayed(one, left_out=reason)
                continue
            output = next(outputs)
            rows = [step.logits for step in output.steps if step.logits is not None]
            digests, logprobs = [row.digest for row in rows], [row.logprobs for row in rows]
            yield Replayed(one, find_difference(one, output.token_ids, digests, logprobs, text))


def other_model(llm: LLM, recorded: Sequence[Recorded]) -> list[str]:
    """The ways in which the model is another than the recorded one; a difference proves nothing then."""
    now = {"model_digest": model_digest(llm.config.model, llm.weights_digest), "dtype": precision_name(llm.model)}
    return [
        f"{name} is {value} here, and {', '.join(sorted(then))} in the record"
        for name, value in now.items()
        if (then := {getattr(one, name) for one in recorded}) != {value}
    ]


def find_difference(
    one: Recorded,
    tokens: Sequence[int],
    digests: Sequence[str],
    logprobs: Sequence[Mapping[Any, float]],
    text: Callable[[int], str],
) -> Difference | None:
    """The first token of a recorded sequence that differs, or of which the logits do where they are recorded.

    Args:
        tokens: the same request's here.
        digests: of the logits of each token here.
        logprobs: of each token here, by token id: its own, and the likeliest.
        text: from a token id to its text.
    """
    pairs = zip(one.output, tokens, one.logits or digests, digests, strict=False)
    shorter = min(len(one.output), len(tokens))
    at = next((i for i, (a, b, old, new) in enumerate(pairs) if a != b or old != new), shorter)
    if at == len(one.output) == len(tokens):
        return None
    ids = [known[at] if at < len(known) else None for known in (one.output, tokens)]
    texts = ["the end" if token is None else text(token) for token in ids]
    then = None if one.logprobs is None or at >= len(one.logprobs) else one.logprobs[at]
    return Difference(
        id=one.id,
        token=at + 1,
        step=one.step_of(at) + 1,
        recorded=ids[0],
        replayed=ids[1],
        recorded_text=texts[0],
        replayed_text=texts[1],
        recorded_candidates=None if then is None else _ranked(then, text),
        replayed_candidates=_ranked(logprobs[at] if at < len(logprobs) else {}, text),
    )


def _impossible(llm: LLM, one: Recorded) -> str | None:
    """The reason why the model or the engine here cannot run a request."""
    try:
        llm.request(one.prompt, one.sampling())
    except InvalidRequestError as error:
        return f"it cannot run here: {error}"
    if (size := len(one.prompt) + len(one.output)) > llm.engine.max_seq_len:
        return f"it has {size} tokens, and the context here has {llm.engine.max_seq_len}"
    return None


def _ranked(logprobs: Mapping[Any, float], text: Callable[[int], str]) -> list[Candidate]:
    ranked = sorted(((int(token), value) for token, value in logprobs.items()), key=lambda item: (-item[1], item[0]))
    return [Candidate(token, text(token), round(value, 4)) for token, value in ranked[: CANDIDATES + 1]]


def _shown(candidates: Sequence[Candidate]) -> str:
    return ", ".join(f"{one.text!r} {one.logprob:.3f}" for one in candidates) or "nothing"
