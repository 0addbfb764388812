"""Beam search that computes every row anew, written without a look at the product's: what tests compare with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams

Row = Callable[[tuple[int, ...]], NDArray[np.float32]]
"""Log-probabilities, float32 [vocab], after an output."""


@dataclass(frozen=True)
class Found:
    output: tuple[int, ...]
    total: float
    score: float


def search(row: Row, params: SamplingParams, stops: Sequence[int]) -> list[Found]:
    """All that was found, best first; groups are those of Vijayakumar et al. 2016."""
    width = params.beam_width // params.num_beam_groups
    live: list[list[tuple[tuple[int, ...], np.float32]]] = [
        [((), np.float32(0.0))] for _ in range(params.num_beam_groups)
    ]
    ended: list[list[Found]] = [[] for _ in live]
    for length in range(1, params.max_tokens + 1):
        used: NDArray[np.float32] | None = None
        for g in range(len(live)):
            if not live[g]:
                continue
            rows = []
            for output, total in live[g]:
                logprobs = row(output)
                if used is not None:
                    logprobs = logprobs - params.diversity_penalty * used
                rows.append(logprobs + total)
            flat = np.concatenate(rows)
            order = np.argsort(-flat, kind="stable").tolist()
            vocab = len(rows[0])
            going: list[tuple[tuple[int, ...], np.float32]] = []
            for rank, index in enumerate(order):
                if flat[index] == -np.inf:
                    break
                output = (*live[g][index // vocab][0], index % vocab)
                if output[-1] in stops or length == params.max_tokens:
                    if rank < width:
                        score = flat[index] / length**params.length_penalty
                        ended[g].append(Found(output, float(flat[index]), float(score)))
                elif len(going) < width:
                    going.append((output, flat[index]))
            ended[g] = sorted(ended[g], key=lambda found: -found.score)[:width]
            live[g] = going
            used = np.zeros(vocab, np.float32) if used is None else used
            for output, _ in going:
                used[output[-1]] += 1
            if _over(params, width, going, ended[g], length):
                live[g] = []
        if not any(live):
            break
    return sorted((found for group in ended for found in group), key=lambda found: -found.score)


def _over(
    params: SamplingParams, width: int, going: list[tuple[tuple[int, ...], np.float32]], ended: list[Found], length: int
) -> bool:
    if len(ended) < width:
        return False
    if params.early_stopping is True or not going:
        return True
    if params.early_stopping == "never" and params.length_penalty > 0:
        length = params.max_tokens
    return not float(going[0][1] / length**params.length_penalty) > ended[-1].score
