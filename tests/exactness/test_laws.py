"""Every exact verifier's law, worked out to the last digit: one step over a draft, and what plain decoding adds.

Where ``test_sequences`` samples, this follows every outcome of every draw (``enumeration``), so an error of a
millionth shows. Steps after the first have noise of their own, so what holds for one step holds for all.
"""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.verify.verifiers.base import Siblings, Verifier
from outrider.verify.verifiers.lossy import Lenient
from outrider.verify.verifiers.recursive import Recursive
from tests.arrays import log, softmax
from tests.pairwise import slow_unless

from . import toy
from .enumeration import law

LENGTH = 3
ROUNDING = 1e-6  # log-weights are float32
WRONG = 3e-3  # how far off a verifier that is wrong on purpose has to be, at least

MODELS = [toy.table(seed)[:3, :3] for seed in (4, 7)]
WARM = SamplingParams(temperature=1.0)
OPTIONS: dict[str, SamplingParams] = {
    "T=0.7": SamplingParams(temperature=0.7),
    "top-k": SamplingParams(temperature=1.0, top_k=2),
    "top-p": SamplingParams(temperature=1.0, top_p=0.8),
    "min-p": SamplingParams(temperature=1.0, min_p=0.2),
    "penalties": SamplingParams(temperature=1.0, repetition_penalty=1.5, presence_penalty=0.5, logit_bias={2: 0.5}),
    "greedy": SamplingParams(),
}
CHAINS: dict[str, toy.Source] = {
    "one": toy.model(1),
    "two": toy.model(2),
    "two, cold": toy.model(2, 0.3),
    "two, without q": toy.model(2, with_q=False),
    "likeliest": toy.best(3),
    "denied by q": toy.chosen(2, np.argmax, toy.denies),
    "broken q": toy.chosen(2, np.argmin, toy.broken),
}
TREES: dict[str, toy.Source] = {
    "pair": toy.static(2),
    "all tokens": toy.static(3),
    "two levels": toy.static(2, 1),
    "several models": toy.several(*MODELS),
    "shape follows tokens": toy.grown,
    "some without q": toy.mixed,
    "best-first": toy.best_first(5),
    "pruned, without q": toy.pruned(3),
}
SHAPES = {"chain": toy.model(2), "static": toy.static(2), "dynamic": toy.best_first(4)}
CELLS = [(v, s) for v in toy.UNCOUPLED for s in CHAINS] + [
    (v, s) for v in toy.UNCOUPLED if v in toy.ON_TREES for s in TREES
]


@pytest.fixture(autouse=True)
def _three_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """A smaller vocabulary than the samples have, as outcomes are counted by the thousand."""
    monkeypatch.setattr(toy, "VOCAB", 3)
    monkeypatch.setattr(toy, "TARGET", toy.TARGET[:3, :3])
    monkeypatch.setattr(toy, "DRAFT", toy.DRAFT[:3, :3])


def law_of(verify: Verifier, source: toy.Source, params: SamplingParams) -> NDArray[np.float64]:
    """The probability of each sequence, where tokens that the step did not reach are drawn from the target."""
    target = toy.exact(params, LENGTH).reshape([toy.VOCAB] * LENGTH)
    found = np.zeros_like(target)
    for tokens, probability in law(lambda noise: toy.step(params, verify, source, noise)).items():
        start = tokens[:LENGTH]
        share = target[start].sum()
        found[start] += probability * (target[start] / share if share > 0 else 1.0)
    return found.ravel()


def error(verify: Verifier, source: toy.Source, params: SamplingParams = WARM) -> float:
    """Total variation distance from the target's law."""
    return float(np.abs(law_of(verify, source, params) - toy.exact(params, LENGTH)).sum() / 2)


def length(verify: Verifier, source: toy.Source, params: SamplingParams = WARM) -> float:
    """τ: the expected number of tokens that a step emits."""
    return sum(len(tokens) * chance for tokens, chance in law(lambda n: toy.step(params, verify, source, n)).items())


# SpecInfer judges siblings in every order, which multiplies the outcomes of large trees.
MANY_ORDERS = [("specinfer", s) for s in ("two levels", "several models", "shape follows tokens", "pruned, without q")]


