"""How much is drafted: enough where it pays, nothing where it does not, and a new attempt after a while."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence

import pytest

from outrider.config import SamplingParams
from outrider.drafters.api import RequestView
from outrider.drafters.cost import DraftingCost
from outrider.engine.draft_length.adaptive import AdaptiveLength
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.draft_length.policy import DraftLength, ProposalCost
from outrider.engine.draft_length.row_counts import ROWS
from outrider.engine.drafting.rounds import Drafting
from outrider.engine.request import Request
from outrider.verify.draft import EMPTY, Draft
from outrider_multimodal.encoder_decoder import EncoderInput
from tests.small_engines import Scripted, request

FLAT = StepCost([0.010] * len(ROWS), [0.0] * len(ROWS))  # a row more costs nothing
STEEP = StepCost([0.010 * n for n in ROWS], [0.0] * len(ROWS))  # every row costs as much as a run
REAL = StepCost([0.0100, 0.0100, 0.0100, 0.0113, 0.0137, 0.0190], [1e-6] * len(ROWS))


def asked(id: str = "r", draft: str = "source") -> Request:
    return request([1, 2, 3], SamplingParams(max_tokens=100_000), id=id, draft=draft, spec_length="auto")


def play(
    policy: AdaptiveLength,
    r: Request,
    chance: float,
    *,
    steps: int,
    length: int = 8,
    seconds: float = 1e-5,
    scores: Sequence[float] | None = None,
    first: float | None = None,
) -> list[int]:
    """Steps in which each drafted token is right with a given chance; the number of nodes scored in each."""
    rng = random.Random(0)
    scored: list[int] = []
    for _ in range(steps):
        (budget,) = policy.budget([r], [length])
        draft = Draft.chain([7] * budget, source="source", scores=scores and scores[:budget]) if budget else EMPTY
        if budget:
            policy.observe_proposals(r, {"source": ProposalCost(first or seconds, len(draft))})
            first = None
        (kept,) = policy.select([r], [draft], [1], [len(draft)])
        right = 0
        while right < length and rng.random() < chance:
            right += 1
        accepted = min(right, len(kept))
        policy.observe(r, [*[7] * accepted, 7 if right > accepted else 8], kept, range(accepted))
        scored.append(len(kept))
    return scored


def test_free_rows_are_all_used() -> None:
    assert play(AdaptiveLength(lambda: FLAT), asked(), 0.5, steps=20)[-1] == 8


def test_rows_that_cost_a_run_are_not_used_unless_certain() -> None:
    assert sum(play(AdaptiveLength(lambda: STEEP), asked(), 0.5, steps=60)[20:]) == 0


@pytest.mark.parametrize(("chance", "least", "most"), [(0.95, 6, 8), (0.6, 3, 8), (0.0, 0, 3.5)])
def test_length_follows_acceptance(chance: float, least: int, most: float) -> None:
    scored = play(AdaptiveLength(lambda: REAL), asked(), chance, steps=200)[100:]
    assert least <= sum(scored) / len(scored) <= most


def test_a_source_that_costs_much_and_wins_nothing_rests_and_is_tried_again() -> None:
    policy, r = AdaptiveLength(lambda: REAL), asked()
    play(policy, r, 0.0, steps=50, seconds=0.02)
    drafted = play(policy, r, 0.0, steps=1000, seconds=0.02)  # an attempt takes as long as two runs
    assert 3 <= sum(n > 0 for n in drafted) <= 11  # 2% of the time
    recovered = play(policy, r, 1.0, steps=400, seconds=0.002)
    assert sum(n > 0 for n in recovered[-100:]) > 90


class Counted(StepCost):
    """Counts how often somebody asks what a plain step costs."""

    asked = 0

    def plain(self, contexts: Sequence[int]) -> float:
        self.asked += 1
        return super().plain(contexts)


def test_a_source_that_cannot_be_afforded_is_not_considered_in_every_step() -> None:
    cost = Counted([0.010] * len(ROWS), [0.0] * len(ROWS))
    tries = sum(n > 0 for n in play(AdaptiveLength(lambda: cost), asked(), 0.0, steps=1000, seconds=0.009))
    assert 5 < tries < 50
    assert cost.asked < 200


def test_tokens_of_steps_without_drafts_earn_as_much_when_a_request_ends() -> None:
    """Each request of a class ends while its source rests; the class earns all the same."""
    policy, tries = AdaptiveLength(lambda: FLAT), []
    for i in range(60):
        tries.append(sum(n > 0 for n in play(policy, asked(str(i)), 0.0, steps=15, seconds=0.006)))
        policy.finish(str(i))
    assert sum(tries[20:]) >= 2


def test_a_source_that_pays_does_not_rest_for_bad_luck() -> None:
    """Right in one step of five, it gains 2.5 ms a step for 1 ms; runs of ten failures are common, and say nothing."""
    drafted = play(AdaptiveLength(lambda: REAL), asked(), 0.2, steps=600, seconds=0.001, scores=[0.2] * 8)
    assert sum(n > 0 for n in drafted) > 450


def test_the_last_tokens_of_a_request_decide() -> None:
    """Right nine times in ten for 200 steps, then three times in ten, with the same scores."""
    policy, r = AdaptiveLength(lambda: REAL), asked()
    before = play(policy, r, 0.9, steps=200, scores=[0.6] * 8)
    after = play(policy, r, 0.3, steps=20, scores=[0.6] * 8)
    assert sum(before[-20:]) > 150  # of 160
    assert sum(after) < 120


@pytest.mark.parametrize(("chance", "least", "most"), [(0.0, 10, 62), (0.9, 700, 800)])
def test_short_requests_pay_together_for_attempts(chance: float, least: int, most: int) -> None:
    """An attempt takes as long as 0.4 runs: where none succeeds, they take 2% of the time and eight steps, at most."""
    policy = AdaptiveLength(lambda: REAL)
    requests = [play(policy, asked(str(i)), chance, steps=20, seconds=0.004) for i in range(40)]
    assert least <= sum(n > 0 for drafted in requests for n in drafted) <= most


class Readers(AdaptiveLength):
    """Notes the requests whose prompt a source has read."""

    def __init__(self) -> None:
        super().__init__(lambda: REAL)
        self.ids: dict[str, None] = {}

    def observe_proposals(self, request: Request, costs: Mapping[str, ProposalCost]) -> None:
        self.ids[request.id] = None
        super().observe_proposals(request, costs)


def test_reading_prompts_in_vain_is_paid_for_too() -> None:
    """A first proposal in a request is as dear as five runs: beyond the first two, which nobody could foresee, each is
    paid for by 2% of the time of all steps before it."""
    policy = Readers()
    for i in range(80):
        play(policy, asked(str(i)), 0.0, steps=20, seconds=1e-5, first=0.05)
    read = [int(id) for id in policy.ids]
    assert len(read) >= 4
    for earlier, request_number in enumerate(read[2:], 2):
        assert 0.05 * earlier <= 8 * 0.0103 + 0.02 * 0.0103 * 20 * (request_number + 1)


def test_a_prompt_that_takes_more_to_read_than_may_be_lost_is_not_read() -> None:
    """A source that is always right has earned all that it may hold: enough for short prompts, not for a long one."""
    policy = AdaptiveLength(lambda: FLAT)
    for i in range(12):
        play(policy, asked(f"short {i}"), 1.0, steps=20, seconds=1e-5, first=0.001)
    short, long = (
        asked("short"),
        request([1] * 3000, SamplingParams(max_tokens=999), draft="source", spec_length="auto"),
    )
    assert policy.budget([short], [8]) == [8]
    assert policy.budget([long], [8]) == [0]


def test_nodes_behind_a_wrong_one_teach_nothing() -> None:
    """Its sibling is right, and so there are tokens at their depth."""

    def kept_after(behind: int) -> int:
        policy, r = AdaptiveLength(lambda: REAL), asked()
        tokens, parents = (7, 8, *range(20, 20 + behind)), (-1, -1, *[1] * behind)
        for draft in (Draft(tokens, parents, source="source", scores=(0.6,) * len(tokens)), doubtful):
            policy.budget([r], [16])
            (kept,) = policy.select([r], [draft], [1], [16])
            policy.observe(r, [7, 5], kept, range(kept.tokens[:1] == (7,)))
        return len(kept)

    doubtful = Draft.chain([1] * 16, source="source", scores=[0.8] * 16)
    assert kept_after(0) == kept_after(12) > 0


@pytest.mark.parametrize(("chance", "least", "most"), [(0.0, 1, 7), (0.9, 95, 100)])
def test_a_draft_model_s_encoder_is_paid_for_before_it_runs_again(chance: float, least: int, most: int) -> None:
    """It takes as long as 20 tokens, which drafts that are right win back in a request of 50 steps, and others do not.

    Requests differ in kind, and what an encoder takes does not.
    """
    policy, encoded = AdaptiveLength(lambda: REAL), 0
    for i in range(100):
        prompt, options = [1] * 4 ** (i % 4), SamplingParams(max_tokens=100_000)
        r = request(prompt, options, id=str(i), draft="source", spec_length="auto")
        r.input = EncoderInput.of_tokens([1, 2])
        encoded += any(play(policy, r, chance, steps=50, seconds=0.004, first=0.2))
        policy.finish(r.id)
    assert least <= encoded <= most


def hearing(id: str, max_tokens: int) -> Request:
    r = request([1, 2, 3], SamplingParams(max_tokens=max_tokens), id=id, draft="source", spec_length="auto")
    r.input, r.max_seq_len = EncoderInput.of_tokens([1, 2]), 10_000
    return r


@pytest.mark.parametrize(
    ("level", "encoder", "max_tokens", "tries"),
    [
        (0.011, 0.0, 10_000, False),  # a level takes longer than a token of the target
        (0.002, 0.5, 50, False),  # 25 tokens are expected: they would take 0.25 s without drafts
        (0.002, 0.5, 1000, True),
        (0.002, 0.0, 50, True),
    ],
)
def test_an_encoder_that_cannot_pay_never_runs(level: float, encoder: float, max_tokens: int, tries: bool) -> None:
    """Were all drafts right: nothing is learned by trying."""
    policy = AdaptiveLength(lambda: REAL, drafting_cost=lambda name: DraftingCost(level, lambda given: encoder))
    scored = play(policy, hearing("r", max_tokens), 0.9, steps=40, seconds=level)
    assert (scored[0] > 0) is tries
    assert (sum(scored) > 0) is tries


def test_a_batch_has_less_to_win_than_a_request_alone() -> None:
    """Rows of several requests fill a pass, and so a draft's rows cost more."""
    policy = AdaptiveLength(lambda: STEEP, drafting_cost=lambda name: DraftingCost(0.001, lambda given: 0.01))
    assert policy.budget([hearing("a", 1000), hearing("b", 1000)], [8, 8]) == [0, 0]
    policy = AdaptiveLength(lambda: FLAT, drafting_cost=lambda name: DraftingCost(0.001, lambda given: 0.01))
    assert policy.budget([hearing("a", 1000), hearing("b", 1000)], [8, 8]) == [8, 8]


