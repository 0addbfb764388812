"""The covering that the fast suite takes of large products."""

from __future__ import annotations

from itertools import combinations

from tests.pairwise import pairwise, slow_unless, spread


def test_every_allowed_pair_is_there() -> None:
    factors = (range(5), "abc", (True, False), range(4))

    def allowed(number: int, letter: str, flag: bool, other: int) -> bool:
        return not (flag and letter == "a") and number != other

    rows = pairwise(*factors, allowed=allowed)
    assert all(allowed(*row) for row in rows)
    possible = {
        (i, a, j, b)
        for n in factors[0] for letter in factors[1] for flag in factors[2] for o in factors[3]
        if allowed(n, letter, flag, o)
        for (i, a), (j, b) in combinations(enumerate((n, letter, flag, o)), 2)
    }  # fmt: skip
    assert {(i, a, j, b) for row in rows for (i, a), (j, b) in combinations(enumerate(row), 2)} == possible
    assert len(rows) <= 30
    assert rows == pairwise(*factors, allowed=allowed)


def test_one_row_for_each_value() -> None:
    rows = spread([(letter, n) for letter in "abcd" for n in range(2)], factor=0)
    assert [letter for letter, _ in rows] == list("abcd")
    assert sorted(n for _, n in rows) == [0, 0, 1, 1]


def test_the_others_are_slow() -> None:
    marks = [param.marks for param in slow_unless([(1, "a"), (2, "b")], [(2, "b")])]
    assert [bool(mark) for mark in marks] == [True, False]