@pytest.mark.parametrize(("verifier", "source"), slow_unless(CELLS, [c for c in CELLS if c not in MANY_ORDERS]))
def test_the_law_is_the_targets(verifier: str, source: str) -> None:
    assert error(toy.BY_NAME[verifier], (CHAINS | TREES)[source]) < ROUNDING


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize(
    ("verifier", "shape"), [(v, s) for v in toy.UNCOUPLED for s in SHAPES if s == "chain" or v in toy.ON_TREES]
)
def test_the_law_is_the_targets_under_every_option(verifier: str, shape: str, options: str) -> None:
    assert error(toy.BY_NAME[verifier], SHAPES[shape], OPTIONS[options]) < ROUNDING


@pytest.mark.parametrize(
    "source",
    [
        toy.static(4, temperature=0.5),
        toy.drawn_as_if(toy.static(3), Siblings.INDEPENDENT),
        toy.merged(*MODELS),
        toy.merged(*MODELS, MODELS[0]),
    ],
    ids=["more children than tokens", "independent draws", "two models merged", "three draws merged"],
)
@pytest.mark.parametrize("verifier", ["sequoia", "traversal"])
def test_draws_of_any_kind_are_taken_in_order(verifier: str, source: toy.Source) -> None:
    assert error(toy.BY_NAME[verifier], source) < ROUNDING


WRONGS: dict[str, tuple[Verifier, toy.Source]] = {
    "residual not updated": (toy.Forgetful("wrong"), toy.static(2)),
    "residual not updated, independent": (toy.Forgetful("wrong", Siblings.INDEPENDENT), toy.static(2)),
    "residual not updated, dynamic": (toy.Forgetful("wrong"), toy.best_first(4)),
    "recovered from p, tree": (toy.Redrawn("wrong"), toy.static(2)),
    "recovered from p, chain": (toy.Redrawn("wrong"), toy.model(2)),
    "replacement ratios in draft order": (toy.ReplacementRatios("wrong"), toy.static(2)),
    "replacement ratios in random order": (
        toy.BY_NAME["specinfer"],
        toy.drawn_as_if(toy.static(2), Siblings.WITHOUT_REPLACEMENT),
    ),
    "random order without replacement": (Recursive("wrong", shuffled=True), toy.static(2)),
    "duplicates dropped": (toy.BY_NAME["iterative"], toy.merged(*MODELS)),
    "pruned with q": (toy.BY_NAME["sequoia"], toy.pruned(2, with_q=True)),
    "pruned with q, by paths": (toy.BY_NAME["traversal"], toy.pruned(2, with_q=True)),
    "lenient": (toy.BY_NAME["lenient"], toy.model(2)),
    "lenient, tree": (toy.BY_NAME["lenient"], toy.static(2)),
    "typical": (toy.BY_NAME["typical"], toy.model(2)),
    "typical, tree": (toy.BY_NAME["typical"], toy.static(2)),
}


@pytest.mark.parametrize("wrong", WRONGS)
def test_what_is_wrong_shows(wrong: str) -> None:
    assert error(*WRONGS[wrong]) > WRONG


def test_block_verification_never_expects_fewer_tokens_than_rejection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sun et al. 2024: on random pairs of models; strictly more somewhere, and the same with one token."""
    gains = []
    for seed in range(12):
        monkeypatch.setattr(toy, "TARGET", toy.table(100 + seed)[:3, :3])
        monkeypatch.setattr(toy, "DRAFT", toy.table(200 + seed)[:3, :3])
        block, rejection = (length(toy.BY_NAME[name], toy.model(2)) for name in ("block", "rejection"))
        gains.append(block - rejection)
        one = [length(toy.BY_NAME[name], toy.model(1)) for name in ("block", "rejection")]
        assert one[0] == pytest.approx(one[1], abs=1e-9)
    assert min(gains) > -1e-9
    assert max(gains) > 0.03


def test_block_verification_keeps_what_the_paper_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sun et al. 2024, the example of the introduction: 11/9 accepted tokens of two, against 10/9 by rejection."""
    monkeypatch.setattr(toy, "TARGET", log([[1 / 3, 2 / 3, 0.0]] * 3))
    monkeypatch.setattr(toy, "DRAFT", log([[2 / 3, 1 / 3, 0.0]] * 3))
    assert length(toy.BY_NAME["block"], toy.model(2)) == pytest.approx(1 + 11 / 9)
    assert length(toy.BY_NAME["rejection"], toy.model(2)) == pytest.approx(1 + 10 / 9)