def test_rows_scored_in_vain_are_paid_for_too() -> None:
    """Proposals cost nothing here, but a scored row 6% of a run: 40 requests of two steps may lose 9.6 runs."""
    policy = AdaptiveLength(lambda: StepCost([0.01 + 0.0006 * n for n in ROWS], [0.0] * len(ROWS)))
    requests = [play(policy, asked(str(i)), 0.0, steps=2, seconds=1e-9, scores=[0.95] * 8) for i in range(40)]
    assert 5 <= sum(map(sum, requests)) <= 9.6 / 0.055


def chain(policy: AdaptiveLength, r: Request, score: float, *, seconds: float = 0.003, right: bool = True) -> int:
    """A step with a source that takes ``seconds`` for a level; how many levels it was let grow."""
    (budget,) = policy.budget([r], [8])
    levels = min(budget, 1)
    while 0 < levels < budget and policy.should_continue(r, "source", [[score] * levels]):
        levels += 1
    draft = Draft.chain([7] * levels, source="source", scores=[score] * levels) if levels else EMPTY
    policy.observe_proposals(r, {"source": ProposalCost(seconds * levels, levels)} if levels else {})
    (kept,) = policy.select([r], [draft], [1], [len(draft)])
    path = range(len(kept)) if right else ()
    policy.observe(r, [*[7] * len(path), 8], kept, path)
    return levels


