"""Candidates that were not measured: acceptance rates from the literature, costs from a roofline model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log10
from typing import Literal

from outrider.errors import ConfigError
from outrider.utils.suggest import unknown
from outrider_lab.candidates import MAX_DEPTH, SourceCandidate
from outrider_lab.cost import DraftCost
from outrider_lab.roofline import Hardware, ModelSize, Roofline

TextKind = Literal["repetitive", "mixed", "novel"]
TEXTS: tuple[TextKind, ...] = ("repetitive", "mixed", "novel")


@dataclass(frozen=True, kw_only=True)
class DescribedWorkload:
    """A user's knowledge of a workload without measurements."""

    target: ModelSize
    hardware: Hardware
    draft: ModelSize | None = None  # a smaller model of the same vocabulary, if there is one
    can_train: bool = False
    text: TextKind = "mixed"
    temperature: float = 0.0
    batch: int = 1
    context: int = 512
    output_tokens: int = 256

    def __post_init__(self) -> None:
        if self.text not in TEXTS:
            raise ConfigError(unknown("text", self.text, TEXTS))
        if self.temperature < 0 or self.batch < 1 or self.output_tokens < 1:
            raise ConfigError(
                f"temperature={self.temperature}, batch={self.batch}, "
                f"output_tokens={self.output_tokens} describe no workload"
            )


def candidates(load: DescribedWorkload, hardware: Hardware) -> list[SourceCandidate]:
    """Sources with acceptance rates from the literature (and from ``benchmarks/``).

    Sampling at temperature 1 lowers acceptance by 0.02 to 0.13 (Leviathan et al. 2023, table 3).
    """
    colder = 0.1 * min(load.temperature, 1.0)
    match, share = {"repetitive": (0.8, 0.9), "mixed": (0.5, 0.6), "novel": (0.3, 0.4)}[load.text]
    lookup_cost = DraftCost(per_step=20e-6)
    found = [
        SourceCandidate(
            "lookup",
            _falling(match - colder, 0.97),
            lookup_cost,
            f"copies from the text, costs nothing; about {match - colder:.2f} of it accepted in {load.text} text",
            share,
        ),
        SourceCandidate(
            "ngram",
            _falling(match - 0.08 - colder, 0.95),
            lookup_cost,
            f"tables learned as it goes, cost nothing; about {match - 0.08 - colder:.2f} accepted",
            min(1.0, share + 0.1),
        ),
    ]
    if load.draft is not None:
        alpha = expected_alpha(load.target, load.draft) - colder
        found.append(
            SourceCandidate(
                "model",
                (alpha,) * MAX_DEPTH,
                DraftCost(per_token=Roofline(load.draft, hardware, load.context, load.batch)),
                f"a draft model {load.target.parameters / load.draft.parameters:.0f} times smaller is usually right "
                f"with about {alpha:.2f} of its tokens",
                siblings=_by_rank(alpha),
            )
        )
    if load.can_train:
        head = ModelSize(load.target.parameters / load.target.layers, load.target.weight_bits)
        cost = DraftCost(per_token=Roofline(head, hardware, load.context, load.batch))
        found += [
            SourceCandidate("eagle", (0.78 - colder,) * MAX_DEPTH, cost,
                      "a trained layer on the target's hidden states: τ 4.3 at temperature 0 (EAGLE-2, Spec-Bench)",
                      siblings=_by_rank(0.78 - colder)),
            SourceCandidate("medusa", _falling(0.68 - colder, 0.85)[:5],
                      DraftCost(per_step=cost.per_token(load.batch) / 4),
                      "trained heads, one pass for all depths: τ 2.3 (Medusa, Spec-Bench)",
                      siblings=_by_rank(0.68 - colder)),
        ]  # fmt: skip
    return found


MEASURED_ALPHA: Mapping[TextKind, float] = {"repetitive": 0.55, "mixed": 0.42, "novel": 0.24}
"""α of sources that only copy, by kind of text.

With these α, a chain of K = 10 gives the tokens per forward pass that ``lookup`` with K = 10 gave with SmolLM2-135M on
Spec-Bench (48 questions, docs/choosing.md): 2.21 in retrieval, 1.72 in all, 1.31 in MT-bench's chat. α joins the share
of steps with a draft and the agreement of its tokens in one number.
"""


def default_alpha(text: TextKind, target: ModelSize, draft: ModelSize | None) -> tuple[float, str]:
    """An α without measurements, and its origin in words. Raises ConfigError for an unknown kind of text."""
    if text not in TEXTS:
        raise ConfigError(unknown("text", text, TEXTS))
    if draft is not None:
        return expected_alpha(target, draft), "from the ratio of the models' sizes (Leviathan et al. 2023, table 3)"
    about = f"as prompt lookup had on Spec-Bench with SmolLM2-135M, {text} text (docs/choosing.md)"
    return MEASURED_ALPHA[text], about


def expected_alpha(target: ModelSize, draft: ModelSize) -> float:
    """A prior for a draft model of the same family: 0.8 at a tenth of the size, 0.1 less for each further tenth.

    Between the values of Leviathan et al. (2023, table 3): T5 0.82 at 1/14, 0.75 at 1/143;
    LaMDA 0.75 at 1/17, 0.61 at 1/1370.
    """
    ratio = max(1.0, target.parameters / draft.parameters)
    return min(0.9, max(0.3, 0.9 - 0.1 * log10(ratio)))


def _falling(first: float, factor: float) -> tuple[float, ...]:
    """Rates that fall with depth by ``factor``, as the rates of copied text do."""
    return tuple(max(0.0, first) * factor**depth for depth in range(MAX_DEPTH))


def _by_rank(alpha: float) -> tuple[float, ...]:
    """Acceptance by rank below one node: each further sibling takes a third of the rest.

    A prior only: Sequoia (Chen et al. 2024) measures these rates for pairs of models, and they fall quickly.
    """
    rates, left = [alpha], 1 - alpha
    for _ in range(4):
        rates.append(left / 3)
        left -= rates[-1]
    return tuple(rates)
