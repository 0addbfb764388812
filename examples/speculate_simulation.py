"""A queue through a day, minute by minute: the exact law of the next length is slow, a normal approximation is not.

Calls arrive at a rate that changes through the day, and a changing number of agents answers them. The law of the
queue's length a minute on is a row of a matrix exponential. ``--picture FILE`` draws the day; it needs matplotlib.
"""

import argparse

import numpy as np
from scipy.sparse import diags_array
from scipy.sparse.linalg import expm_multiply
from scipy.special import ndtr

from outrider import speculate
from outrider_lab.speculation import Result

SIZE = 400  # longest queue
MINUTES = 12 * 60


def arrivals(minute: int) -> float:
    """Calls a minute: a morning and an afternoon peak."""
    return 6 + 22 * np.exp(-(((minute - 150) / 60) ** 2)) + 18 * np.exp(-(((minute - 480) / 80) ** 2))


def agents(minute: int) -> int:
    return 30 if minute % 360 < 90 else 60


def departures(minute: int, queue: int | np.ndarray) -> float | np.ndarray:
    """Calls that end in a minute: each agent takes three minutes, callers who wait give up after twenty."""
    served = np.minimum(queue, agents(minute))
    return served / 3 + (queue - served) / 20


def exact_law(prefix: tuple[int, ...]) -> np.ndarray:
    """The length a minute on, by the master equation: dp/dt = p Q. The slow function f."""
    minute, up = len(prefix) - 1, np.full(SIZE, arrivals(len(prefix) - 1))
    down = np.asarray(departures(minute, np.arange(1, SIZE + 1)))
    rates = diags_array([up, down, -np.append(up, 0) - np.append(0, down)], offsets=[1, -1, 0], format="csr")
    now = np.zeros(SIZE + 1)
    now[prefix[-1]] = 1.0
    law = np.maximum(expm_multiply(rates.T, now), 0.0)
    return law / law.sum()


def approximate_law(prefix: tuple[int, ...]) -> np.ndarray:
    """The same to second order: a normal distribution, cut into whole numbers. The guess g."""
    minute, queue = len(prefix) - 1, prefix[-1]
    rate, leaving = arrivals(minute), float(departures(minute, queue))
    slope = float(departures(minute, queue + 1)) - leaving
    shrink = -np.expm1(-slope) / slope
    mean, sd = queue + (rate - leaving) * shrink, np.sqrt((rate + leaving) * shrink * (1 + np.exp(-slope)) / 2)
    edges = ndtr((np.arange(SIZE + 2) - 0.5 - mean) / sd)
    edges[0], edges[-1] = 0.0, 1.0
    return np.diff(edges)


def main(minutes: int = MINUTES, draft_length: int = 8) -> tuple[Result, Result]:
    """Simulate the day with and without guesses; returns both."""
    plain = speculate(exact_law, None, minutes, start=[0], seed=3, draft_length=0)
    drafted = speculate(exact_law, approximate_law, minutes, start=[0], seed=3, draft_length=draft_length)
    print(f"{minutes} minutes, {plain.report.rounds} waits for the exact law, {drafted.report.rounds} with guesses")
    print("the same day" if drafted.values == plain.values else "DIFFERENT", "with and without guesses")
    print(drafted.report)
    return plain, drafted


def draw(plain: Result, drafted: Result, path: str) -> None:
    from outrider_lab.figures.page import COLOURS, GREY, pyplot

    plt = pyplot()
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.6, 3.4), width_ratios=(1.7, 1))
    hours = np.arange(len(drafted)) / 60 + 8
    wrong = [i for i, origin in enumerate(drafted.origins) if origin == "recovered"]
    left.plot(hours, drafted.values, color=COLOURS[0], linewidth=1.0, label="callers")
    left.plot(hours[wrong], np.array(drafted.values)[wrong], ".", color=COLOURS[5], label="a guess put right")
    left.step(hours, [agents(i) for i in range(len(drafted))], color=GREY, linestyle=":", label="agents")
    left.set(
        title=f"A day in {drafted.report.rounds} waits for the exact law, not {plain.report.rounds}", xlabel="hour"
    )
    left.legend(loc="upper right", fontsize=8)
    minute = min(50, len(drafted) - 1)
    prefix = (0, *drafted.values[:minute])
    p, q = exact_law(prefix), approximate_law(prefix)
    near = np.flatnonzero(p > 1e-3)
    right.bar(near, p[near], color=COLOURS[0], alpha=0.5, label="exact law")
    right.plot(near, q[near], "o--", color=COLOURS[5], markersize=3, linewidth=1, label="guess")
    right.set(title=f"{np.minimum(p, q).sum():.1%} in common after {minute} minutes", xlabel="callers a minute on")
    right.legend(loc="upper left", fontsize=8)
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--picture", metavar="FILE")
    path = parser.parse_args().picture
    plain, drafted = main()
    if path:
        draw(plain, drafted, path)