def test_sure_drafts_grow_longer_than_doubtful_ones() -> None:
    """A level takes a third of a token's time."""
    policy, r = AdaptiveLength(lambda: REAL), asked()
    assert chain(policy, r, 0.9) <= 2  # nobody knows yet what it costs
    sure = [chain(policy, r, 0.9) for _ in range(20)]
    assert sure[-1] == 8
    assert chain(policy, r, 0.3) < sure[-1]


def test_sources_that_are_sure_and_wrong_are_not_believed_for_long() -> None:
    policy, r = AdaptiveLength(lambda: REAL), asked()
    grown = [chain(policy, r, 0.9, right=False) for _ in range(300)]
    assert sum(grown[-100:]) < 10
    assert max(grown[-100:]) == 1


def test_a_source_known_to_pay_is_not_put_to_rest_by_a_few_failures() -> None:
    """It is right two times in five and costs a tenth of what a token saves; each request has 30 steps."""
    policy, asked_for = AdaptiveLength(lambda: REAL), []
    rng = random.Random(1)
    for i in range(30):
        r = asked(str(i))
        asked_for.append(sum(chain(policy, r, 0.4, seconds=0.001, right=rng.random() < 0.4) > 0 for _ in range(30)))
    assert sum(asked_for[10:]) > 0.75 * 20 * 30


