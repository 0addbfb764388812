"""``plan --what-if``: an answer without running anything, from a sentence or from numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

from outrider.analysis.cost import DraftCost, best_measured_k, break_even, measured_improvement, step_seconds
from outrider.analysis.roofline import HARDWARE, Hardware, Run, Size, assumptions, devices_needed
from outrider.errors import InvalidRequestError

MAX_K = 16
EXAMPLE = "a 70B on an H100 with a 1B draft at α 0.75"


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A target, a draft, a machine and a load. No draft model: a source that costs nothing (n-grams, lookup)."""

    target: Size
    hardware: Hardware
    alpha: float
    draft: Size | None = None
    batch: int = 1
    context: int = 512
    devices: int | None = None  # None: as many as hold the weights


@dataclass(frozen=True)
class Answer:
    """What a scenario comes to; ``by_k`` are (K, speedup, tokens per second of one request)."""

    scenario: Scenario
    hardware: Hardware
    best_k: int
    speedup: float
    plain_tokens_per_s: float
    c: float
    break_even_alpha: float | None
    free_rows: int
    by_k: list[tuple[int, float, float]]
    assumptions: list[str]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        return {
            "best_k": self.best_k,
            "speedup": round(self.speedup, 3),
            "plain_tokens_per_s": round(self.plain_tokens_per_s, 1),
            "tokens_per_s": round(self.plain_tokens_per_s * self.speedup, 1),
            "hardware": self.hardware.name,
            "c": round(self.c, 4),
            "break_even_alpha": None if self.break_even_alpha is None else round(self.break_even_alpha, 3),
            "free_rows": self.free_rows,
            "by_k": [{"k": k, "speedup": round(s, 3), "tokens_per_s": round(t, 1)} for k, s, t in self.by_k],
            "assumptions": self.assumptions,
            "notes": self.notes,
        }


def answer(scenario: Scenario) -> Answer:
    """Speedup for every K up to ``MAX_K``, the best of them, and what it rests on."""
    s, notes = scenario, []
    models = [s.target, *([s.draft] if s.draft else [])]
    needed = devices_needed(s.hardware, *models)
    hardware = s.hardware.times(s.devices or needed)
    if (s.devices or needed) < needed:
        notes.append(f"the weights do not fit into {hardware.memory / 1e9:.0f} GB: {needed} devices would hold them")
    elif s.devices is None and needed > 1:
        notes.append(
            f"the weights need {sum(m.weight_bytes for m in models) / 1e9:.0f} GB, so {needed} devices are assumed; "
            "fewer bits per weight (int8, 4-bit) would need fewer"
        )
    target = Run(s.target, hardware, s.context, s.batch)
    draft_run = None if s.draft is None else Run(s.draft, hardware, s.context, s.batch)
    draft = DraftCost() if draft_run is None else DraftCost(per_token=draft_run)
    rates = [s.alpha] * MAX_K
    best, speedup = best_measured_k(rates, target, draft, batch=s.batch)
    plain = 1 / step_seconds(0, target, draft, batch=s.batch)
    gains = [(k, measured_improvement(rates[:k], target, draft, batch=s.batch)) for k in range(MAX_K + 1)]
    even = break_even(max(best, 1), target, draft, batch=s.batch)
    if best == 0:
        notes.append(
            "do not speculate here: "
            + (f"it would pay from α = {even:.2f} on" if even is not None else "not even a perfect draft would pay")
        )
    if s.batch * (best + 1) > target.free_rows:
        notes.append(f"beyond {target.free_rows} rows a run is bound by arithmetic, and every further row costs time")
    return Answer(
        scenario=s,
        hardware=hardware,
        best_k=best,
        speedup=speedup,
        plain_tokens_per_s=plain,
        c=0.0 if draft_run is None else draft_run(s.batch) / target(s.batch),
        break_even_alpha=even,
        free_rows=target.free_rows,
        by_k=[(k, gain, gain * plain) for k, gain in gains],
        assumptions=assumptions(target, draft_run),
        notes=notes,
    )


_SIZE = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)\s*([BM])\b(?!\s*/s)", re.IGNORECASE)
_ALPHA = re.compile(r"(?:α|alpha|acceptance(?: rate)?)\s*(?:of|=|is|:)?\s*(\d*\.?\d+)\s*(%)?", re.IGNORECASE)
_BATCH = re.compile(r"batch(?: size)?\s*(?:of|=|is|:)?\s*(\d+)", re.IGNORECASE)
_CONTEXT = re.compile(r"context(?: length)?\s*(?:of|=|is|:)?\s*(\d+)\s*(k)?", re.IGNORECASE)
_BITS = re.compile(r"(\d+)[- ]?bits?\b|\b(?:fp|int|bf|q)(\d+)", re.IGNORECASE)
_DEVICES = re.compile(r"\b(\d+|two|four|eight)\s*(?:x|×)?\s*$", re.IGNORECASE)
_WORDS = {"two": 2, "four": 4, "eight": 8}


def parse(sentence: str) -> Scenario:
    """Read a scenario from a sentence such as ``EXAMPLE``.

    It names the target's size, a machine of ``HARDWARE`` and α; the size before the word "draft" is the draft's;
    batch, context, bits per weight and a number of devices are optional.

    Raises:
        InvalidRequestError: something needed is missing, with the words that were understood.
    """
    sizes = [(m, float(m[1]) * (1e9 if m[2].upper() == "B" else 1e6)) for m in _SIZE.finditer(sentence)]
    draft = next((pair for pair in sizes if re.match(r"\s*(?:\w+\s+)?draft", sentence[pair[0].end() :])), None)
    target = next((pair for pair in sizes if pair is not draft), None)
    names = sorted(HARDWARE, key=len, reverse=True)
    machine = next((m for n in names if (m := re.search(rf"\b{n.replace(' ', ' ?')}s?\b", sentence, re.I))), None)
    alpha = _ALPHA.search(sentence)
    missing = [
        what
        for what, found in (
            ("a target size such as 70B", target),
            (f"a machine ({', '.join(HARDWARE)})", machine),
            ("an acceptance rate such as α 0.75", alpha),
        )
        if found is None
    ]
    if target is None or machine is None or alpha is None:
        raise InvalidRequestError(f"what_if={sentence!r} lacks {' and '.join(missing)}: write it like {EXAMPLE!r}")
    hardware = next(h for n, h in HARDWARE.items() if n.replace(" ", "").lower() == _bare(machine[0]))
    rate = float(alpha[1]) / (100 if alpha[2] else 1)
    if not 0 <= rate <= 1:
        raise InvalidRequestError(f"what_if={sentence!r}: α is {rate:g}, but it is a probability, from 0 to 1")
    bits = _BITS.search(sentence)
    several = _DEVICES.search(sentence[: machine.start()])
    batch, context = _BATCH.search(sentence), _CONTEXT.search(sentence)
    size = Size(target[1], float(bits[1] or bits[2]) if bits else 16.0)
    return Scenario(
        target=size,
        hardware=hardware,
        alpha=rate,
        draft=None if draft is None else replace(size, parameters=draft[1]),
        batch=int(batch[1]) if batch else 1,
        context=int(context[1]) * (1024 if context[2] else 1) if context else 512,
        devices=(_WORDS.get(several[1].lower()) or int(several[1])) if several else None,
    )


def _bare(name: str) -> str:
    bare = name.replace(" ", "").lower()
    return bare if any(bare == n.replace(" ", "").lower() for n in HARDWARE) else bare.rstrip("s")
