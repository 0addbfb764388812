"""Figure of the adaptive draft length: expected tokens, time of a forward pass, and tokens per second."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from draw import AMBER, BLUE, DIM, GREEN, GREY, Drawing

TIMES = ((1, 10.0), (2, 10.0), (4, 10.0), (8, 11.3), (16, 13.7), (32, 19.0))  # rows, ms: a small model on a CPU
OVERHEAD = 0.3  # ms of a step outside the forward pass
RATES = {0.9: GREEN, 0.75: BLUE, 0.5: AMBER}  # acceptance rates
MOST = 24  # draft tokens


def milliseconds(rows: float) -> float:
    """T(rows), linear between the measured numbers."""
    low, high = next(pair for pair in pairwise(TIMES) if rows <= pair[1][0])
    return low[1] + (high[1] - low[1]) * (rows - low[0]) / (high[0] - low[0])


def expected(alpha: float, n: int) -> float:
    """Tokens of a step with a chain of n draft tokens (Leviathan et al. 2023, equation 1)."""
    return (1 - alpha ** (n + 1)) / (1 - alpha)


def per_second(alpha: float, n: int) -> float:
    return 1000 * expected(alpha, n) / (milliseconds(1 + n) + OVERHEAD)


def adaptive_length() -> Drawing:
    d = Drawing(720, 268)
    curves = [(color, lambda n, a=alpha: expected(a, n)) for alpha, color in RATES.items()]
    _plot(d, 48, "expected tokens E(n)", 10, 2, curves)
    _plot(d, 282, "forward pass T(1 + n), ms", 20, 5, [(GREY, lambda n: milliseconds(1 + n))])
    rates = [(color, lambda n, a=alpha: per_second(a, n)) for alpha, color in RATES.items()]
    _plot(d, 516, "tokens/s = E / (T + overhead)", 600, 150, rates, peaks=True)
    d.legend(48, 250, {f"acceptance rate {alpha:g}": color for alpha, color in RATES.items()})
    d.text(516, 250, "dot: the length that is chosen", size=12, color=DIM)
    return d


def _plot(
    d: Drawing, x: float, title: str, top: float, tick: float,
    curves: Sequence[tuple[str, Callable[[int], float]]], *, peaks: bool = False,
) -> None:  # fmt: skip
    """Curves over n = 0 .. MOST draft tokens, on axes from 0 to ``top``."""
    width, height, base = 180.0, 150.0, 200.0
    d.text(x, 22, title, size=12, bold=True)
    d.line(x, base, x + width, base)
    d.line(x, base - height, x, base)
    for i in range(int(top / tick) + 1):
        d.text(x - 5, base - height * i * tick / top, f"{i * tick:g}", size=10, color=DIM, anchor="end")
    for n in range(0, MOST + 1, 8):
        d.text(x + width * n / MOST, base + 12, f"{n}", size=10, color=DIM, anchor="middle")
    d.text(x + width / 2, base + 28, "draft tokens n", size=11, color=DIM, anchor="middle")
    for color, value in curves:
        points = [(x + width * n / MOST, base - height * value(n) / top) for n in range(MOST + 1)]
        for (x1, y1), (x2, y2) in pairwise(points):
            d.line(x1, y1, x2, y2, color=color, width=2)
        if peaks:
            px, py = points[max(range(MOST + 1), key=value)]
            d.box(px - 4, py - 4, 8, 8, color=color, strength=1)


FIGURES = {"adaptive-length": adaptive_length}