def test_a_level_of_a_tree_is_worth_what_all_its_places_bring() -> None:
    policy, r = AdaptiveLength(lambda: REAL), asked()
    for right in (True, False, False, False):
        chain(policy, r, 0.4, seconds=0.002, right=right)
    assert not policy.should_continue(r, "source", [[0.4]])
    assert policy.should_continue(r, "source", [[0.4], [0.3], [0.2], [0.1]])


def test_a_dear_source_is_not_asked_where_a_free_one_is_sure() -> None:
    policy, r = AdaptiveLength(lambda: REAL), asked(draft="dear+free")
    draft = Draft((7, 8), (-1, -1), None, "dear+free", (0.5, 0.5), ("dear", "free"))
    for i in range(20):  # what the dear one says is right half the time, and costs a fifth of a token
        policy.budget([r], [8])
        policy.observe_proposals(r, {"dear": ProposalCost(0.002, 1), "free": ProposalCost(1e-5, 1)})
        (kept,) = policy.select([r], [draft], [1], [2])
        right = [kept.tokens.index(7)] if i % 2 and 7 in kept.tokens else []
        policy.observe(r, [7, 9] if i % 2 else [9], kept, right)
    assert policy.cost_per_level("dear") > policy.cost_per_level("free")
    assert policy.asks(r, "dear", [])
    assert policy.asks(r, "dear", [Draft.chain([8], source="free", scores=[0.1])])
    assert not policy.asks(r, "dear", [Draft.chain([8], source="other", scores=[0.97])])


def test_nothing_is_measured_for_requests_of_a_fixed_length() -> None:
    """Whether their sources propose something or not: timing passes would delay them for nothing."""
    policy = AdaptiveLength(lambda: pytest.fail("measured"))
    r = request([1, 2, 3], SamplingParams(max_tokens=9), draft="source", spec_length=4)
    for draft in (EMPTY, Draft.chain([7, 8], source="source")):
        assert policy.budget([r], [4]) == [4]
        policy.observe_proposals(r, {"source": ProposalCost(1e-5, len(draft))})
        assert policy.select([r], [draft], [1], [4]) == [draft]
        policy.observe(r, [9], draft, ())
        policy.observe_step(1, 0.001)


