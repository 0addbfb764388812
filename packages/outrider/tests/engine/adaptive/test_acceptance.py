"""Running estimates of how likely a draft token is to be kept."""

from __future__ import annotations

import pytest

from outrider.engine.adaptive.acceptance import Acceptance
from outrider.engine.adaptive.kinds import Kind
from outrider.engine.adaptive.settings import AdaptiveSettings
from outrider.verify.draft import Draft


def learn(acceptance: Acceptance, draft: Draft, committed: tuple[int, ...], times: int, request: str = "r") -> None:
    for _ in range(times):
        acceptance.observe(request, draft, committed)


def probabilities(acceptance: Acceptance, draft: Draft) -> list[float]:
    return acceptance.probabilities("new", draft)


def test_a_node_is_no_likelier_than_the_one_before_it() -> None:
    draft = Draft.chain((1, 2, 3), source="a", scores=(0.8, 0.5, 0.9))
    assert probabilities(Acceptance(), draft) == pytest.approx([0.8, 0.4, 0.36])


def test_nodes_behind_a_wrong_one_teach_nothing() -> None:
    acceptance, draft = Acceptance(), Draft.chain((1, 2), source="a", scores=(0.5, 0.9))
    learn(acceptance, draft, (9, 8), times=30)
    first, second = probabilities(acceptance, draft)
    assert first < 0.15
    assert second / first == pytest.approx(0.9)  # its own score: its parent was never right


def test_estimates_follow_the_traffic() -> None:
    acceptance, draft = Acceptance(), Draft.chain((1,), source="a", scores=(0.5,))
    learn(acceptance, draft, (1,), times=3000)
    assert probabilities(acceptance, draft)[0] > 0.95
    learn(acceptance, draft, (2,), times=600)
    assert probabilities(acceptance, draft)[0] < 0.4  # against 0.83 if all had counted alike


def test_what_was_long_as_likely_as_not_is_given_up_too() -> None:
    acceptance, draft = Acceptance(), Draft.chain((1,), source="a", scores=(0.5,))
    for _ in range(1500):
        learn(acceptance, draft, (1,), times=1)
        learn(acceptance, draft, (2,), times=1)
    learn(acceptance, draft, (2,), times=400)
    assert probabilities(acceptance, draft)[0] < 0.3


def test_scores_are_told_apart() -> None:
    acceptance = Acceptance()
    sure, unsure = (Draft.chain((1,), source="a", scores=(score,)) for score in (0.9, 0.2))
    learn(acceptance, sure, (1,), times=50)
    learn(acceptance, unsure, (2,), times=50)
    assert probabilities(acceptance, sure)[0] > 0.9
    assert probabilities(acceptance, unsure)[0] < 0.1


def test_a_request_of_its_own_is_forgotten_when_it_ends() -> None:
    acceptance, draft = Acceptance(), Draft.chain((1,), source="a", scores=(0.5,))
    learn(acceptance, draft, (2,), times=20, request="r")
    own = acceptance.probabilities("r", draft)
    acceptance.finish("r")
    assert own[0] < acceptance.probabilities("r", draft)[0] == probabilities(acceptance, draft)[0]


def of_kind(acceptance: Acceptance, kind: Kind, draft: Draft, committed: tuple[int, ...] = ()) -> float:
    """The chance of a draft's first token as a request of a kind begins, which then sees ``committed`` 20 times."""
    acceptance.start("one", kind)
    chance = acceptance.probabilities("one", draft)[0]
    learn(acceptance, draft, committed, times=20 if committed else 0, request="one")
    acceptance.finish("one")
    return chance


def test_a_request_begins_with_what_its_kind_taught_of_its_drafter() -> None:
    acceptance, draft = Acceptance(), Draft.chain((1,), source="a", scores=(0.5,))
    good, bad = Kind(True, False, 3), Kind(True, False, 6)
    for _ in range(10):
        of_kind(acceptance, good, draft, committed=(1,))
        of_kind(acceptance, bad, draft, committed=(2,))
    assert of_kind(acceptance, good, draft) > 0.6
    assert of_kind(acceptance, bad, draft) < 0.4
    unknown, other = Kind(False, True, 3), Draft.chain((1,), source="b", scores=(0.5,))
    assert of_kind(acceptance, bad, draft) < of_kind(acceptance, unknown, draft) < of_kind(acceptance, good, draft)
    assert of_kind(acceptance, good, other) == 0.5


def test_no_more_kinds_are_kept_than_settings_say() -> None:
    acceptance, draft = Acceptance(AdaptiveSettings(max_kinds=3)), Draft.chain((1,), source="a", scores=(0.5,))
    for size in range(20):
        of_kind(acceptance, Kind(True, False, size), draft, committed=(1,))
    assert acceptance.num_rates == 1 + 3
    acceptance.forget_rates()
    assert acceptance.num_rates == 0
