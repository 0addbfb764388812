"""Decides one position: draws a guess from ``g``'s law, and keeps or replaces it so that the value has ``f``'s law.

Every random number depends on the seed and a position only. A position's value is a function of ``f``'s law, ``g``'s
law and the seed; with matching, of ``f``'s law and the seed alone. It depends neither on the number of guesses made
ahead nor on the order in which calls of ``f`` end. A guess for a prefix that did not come true is discarded, and its
noise is used again: no kept value depends on it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from outrider.config import SamplingParams
from outrider.errors import ConfigError, NumericalError
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.noise import Noise, Purpose
from outrider.verify.verifiers.base import DraftSampler
from outrider.verify.verifiers.catalog import VERIFIERS
from outrider_lab.speculation.laws import Density, Finite, Law, Point, Prefix, law_of

Rule: TypeAlias = Literal["matching", "rejection", "equality"]
Base: TypeAlias = Density | Callable[[Prefix], Density]

_SAMPLED = SamplingParams(temperature=1.0)
_NOTHING = Context((), ())

CAP = 1 - 2.0**-10
"""The largest probability of accepting a drawn value; see ``_by_density``."""
TRIES = 1 << 16
"""Draws from the residual, each kept with probability 2**-10 or more: all fail with probability below e**-64."""
POINTS = 1 << 20
"""Points of a shared race after which it is given up as endless."""


@dataclass(frozen=True)
class Guess:
    """A guessed value and its law."""

    value: Any
    law: Law  # the law that drew the value; a Point for a guess without a law


class Judge:
    """Draws and judges guesses for one call of ``speculate``."""

    def __init__(self, rule: Rule | None, noise: Noise, base: Base | None = None) -> None:
        self._rule, self._noise, self._base = rule, noise, base

    @property
    def seed(self) -> int:
        return self._noise.seed

    def needs_guess(self, p: Law) -> bool:
        """Whether a value drawn from ``p`` depends on ``g``; every position then needs a guess."""
        return not isinstance(p, Point) and self._rule_for(p) == "rejection"

    def guess(self, law: Law, prefix: Prefix) -> Guess:
        """Draw a guess for the position after ``prefix`` from ``g``'s law."""
        position = len(prefix)
        if isinstance(law, Point):
            return Guess(law.value, law)
        if isinstance(law, Finite):
            shares = VERIFIERS[self._rule_for(law)].shares_noise
            sampler = DraftSampler(self._noise, position, shares)
            return Guess(sampler.draw(law.log_weights, depth=0, node=0), law)
        if self._rule_for(law) == "matching":
            return Guess(self._race(law, prefix), law)
        value = law.sample(self._noise.generator(position, Purpose.DRAFT))
        return Guess(value, law)

    def decide(self, p: Law, guess: Guess | None, prefix: Prefix) -> tuple[Any, bool]:
        """The value after ``prefix``, and whether it is the guess. ``p``: ``f``'s law there.

        Raises:
            ConfigError: ``f`` and ``g`` gave laws of different kinds or supports.
            NumericalError: a density contradicts itself.
        """
        if isinstance(p, Point):
            return p.value, guess is not None and same(p.value, guess.value)
        if isinstance(p, Finite):
            return self._by_probability(p, guess, len(prefix))
        if self._rule_for(p) == "matching":
            value = self._race(p, prefix)
            return value, guess is not None and same(value, guess.value)
        return self._by_density(p, guess, len(prefix))

    def _rule_for(self, law: Law) -> Rule:
        """The rule for a law. By default probabilities are matched, and so are densities with a ``base``."""
        if self._rule is not None:
            return self._rule
        return "matching" if isinstance(law, Finite) or self._base is not None else "rejection"

    def _by_probability(self, p: Finite, guess: Guess | None, position: int) -> tuple[int, bool]:
        """Decide by the verifiers of tokens, with a draft of one token. Row 1, after it, is unused: a copy."""
        verify = VERIFIERS[self._rule_for(p)]
        draft = EMPTY if guess is None else _draft(p, guess, position)
        rows = TargetRows(np.tile(p.log_weights, (1 + len(draft), 1)), _SAMPLED, _NOTHING, draft)
        verdict = verify(draft, rows, self._noise, position)
        return (draft.tokens[0], True) if verdict.path else (verdict.token, False)

    def _by_density(self, p: Density, guess: Guess | None, position: int) -> tuple[Any, bool]:
        """Keep ``x`` drawn from q with probability min(CAP, p/q), else draw from the residual of p.

        Kept values have the density min(CAP q, p); the residual is p - min(CAP q, p) = max(0, p - CAP q). A draw from
        the residual is a draw from p that is kept with probability max(0, 1 - CAP q/p), and otherwise repeated. The sum
        of both densities is p for any CAP from 0 to 1. With CAP = 1, Leviathan et al.'s rule, the residual may be so
        small that the number of draws is unbounded. With CAP below 1, at least 1 - CAP of the draws are kept, so that
        TRIES refused draws show a wrong density, which is an error (Gerber and Lee 2020, discussion of Jacob et al.,
        bound the variance of couplings in this way).
        """
        rng = self._noise.generator(position, Purpose.RECOVER)
        if guess is None:
            return p.sample(rng), False
        q = guess.law
        if isinstance(q, Point | Finite):
            raise ConfigError(
                f"f gave a density at position {position} and g gave {_kind(q)}, which it could never keep: "
                "let g return a Density too"
            )
        x = guess.value
        log_q = _log_density(q, x, "g", position, drawn=True)
        log_ratio = _log_density(p, x, "f", position) - log_q
        if self._noise.uniform(position, Purpose.ACCEPT) < min(CAP, math.exp(min(log_ratio, 0.0))):
            return x, True
        for _ in range(TRIES):
            x = p.sample(rng)
            log_p = _log_density(p, x, "f", position, drawn=True)
            log_ratio = _log_density(q, x, "g", position) - log_p
            if rng.random() < 1 - CAP * math.exp(min(log_ratio, 1.0)):
                return x, False
        raise NumericalError(
            f"{TRIES} values drawn from f's density at position {position} are all likelier under g's: "
            "one of the two log_density functions is not normalised, or not that of its sample function"
        )

    def _race(self, law: Density, prefix: Prefix) -> Any:
        """Gumbel-max without a list of values: the same race decides for every law over the values.

        Points of a Poisson process over time and ``base`` arrive one by one. The point with the least time * base/law
        has the density ``law`` (Maddison et al. 2014, A* sampling; Li and El Gamal 2018). Two similar laws mostly have
        the same winner. Later points cannot win once time * exp(-log_bound) exceeds the best score.
        """
        position = len(prefix)
        if self._base is None:
            raise ConfigError(
                "verifier='matching' of densities needs base, a Density that f's is bounded by: "
                "give base, or use verifier='rejection'"
            )
        base = law_of(self._base(prefix) if callable(self._base) else self._base, "base", position)
        if not isinstance(base, Density):
            raise ConfigError(f"base={self._base!r} is not valid: give a Density, or a function that returns one")
        bound = getattr(law, "log_bound", None)
        if bound is None:
            raise ConfigError(f"{law!r} has no log_bound(base): define it, or use verifier='rejection'")
        log_bound = float(bound(base))
        rng = self._noise.generator(position, Purpose.MATCH)
        time, best, winner = 0.0, math.inf, None
        for _ in range(POINTS):
            time += rng.exponential()
            if math.log(time) - log_bound > best:
                return winner
            x = base.sample(rng)
            log_ratio = _log_density(law, x, "f", position) - _log_density(base, x, "base", position, drawn=True)
            if log_ratio > log_bound + 1e-9 * max(1.0, abs(log_bound)):
                raise NumericalError(
                    f"log_bound(base) is {log_bound:.6g} at position {position}, but at {x!r} the log-ratio of the "
                    f"densities is {log_ratio:.6g}: let log_bound return its largest value"
                )
            score = math.log(time) - log_ratio
            if score < best:
                best, winner = score, x
        raise NumericalError(
            f"no value at position {position} after {POINTS} draws from base: give a base that is closer to f's density"
        )


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal; arrays are equal if all their elements are."""
    if hasattr(a, "__array__") or hasattr(b, "__array__"):
        return bool(np.array_equal(np.asarray(a), np.asarray(b)))
    return bool(a == b)


def _draft(p: Finite, guess: Guess, position: int) -> Draft:
    if isinstance(guess.law, Finite):
        if len(guess.law) != len(p):
            raise ConfigError(
                f"f gave {len(p)} probabilities at position {position} and g gave {len(guess.law)}: "
                "give as many, zeros where a value is impossible"
            )
        return Draft.chain([guess.value], q_logits=guess.law.log_weights[None])
    if isinstance(guess.law, Point):
        value = guess.value
        if isinstance(value, int | np.integer) and 0 <= value < len(p):
            return Draft.chain([int(value)])
        raise ConfigError(
            f"g guessed {value!r} at position {position}, where f gave {len(p)} probabilities: "
            f"use a whole number from 0 to {len(p) - 1}"
        )
    raise ConfigError(
        f"f gave probabilities at position {position} and g gave a density: let g return {len(p)} probabilities"
    )


def _kind(law: Point | Finite) -> str:
    return f"the value {law.value!r}" if isinstance(law, Point) else f"{len(law)} probabilities"


def _log_density(law: Density, x: Any, who: str, position: int, *, drawn: bool = False) -> float:
    """``law.log_density(x)``, which is neither NaN nor +inf, nor -inf where ``x`` was drawn from ``law``."""
    value = float(law.log_density(x))
    if math.isnan(value) or value == math.inf:
        raise NumericalError(f"the log_density of {who} at position {position} is {value} for {x!r}: use finite ones")
    if drawn and value == -math.inf:
        raise NumericalError(
            f"{who} drew {x!r} at position {position}, where its log_density is -inf: "
            "sample and log_density are of different distributions"
        )
    return value
