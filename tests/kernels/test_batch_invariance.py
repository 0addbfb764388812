"""The probe finds where a layer's order of additions changes, and calls stay inside that range."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from outrider.kernels.linear.batch_invariance import (
    LONGEST,
    InvariantRange,
    LinearFunction,
    few_sizes,
    invariant_range,
    run_in_range,
)

WEIGHT = torch.empty(24, 40)


def halves(x: Tensor, weight: Tensor) -> Tensor:
    """The same product, added up in another order."""
    cut = weight.shape[1] // 2
    return x[:, :cut] @ weight[:, :cut].T + x[:, cut:] @ weight[:, cut:].T


def row_by_row(x: Tensor, weight: Tensor) -> Tensor:
    return torch.cat([(row * weight).sum(dim=1)[None] for row in x])


def changes_above(weight: Tensor) -> LinearFunction:
    return lambda x: halves(x, weight) if len(x) > 32 else row_by_row(x, weight)


def changes_below(weight: Tensor) -> LinearFunction:
    return lambda x: halves(x, weight) if len(x) < 4 else row_by_row(x, weight)


def changes_in_the_tail(weight: Tensor) -> LinearFunction:
    """Whole groups of 16 rows by one kernel, the rest by another."""

    def run(x: Tensor) -> Tensor:
        whole = len(x) // 16 * 16 if len(x) > 16 else len(x)
        return torch.cat([row_by_row(x[:whole], weight), *([halves(x[whole:], weight)] if whole < len(x) else [])])

    return run


def never_changes(weight: Tensor) -> LinearFunction:
    return lambda x: row_by_row(x, weight)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (changes_above, InvariantRange(1, 32)),
        (changes_below, InvariantRange(4, LONGEST)),
        (changes_in_the_tail, InvariantRange(1, 16, (256, 320, 512, 640, 768, 1024))),
        (never_changes, InvariantRange(1, LONGEST)),
    ],
)
def test_it_finds_where_results_change(make, expected) -> None:  # type: ignore[no-untyped-def]
    assert invariant_range(make, WEIGHT) == expected


@pytest.mark.parametrize("n", [1, 3, 4, 10, 11, 20, 23, 31, 40, 64, 100, 129])
@pytest.mark.parametrize("larger", [(), (40, 64)])
def test_calls_stay_in_range(n: int, larger: tuple[int, ...]) -> None:
    weight, x = torch.randn(5, 6), torch.randn(n, 6)
    sizes: list[int] = []

    def run(part: Tensor) -> Tensor:
        sizes.append(len(part))
        return part @ weight.T

    y = run_in_range(run, x, InvariantRange(4, 10, larger))
    assert torch.allclose(y, x @ weight.T, atol=1e-5)
    assert y.shape == (n, 5)
    assert all(4 <= size <= 10 or size in larger for size in sizes)
    assert sum(sizes) <= 2 * n + 4  # of padding


def test_calls_come_in_few_sizes_since_each_is_a_compiled_kernel() -> None:
    sizes: set[int] = set()

    def run(part: Tensor) -> Tensor:
        sizes.add(len(part))
        return part

    for n in range(1, LONGEST + 1):
        x = torch.arange(n, dtype=torch.float32)[:, None]
        assert torch.equal(run_in_range(run, x, InvariantRange(1, LONGEST)), x)
    assert len(sizes) < 60
    assert sizes >= set(range(1, 17))  # a few rows are not padded at all
    assert all(few_sizes(n) <= n * 9 / 8 for n in range(1, 2000))
