"""Acceptance against the distance of draft and target, for drafts of several qualities.

Distributions are toys, verifiers are real: each step draws a token from q, and a verifier decides on it. Rejection must
accept a share of Σ min(p, q) = 1 - D_LK(p, q). Acceptance therefore falls exactly with total variation, and
monotonically with the Kullback-Leibler divergence, which bounds total variation (Pinsker's inequality).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.config import SamplingParams
from outrider.verify.arrays import Floats
from outrider.verify.distribution import Context, TargetRows, probs
from outrider.verify.draft import Draft
from outrider.verify.noise import Noise
from outrider.verify.verifiers.base import DraftSampler, Verifier
from outrider_lab import theory

VOCAB = 24
CONTEXTS = 8  # pairs of distributions p and q, which steps use in turn
_SAMPLED = SamplingParams(temperature=1.0)


@dataclass(frozen=True)
class DraftQuality:
    """One draft quality: mean distances over contexts, and the share of one-token drafts accepted."""

    quality: float  # 1: the target itself, 0: unrelated to it
    kl: float  # KL(p || q), nats
    total_variation: float
    coupled: float  # the share that matching accepts, by theory
    accepted: dict[str, float]  # by verifier


def measure_draft_quality(
    verifiers: dict[str, Verifier], *, levels: int = 9, steps: int = 10_000, seed: int = 0
) -> list[DraftQuality]:
    """``levels`` drafts between the target and an unrelated one, ``steps`` verified steps with each verifier.

    log q lies on a straight line from log p to unrelated logits; both distances grow along it.
    """
    target, other = np.random.default_rng(seed).normal(scale=2.0, size=(2, CONTEXTS, VOCAB)).astype(np.float32)
    result = []
    for level, quality in enumerate(np.linspace(1, 0, levels)):
        draft = (quality * target + (1 - quality) * other).astype(np.float32)
        p, q = probs(target), probs(draft)
        result.append(
            DraftQuality(
                quality=float(quality),
                kl=float((p * np.log(p / q)).sum(axis=-1).mean()),
                total_variation=float(theory.d_lk(p, q).mean()),
                coupled=float(theory.coupled_acceptance(p, q).mean()),
                accepted={name: acceptance_rate(v, target, draft, steps, seed=level) for name, v in verifiers.items()},
            )
        )
    return result


def acceptance_rate(verifier: Verifier, target: Floats, draft: Floats, steps: int, seed: int = 0) -> float:
    """Share of ``steps`` one-token drafts that ``verifier`` keeps; ``target``, ``draft``: logits [contexts, vocab]."""
    noise = Noise(seed)
    nothing = Context((), ())
    accepted = 0
    for step in range(steps):
        row = step % len(target)
        log_q = np.log(probs(draft[row])).astype(np.float32)
        token = DraftSampler(noise, step, verifier.shares_noise, verifier.siblings).draw(log_q, depth=0, node=0)
        proposal = Draft.chain([token], q_logits=log_q[None])
        p = TargetRows(target[[row, row]], _SAMPLED, nothing, proposal)
        accepted += len(verifier(proposal, p, noise, step).path)
    return accepted / steps