def test_traversal_expects_as_many_tokens_as_block_on_chains_and_no_fewer_than_sequoia_on_trees(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gains = []
    for seed in (0, 3, 5):
        monkeypatch.setattr(toy, "TARGET", toy.table(100 + seed)[:3, :3])
        monkeypatch.setattr(toy, "DRAFT", toy.table(200 + seed)[:3, :3])
        chain = [length(toy.BY_NAME[name], toy.model(2)) for name in ("traversal", "block")]
        assert chain[0] == pytest.approx(chain[1], abs=1e-9)
        tree = [length(toy.BY_NAME[name], toy.static(2, 1)) for name in ("traversal", "sequoia")]
        gains.append(tree[0] - tree[1])
    assert min(gains) > -1e-9
    assert max(gains) > 0.01


@pytest.mark.parametrize("count", [1, 2, 3])
def test_greedy_siblings_are_kept_as_often_as_can_be(count: int) -> None:
    """The sure ones with their p, and one of the rest with the overlap of p and its q: optimal transport."""
    target, draft = (softmax(table[toy.PROMPT[0]]) for table in (toy.TARGET, toy.DRAFT))
    sure = np.isin(np.arange(toy.VOCAB), np.argsort(-draft)[: count - 1])
    rest = np.where(sure, 0.0, draft)
    kept = target[sure].sum() + np.minimum(rest / rest.sum(), np.where(sure, 0.0, target)).sum()
    assert length(toy.BY_NAME["univer"], toy.static(count)) == pytest.approx(1 + float(kept), abs=1e-6)
    greedy = toy.drawn_as_if(toy.static(count), Siblings.GREEDY)
    assert length(toy.BY_NAME["sequoia"], greedy) == pytest.approx(1 + float(kept), abs=1e-6)


def test_on_trees_greedy_siblings_are_kept_longer_by_whole_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    gains, over = [], []
    for seed in (0, 3, 5, 8):
        monkeypatch.setattr(toy, "TARGET", toy.table(100 + seed)[:3, :3])
        monkeypatch.setattr(toy, "DRAFT", toy.table(200 + seed)[:3, :3])
        tree = toy.static(2, 2)
        univer = length(toy.BY_NAME["univer"], tree)
        gains.append(univer - length(toy.BY_NAME["sequoia"], toy.drawn_as_if(tree, Siblings.GREEDY)))
        over.append(univer - length(toy.BY_NAME["traversal"], tree))
    assert min(gains) > -1e-9
    assert max(gains) > 0.01
    assert max(over) > 0.01


def test_more_children_are_accepted_more_often() -> None:
    """τ grows with the number of children, and drawing them without replacement is no worse."""
    tau = {(v, n): length(toy.BY_NAME[v], toy.static(n)) for v in ("iterative", "sequoia") for n in (1, 2, 3)}
    assert tau["iterative", 1] == pytest.approx(tau["sequoia", 1])
    assert tau["iterative", 1] < tau["iterative", 2] < tau["iterative", 3] < tau["sequoia", 3]
    assert tau["sequoia", 1] < tau["sequoia", 2]
    assert tau["sequoia", 3] == pytest.approx(2.0)  # all three tokens are there: one is accepted


@pytest.mark.parametrize("source", [toy.model(1), toy.model(1, with_q=False), toy.static(2), toy.best_first(3)])
def test_lenience_bounds_every_probability(source: toy.Source) -> None:
    """No first token has more than 1/l times its probability, α grows as l falls, and l = 1 is exact."""
    target = toy.exact(WARM, 1)
    kept = []
    for lenience in (1.0, 0.5, 0.3, 0.1):
        verify = Lenient(lenience)
        first = law_of(verify, source, WARM).reshape(toy.VOCAB, -1).sum(1)
        assert (first / target).max() <= 1 / lenience + ROUNDING
        kept.append(length(verify, source))
        if lenience == 1.0:
            assert first == pytest.approx(target, abs=ROUNDING)
        elif lenience == 0.5:
            assert (first / target).max() > 1.1
    assert kept == pytest.approx(sorted(kept))
    assert kept[0] + 0.01 < kept[-1]
