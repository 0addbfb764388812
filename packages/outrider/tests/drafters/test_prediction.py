"""Expected text: copied while the output agrees with it, found again after a mismatch."""

from __future__ import annotations

import random

import pytest

from outrider.drafters.text.prediction import LOST, UNSURE, PredictionDrafter
from outrider.engine.request import Request
from outrider.verify.draft import EMPTY
from outrider.verify.tree import children
from tests.drafters.views import grow, request

TEXT = list(range(100, 160))


def started(prediction: list[int] | None, **options: object) -> tuple[PredictionDrafter, Request]:
    drafter, view = PredictionDrafter(), request([1, 2], speculation={"prediction": prediction} | options)
    drafter.start(view)
    return drafter, view


def chain(drafter: PredictionDrafter, view: Request, budget: int = 6) -> tuple[int, ...]:
    """The draft's first branch."""
    (draft,) = drafter.propose([view], [budget])
    path, below = [], children(draft.parents)
    node = -1
    while below[node + 1]:
        node = below[node + 1][0]
        path.append(draft.tokens[node])
    return tuple(path)


def test_the_whole_text() -> None:
    drafter, view = started(TEXT)
    for at in range(0, 60, 7):
        assert chain(drafter, view) == tuple(TEXT[at : at + 6])
        grow(drafter, view, TEXT[at : at + 7])
    assert drafter.propose([view], [6]) == [EMPTY]


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([*TEXT[:10], 7], TEXT[11]),  # one token replaced
        ([*TEXT[:10], 7, TEXT[11], TEXT[12]], TEXT[13]),  # and found again
        ([*TEXT[:10], 7, 8, 9, TEXT[10], TEXT[11]], TEXT[12]),  # inserted
        ([*TEXT[:10], TEXT[20], TEXT[21]], TEXT[22]),  # left out
        ([*TEXT[30:33]], TEXT[33]),  # starts late
        ([*TEXT[30:40], *TEXT[:3]], TEXT[3]),  # goes back
    ],
)
def test_found_again(output: list[int], expected: int) -> None:
    drafter, view = started(TEXT)
    for token in output:
        grow(drafter, view, [token])
        drafter.propose([view], [6])
    assert chain(drafter, view)[0] == expected
    at_once, other = started(TEXT)
    grow(at_once, other, output)
    assert chain(at_once, other) == chain(drafter, view)


def test_the_nearest_of_equal_agreements() -> None:
    drafter, view = started([5, 1, 6, 5, 2, 6, 5, 3, 6, 5, 4, 6])
    grow(drafter, view, [5, 1, 6, 5, 9, 6])
    assert chain(drafter, view)[:2] == (5, 3)


def test_alternatives_after_a_mismatch() -> None:
    """One token was replaced, inserted or left out: a branch for each, where the verifier takes trees."""
    drafter, view = started(TEXT)
    grow(drafter, view, [*TEXT[:10], 7])
    (draft,) = drafter.propose([view], [20])
    assert {draft.tokens[i] for i in children(draft.parents)[0]} == {TEXT[10], TEXT[11], TEXT[12]}
    drafter, view = started(TEXT, verifier="rejection")
    grow(drafter, view, [*TEXT[:10], 7])
    (draft,) = drafter.propose([view], [20])
    assert draft.is_chain
    assert draft.tokens == tuple(TEXT[11 : 11 + UNSURE])


def test_falls_silent_when_it_is_wrong_and_comes_back() -> None:
    drafter, view = started(TEXT)
    for token in range(LOST):
        grow(drafter, view, [token])
        assert drafter.propose([view], [6]) != [EMPTY]
    grow(drafter, view, [99])
    assert drafter.propose([view], [6]) == [EMPTY]
    grow(drafter, view, TEXT[30:33])
    assert drafter.propose([view], [6]) == [EMPTY]  # three tokens may agree by chance
    grow(drafter, view, [TEXT[33]])
    assert chain(drafter, view) == tuple(TEXT[34:40])


def test_most_tokens_of_an_edited_text_are_drafted() -> None:
    rng = random.Random(0)
    output = [rng.randrange(100, 160) for _ in range(300)]
    prediction = [token if rng.random() > 0.03 else 7 for token in output if rng.random() > 0.03]
    drafter, view = started(prediction)
    runs = 0
    while len(view.output) < len(output):
        at = len(view.output)
        path = chain(drafter, view, 8)
        kept = next((i for i, token in enumerate(path) if output[at + i : at + i + 1] != [token]), len(path))
        grow(drafter, view, output[at : at + kept + 1])
        runs += 1
    assert runs < 100


def test_without_a_prediction_there_is_nothing_to_say() -> None:
    empty: list[int] = []
    for prediction in (None, empty):
        drafter, view = started(prediction)
        assert drafter.propose([view], [6]) == [EMPTY]
        drafter.finish(view.id)
        drafter.finish(view.id)


def test_text_has_to_be_tokens_by_now() -> None:
    drafter, view = PredictionDrafter(), request([1], speculation={"prediction": "text"})
    with pytest.raises(TypeError, match="token ids"):
        drafter.start(view)