def test_what_asking_takes_is_learned_for_each_source() -> None:
    """Of a request with two sources, which take 20 microseconds each beside their own time."""
    policy, r = AdaptiveLength(lambda: REAL), asked(draft="dear+free")
    for step in range(400):
        policy.budget([r], [8] if step % 2 else [0])
        if step % 2:
            policy.observe_proposals(r, {"dear": ProposalCost(1e-5, 1), "free": ProposalCost(1e-5, 1)})
        policy.select([r], [EMPTY], [1], [8])
        policy.observe(r, [9], EMPTY, ())
        policy.observe_step(1, 0.0003 + (2 * (1e-5 + 2e-5) if step % 2 else 0.0))
    assert policy.cost.asking == pytest.approx(2e-5, rel=0.02)


def test_a_free_source_that_is_never_right_takes_no_more_than_its_share() -> None:
    """Its drafts take no time, and scored rows so little that their chances never seem too small."""
    policy, r = AdaptiveLength(lambda: StepCost([0.01 + 0.00005 * n for n in ROWS], [0.0] * len(ROWS))), asked()
    drafted = play(policy, r, 0.0, steps=600, seconds=1e-9, scores=[0.95] * 8)
    assert sum(0.0001 + 0.00005 * n for n in drafted if n) <= 0.01 + 0.02 * 600 * 0.0104


def test_of_merged_sources_only_the_one_that_loses_rests() -> None:
    """A dear source that is never right beside a free one that always is."""
    policy, r = AdaptiveLength(lambda: REAL), asked(draft="dear+free")
    asked_for = {"dear": 0, "free": 0}
    for _ in range(200):
        policy.budget([r], [8])
        awake = [name for name in asked_for if policy.asks(r, name, [])]
        tokens = {"dear": 8, "free": 7}
        draft = (
            Draft(tuple(tokens[name] for name in awake), (-1,) * len(awake), None, "dear+free", None, tuple(awake))
            if awake
            else EMPTY
        )
        policy.observe_proposals(r, {name: ProposalCost(0.005 if name == "dear" else 1e-5, 1) for name in awake})
        (kept,) = policy.select([r], [draft], [1], [len(draft)])
        right = [node for node, token in enumerate(kept.tokens) if token == 7]
        policy.observe(r, [7] * (len(right) + 1), kept, right)
        for name in awake:
            asked_for[name] += 1
    assert asked_for["free"] == 200
    assert 2 <= asked_for["dear"] < 40


def test_the_source_s_scores_tell_good_nodes_from_bad() -> None:
    policy, r = AdaptiveLength(lambda: REAL), asked()
    draft = Draft((1, 2, 3, 4), (-1, -1, -1, 2), source="source", scores=(0.02, 0.9, 0.9, 0.9))
    for _ in range(30):
        policy.budget([r], [8])
        policy.observe_proposals(r, {"source": ProposalCost(1e-5, 2)})
        (kept,) = policy.select([r], [draft], [1], [len(draft)])
        policy.observe(r, [3, 4, 9], kept, range(len(kept) and 2))
    assert {3, 4} <= set(kept.tokens)


def test_one_request_in_trouble_does_not_stop_the_others() -> None:
    policy = AdaptiveLength(lambda: REAL)
    good, bad = asked("good"), asked("bad")
    draft = Draft.chain([7] * 6, source="source")
    for _ in range(100):
        policy.budget([good, bad], [6, 6])
        kept = policy.select([good, bad], [draft, draft], [1, 1], [len(draft)] * 2)
        policy.observe(good, [7] * (len(kept[0]) + 1), kept[0], range(len(kept[0])))
        policy.observe(bad, [8], kept[1], ())
    assert len(kept[0]) == 6
    assert len(kept[1]) < 3


