"""What every draft source must do, whatever it knows: one suite for all of them."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import product

import pytest

from outrider.cache import CacheSpec
from outrider.config import SOURCES as RECORDS
from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.engine.request import Request
from outrider.models.toy import TableModel
from outrider.verify.draft import Draft
from outrider.verify.verifiers.catalog import VERIFIERS
from tests.arrays import softmax
from tests.drafters.views import grow, request
from tests.pairwise import pairwise, slow_unless
from tests.tokenizer.letters import alphabet, letters

VOCAB = 6
TEXT = (0, 1, 2, 0, 1, 3, 0, 1, 2, 0, 4, 5, 0, 1)


def make(name: str) -> Drafter:
    models = tuple(
        TableModel.random(VOCAB, order=2, seed=seed, max_seq_len=200) for seed in range(RECORDS[name].min_draft_models)
    )
    tokens = letters(alphabet(VOCAB))
    context = DrafterContext(
        vocab_size=VOCAB,
        cache=CacheSpec(slots=4, max_seq_len=200),
        draft_models=models,
        tokenizer=tokens,
        draft_tokenizers=(tokens,) * len(models),
    )
    return DrafterRegistry(context)[name]


Options = dict[str, object]
# Sources that run the target or have trained heads need a target that runs, and grammar a structured output: they have
# tests with one.
SOURCES: dict[str, Options] = {
    name: {"draft": name}
    for name, record in RECORDS.items()
    if record.builder is not None
    and not (record.runs_target or record.head_kinds or record.in_model_files or name == "grammar")
}
SOURCES["prediction"]["prediction"] = TEXT
BY_STEPS = {"lookahead", "recycling"}  # sources that learn from steps, not only from the text


def view(source: str, verifier: str, id: str = "r", counts: bool = False, **params: object) -> Request:
    options = {"verifier": verifier, "counts_as_q": counts, "spec_length": 7} | SOURCES[source]
    return request(TEXT, id=id, speculation=options, **params)


def outputs(seed: int) -> list[list[int]]:
    """Pieces of a text that repeats itself now and then."""
    rng = random.Random(seed)
    return [[*TEXT[i : i + 3], rng.randrange(VOCAB)] for i in (rng.randrange(len(TEXT)) for _ in range(12))]


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def takes(source: str, verifier: str, counts: bool) -> bool:
    """Whether the verifier takes what the source drafts."""
    return VERIFIERS[verifier].takes_trees or not RECORDS[source].shape.branches


JUDGED = [row for row in product(SOURCES, VERIFIERS, (False, True)) if takes(*row)]


@pytest.mark.parametrize(
    ("source", "verifier", "counts"),
    slow_unless(JUDGED, pairwise(tuple(SOURCES), tuple(VERIFIERS), (False, True), allowed=takes)),
)
def test_drafts_can_be_scored_and_judged(source: str, verifier: str, counts: bool) -> None:
    drafter, r = make(source), view(source, verifier, counts=counts, temperature=1.0)
    drafter.start(r)
    said = 0
    for piece in outputs(1):
        for budget in (0, 1, 2, 7):
            (draft,) = drafter.propose([r], [budget])
            assert len(draft) <= budget
            assert all(type(token) is int and 0 <= token < VOCAB for token in draft.tokens)
            assert draft.is_chain or VERIFIERS[verifier].takes_trees
            check_q(draft)
            assert not draft or draft.source == source
            said += len(draft)
        grow(drafter, r, piece)
    assert said > 0
    drafter.finish(r.id)


def check_q(draft: Draft) -> None:
    """Each token could have been drawn from its row."""
    if draft.q_logits is not None:
        q = softmax(draft.q_logits)
        assert q.shape[0] == len(draft)
        assert all(q[node, token] > 0 for node, token in enumerate(draft.tokens))


def talk(drafter: Drafter, r: Request, seed: int, each: Callable[[list[int]], list[list[int]]]) -> list[Draft]:
    """Proposals on the way through a text, handed over in the pieces that ``each`` makes of its parts."""
    drafter.start(r)
    said = []
    for part in outputs(seed):
        for piece in each(part):
            grow(drafter, r, piece)
        said += drafter.propose([r], [5])
    return said


@pytest.mark.parametrize("source", [s for s in SOURCES if s not in BY_STEPS])
def test_the_same_text_gives_the_same_draft_however_it_came(source: str) -> None:
    whole = talk(make(source), view(source, "matching"), 2, lambda part: [part])
    single = talk(make(source), view(source, "matching"), 2, lambda part: [[token] for token in part])
    assert single == whole


def test_nothing_crosses_from_one_salt_to_another(source: str) -> None:
    alone = talk(make(source), view(source, "matching", "own"), 3, lambda part: [part])
    drafter = make(source)
    for i in range(3):  # others, finished before, and one still running
        other = view(source, "matching", f"other {i}")
        other.cache_salt = "other"
        talk(drafter, other, 3 + i, lambda part: [part])
        if i:
            drafter.finish(other.id)
    assert talk(drafter, view(source, "matching", "own"), 3, lambda part: [part]) == alone


def test_finishing_is_safe_twice_and_for_strangers(source: str) -> None:
    drafter, r = make(source), view(source, "matching")
    drafter.finish("stranger")
    drafter.start(r)
    drafter.finish(r.id)
    drafter.finish(r.id)
    said, wanted = (talk(d, view(source, "matching", "next"), 3, lambda part: [part]) for d in (drafter, make(source)))
    assert said == wanted


def test_a_request_can_start_again(source: str) -> None:
    """As after a preemption: it finishes, and starts with what it has so far."""
    drafter, r = make(source), view(source, "matching")
    talk(drafter, r, 4, lambda part: [part])
    drafter.finish(r.id)
    drafter.start(r)
    assert len(drafter.propose([r], [4])[0]) <= 4
    drafter.finish(r.id)


def test_several_at_once_are_as_alone(source: str) -> None:
    drafter = make(source)
    views = [view(source, "matching", str(i), seed=i) for i in range(3)]
    for i, r in enumerate(views):
        r.cache_salt = str(i)  # or one may learn from another
        drafter.start(r)
        for piece in outputs(i)[: i + 1]:
            grow(drafter, r, piece)
    together = drafter.propose(views, [4, 2, 3])
    for i, (r, budget) in enumerate(zip(views, (4, 2, 3), strict=True)):
        alone, again = make(source), view(source, "matching", str(i), seed=i)
        alone.start(again)
        for piece in outputs(i)[: i + 1]:
            grow(alone, again, piece)
        assert alone.propose([again], [budget]) == [together[i]]
        drafter.finish(r.id)
