"""Lookahead: the window's trajectories, the pool, and Jacobi decoding as the simplest case."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from outrider.config import SamplingParams
from outrider.drafters.api import Outcome
from outrider.engine.request import Request
from outrider.models.toy import TableModel
from outrider.verify.distribution import Context, TargetRows
from outrider.verify.draft import EMPTY, Draft, Verdict
from outrider.verify.tree import depths, path_to
from outrider_drafters.lookahead import GuessPool, LookaheadDrafter
from tests.drafters.views import grow, request
from tests.engine.counting import CYCLE, counting
from tests.small_engines import engine, generate, run
from tests.small_engines import request as ask

VOCAB = 50


def successor(text: list[int]) -> int:
    """A target that is easily followed: the sum of the last two tokens, and one."""
    return (sum(text[-2:]) + 1) % VOCAB


def position(text: list[int]) -> int:
    """A target that looks only at where it is, so that one iteration finds everything."""
    return len(text) % VOCAB


def outcome(
    view: Request, draft: Draft, path: tuple[int, ...], successor: Callable[[list[int]], int] = successor
) -> Outcome:
    """What the target says after every node, with ``path`` accepted."""
    logits = np.zeros((1 + len(draft), VOCAB), np.float32)
    for row in range(1 + len(draft)):
        text = [*view.tokens, *(draft.tokens[i] for i in path_to(draft.parents, row - 1))]
        logits[row, successor(text)] = 1.0
    committed = [draft.tokens[i] for i in path]
    committed.append(successor([*view.tokens, *committed]))
    p = TargetRows(logits, view.params, Context(view.prompt, view.output), draft)
    view.tokens += committed
    return Outcome(view, draft, Verdict(path, committed[-1]), tuple(committed), p)


def start(window: int, ngram: int, guesses: int, prompt: list[int]) -> tuple[LookaheadDrafter, Request]:
    options = {"draft": "lookahead", "lookahead": (window, ngram, guesses)}
    drafter, view = LookaheadDrafter(), request(prompt, speculation=options)
    drafter.start(view)
    return drafter, view


def test_the_pool_keeps_the_latest() -> None:
    pool = GuessPool(3, 2)
    pool.read([1, 2, 3, 1, 4, 5])
    assert list(pool.behind(1)) == [(4, 5), (2, 3)]
    assert list(pool.behind(3)) == [(1, 4)]
    assert list(pool.behind(4)) == []  # not yet followed by two tokens
    pool.read([1, 2, 3, 1, 4, 5, 9])
    assert list(pool.behind(4)) == [(5, 9)]
    pool.add(1, (2, 3))
    assert list(pool.behind(1)) == [(2, 3), (4, 5)]
    pool.add(1, (7, 7))
    assert list(pool.behind(1)) == [(7, 7), (2, 3)]
    nothing = GuessPool(2, 0)
    nothing.read([1, 2, 3])
    assert list(nothing.behind(1)) == []


def test_the_tree_of_a_window() -> None:
    """Level 0 is a chain from the root; node (1, i) hangs from node (0, i)."""
    drafter, view = start(3, 3, 0, list(range(10, 20)))
    (draft,) = drafter.propose([view], [6])
    state = drafter._states[view.id]
    assert len(state.columns) == 3
    assert depths(draft.parents) == [0, 1, 1, 2, 2, 3] or len(draft) < 6  # equal siblings are one node
    paths = [[draft.tokens[n] for n in path_to(draft.parents, node)] for node in range(len(draft))]
    for i, column in enumerate(state.columns):
        assert [*(c[0] for c in state.columns[: i + 1]), *column[1:]] in paths


def test_an_iteration_follows_the_target() -> None:
    """Every column gains what the target says after it, having seen level 0 before it, and drops its oldest token."""
    drafter, view = start(3, 3, 2, list(range(10, 20)))
    (draft,) = drafter.propose([view], [12])
    before = list(drafter._states[view.id].columns)
    text = list(view.tokens)
    drafter.observe([outcome(view, draft, ())])
    columns = drafter._states[view.id].columns
    for i in range(3):
        seen = [*text, *(c[0] for c in before[: i + 1]), *before[i][1:]]
        assert columns[i] == (before[i][1], successor(seen))
        assert (before[i][1], successor(seen)) in drafter._states[view.id].pool.behind(before[i][0])


def test_columns_move_with_accepted_tokens() -> None:
    drafter, view = start(4, 3, 0, list(range(10, 20)))
    (draft,) = drafter.propose([view], [8])
    state = drafter._states[view.id]
    first = draft.parents.index(-1)
    drafter.observe([outcome(view, draft, (first,))])  # two tokens committed
    assert len(state.columns) == 3
    (draft,) = drafter.propose([view], [8])
    assert len(state.columns) == 4


def test_another_draft_s_outcome_only_moves_the_window() -> None:
    drafter, view = start(3, 3, 2, [1, 2, 3, 4])
    drafter.propose([view], [8])
    columns = list(drafter._states[view.id].columns)
    grow(drafter, view, [7, 8], EMPTY)
    assert drafter._states[view.id].columns == columns[1:]


@pytest.mark.parametrize("budget", range(0, 13))
def test_short_budgets(budget: int) -> None:
    drafter, view = start(4, 3, 2, [1, 2, 3, 1, 2, 4, 1])
    (draft,) = drafter.propose([view], [budget])
    assert len(draft) <= budget
    if budget >= 2:
        paths = [[draft.tokens[i] for i in path_to(draft.parents, n)] for n in range(len(draft))]
        assert [2, 4] in paths  # the latest of the pool's n-grams goes first
    drafter.observe([outcome(view, draft, ())])


def test_jacobi_decoding() -> None:
    """N = 2 without guesses: all guesses are improved at once, and kept when they are right."""
    drafter, view = start(5, 2, 0, [1, 2])
    accepted = []
    for _ in range(6):
        (draft,) = drafter.propose([view], [5])
        assert draft.is_chain
        text = list(view.tokens)
        path: list[int] = []
        while len(path) < len(draft) and draft.tokens[len(path)] == position(text):
            text.append(draft.tokens[len(path)])
            path.append(len(path))
        accepted.append(len(path))
        drafter.observe([outcome(view, draft, tuple(path), position)])
    assert accepted == [0, 5, 0, 5, 0, 5]


def test_one_token_of_text() -> None:
    drafter, view = start(2, 4, 1, [5])
    (draft,) = drafter.propose([view], [9])
    assert set(draft.tokens) == {5}
    drafter.finish(view.id)
    drafter.finish(view.id)


@pytest.mark.parametrize("ngram", [2, 3, 4])
def test_repetitive_text_comes_in_fewer_runs(ngram: int) -> None:
    target = counting()
    r = ask([1, 2, 3], SamplingParams(max_tokens=60), draft="lookahead", lookahead=(5, ngram, 3))
    run(engine(target), r)
    assert list(r.output) == [(4 + i) % CYCLE for i in range(60)]
    assert r.stats.draft_error is None
    assert r.stats.target_runs < 45


def test_output_is_the_target_s() -> None:
    target = TableModel.random(7, 2, seed=3)
    served = engine(target)
    for seed in range(4):
        params = SamplingParams(temperature=1.0, seed=seed, max_tokens=30)
        plain = generate(served, [1, 2, 3], params)
        assert generate(served, [1, 2, 3], params, draft="lookahead") == plain