def test_a_batch_drafts_less_than_one_request_alone() -> None:
    def nodes(batch: int) -> float:
        policy = AdaptiveLength(lambda: StepCost([0.01 + 0.001 * n for n in ROWS], [0.0] * len(ROWS)))
        requests = [asked(str(i)) for i in range(batch)]
        draft = Draft.chain([7] * 8, source="source", scores=[0.6] * 8)
        policy.budget(requests, [8] * batch)
        kept = policy.select(requests, [draft] * batch, [1] * batch, [len(draft)] * batch)
        return sum(map(len, kept)) / batch

    assert nodes(1) > nodes(16)


def test_fixed_lengths_and_verifiers_that_need_them_are_left_alone() -> None:
    def unused() -> StepCost:
        raise AssertionError("nothing to adapt")

    policy = AdaptiveLength(unused)
    fixed = request([1, 2], id="f", draft="source", spec_length=3)
    exact = request([1, 2], id="e", draft="source", verifier="rejection", spec_length="auto")
    exact.max_seq_len = 64
    assert (exact.depth_limit, exact.draft_limit) == (5, 5)
    assert policy.budget([fixed, exact], [3, 5]) == [3, 5]
    draft = Draft.chain([1, 2, 3])
    assert policy.select([fixed, exact], [draft, draft], [1, 1], [len(draft)] * 2) == [draft, draft]


def test_a_fixed_length_asks_and_scores_everything() -> None:
    policy, r, draft = DraftLength(), asked(), Draft.chain([1, 2, 3])
    assert policy.budget([r], [5]) == [5]
    assert policy.select([r], [draft], [1], [2]) == [draft]
    assert policy.asks(r, "source", [draft])
    assert policy.should_continue(r, "source", [[0.1]])


def test_drafters_ask_the_policy_through_the_request_they_see() -> None:
    answers: list[bool] = []

    def script(view: RequestView, budget: int) -> Draft:
        answers.append(view.should_continue("source", [[0.5]] * 2))
        assert (view.id, list(view.tokens), view.depth_limit) == (r.id, r.tokens, r.depth_limit)
        return Draft.chain([7], source="source", scores=[0.5])

    policy, r = AdaptiveLength(lambda: REAL), asked()
    drafting = Drafting({"source": Scripted(script)}, 10, policy)
    for spec_length in ("auto", 3):
        r = request([1, 2, 3], SamplingParams(max_tokens=99), id="r", draft="source", spec_length=spec_length)
        r.max_seq_len = 100
        drafting.start(r)
        drafting.propose([r], [3], [1])
        answers.append(policy.should_continue(r, "source", [[0.5, 0.5]]))
        drafting.finish(r)
    assert answers == [True, False, True, True]  # two levels are tried before anything is known; fixed ones always
    assert not policy.request_ids


def test_one_domain_s_drafts_do_not_show_in_another_s_counts() -> None:
    def counts(before: float | None, domain: str) -> list[int]:
        policy = AdaptiveLength(lambda: REAL)
        if before is not None:
            for i in range(20):
                other = asked(f"other {i}")
                other.cache_salt = other.tenant = domain
                play(policy, other, before, steps=20)
                policy.finish(other.id)
        return play(policy, asked(), 0.6, steps=40)

    assert counts(0.0, "other") == counts(0.95, "other") == counts(None, "")
    assert counts(0.0, "") != counts(0.95, "")  # in one domain they show


def test_the_curve_learns_from_runs() -> None:
    curve = StepCost([0.010] * len(ROWS), [0.0] * len(ROWS))
    for _ in range(200):
        curve.observe_pass([8], [100], 0.015)
        curve.observe_pass([1], [100], 0.010)
    assert curve.pass_seconds([8], [100]) == pytest.approx(0.015, rel=0.1)
    assert curve.pass_seconds([1], [100]) == pytest.approx(0.010, rel=0.1)


@pytest.mark.parametrize("make", [lambda: FLAT, lambda: STEEP, lambda: REAL])
def test_finished_requests_leave_nothing_behind(make: Callable[[], StepCost]) -> None:
    policy = AdaptiveLength(make)
    for i in range(20):
        r = asked(str(i))
        play(policy, r, 0.5, steps=3)
        policy.finish(r.id)
    assert not policy.request_ids
