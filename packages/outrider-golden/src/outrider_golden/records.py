"""Conversations of the golden model: its record of a test, compared with the golden one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from outrider.recording.records import Recorded
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_server.replaying import Difference, find_difference

__all__ = ["compare", "golden_lines"]

_AROUND = 8  # tokens shown before and behind a place


def golden_lines(found: Sequence[Recorded], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """The lines of a golden file: a record without the time and the machine.

    Args:
        found: of the test.
        tokenizer: gives the prompts as text, for readers.
    """
    lines = []
    for number, one in enumerate(found, 1):
        rows = [{token: round(value, 4) for token, value in row.items()} for row in one.logprobs or ()]
        kept = replace(
            one, id=f"conversation {number}", time="", processor="", logits=None, logprobs=rows,
            prompt_text=_text(one.prompt, tokenizer),
        )  # fmt: skip
        lines.append(asdict(kept))
    return lines


def compare(golden: Sequence[Recorded], found: Sequence[Recorded], tokenizer: Tokenizer) -> str:
    """The first difference, in lines of text; "" if there is none.

    Conversations are paired by prompt and options, as those of several threads may come in any order.
    """
    left = list(golden)
    for number, now in enumerate(found, 1):
        then = next((one for one in left if (one.prompt, one.params) == (now.prompt, now.params)), None)
        if then is None:
            return "\n".join([f"conversation {number} is none of the golden ones", *_asked(left, now, tokenizer)])
        left.remove(then)
        known = replace(then, logits=None)  # tokens count: another version may round logits in another way
        difference = find_difference(known, now.output, now.logits or (), now.logprobs or (), tokenizer.token_text)
        if difference is not None:
            return "\n".join([*_said(number, difference, then, now), *_models(then, now)])
    if left:
        return f"{len(left)} of {len(golden)} golden conversations were not held; the first: {left[0].prompt_text!r}"
    return ""


def _said(number: int, difference: Difference, then: Recorded, now: Recorded) -> list[str]:
    shown = [
        "not recorded" if row is None else ", ".join(f"{one.text!r} {one.logprob:.4f}" for one in row) or "nothing"
        for row in (difference.recorded_candidates, difference.replayed_candidates)
    ]
    return [
        f"conversation {number}: token {difference.token}, in step {difference.step}, differs: "
        f"{difference.recorded_text!r} became {difference.replayed_text!r}",
        f"  golden log-probabilities: {shown[0]}",
        f"  log-probabilities here:   {shown[1]}",
        f"  golden text: {then.text!r}",
        f"  text here:   {now.text!r}",
    ]


def _asked(left: Sequence[Recorded], now: Recorded, tokenizer: Tokenizer) -> list[str]:
    """The place where a prompt, or the option in which a request, leaves the next golden one."""
    if not left:
        return ["  there are no more golden ones", f"  prompt here: {_text(now.prompt, tokenizer)!r}"]
    then = left[0]
    if then.prompt == now.prompt:
        return [f"  golden options: {then.params}", f"  options here:   {now.params}"]
    pairs = zip(then.prompt, now.prompt, strict=False)
    shorter = min(len(then.prompt), len(now.prompt))
    at = next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)
    around = slice(max(0, at - _AROUND), at + _AROUND)
    return [
        f"  token {at + 1} of the prompt differs",
        f"  golden prompt there: {_text(then.prompt[around], tokenizer)!r}",
        f"  prompt there here:   {_text(now.prompt[around], tokenizer)!r}",
    ]


def _models(then: Recorded, now: Recorded) -> list[str]:
    """A note where the model is another one, whose tokens may differ."""
    pairs = [("model", "model_digest"), ("precision", "dtype"), ("version", "version")]
    return [
        f"  golden {name}: {getattr(then, field)}, here: {getattr(now, field)}"
        for name, field in pairs
        if getattr(then, field) != getattr(now, field)
    ]


def _text(ids: Sequence[int], tokenizer: Tokenizer) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)
