"""Trees that a draft model grows: what is in them, and what is left of them in its cache."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from outrider.cache import CacheSpec
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.model.model import ModelDrafter
from outrider.engine.request import Request
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.toy import TableModel
from outrider.verify.arrays import Floats, host
from outrider.verify.draft import Draft
from outrider.verify.tree import depths, path_to
from outrider.verify.verifiers.base import Siblings
from tests import small_models
from tests.arrays import log_softmax, softmax
from tests.drafters.test_model import TABLE, VOCAB, Counting, agrees, drafter, row
from tests.drafters.views import propose, request

WIDTHS = (3, 2, 1)


def view_of(tokens: Sequence[int], tree: object, *, verifier: str = "matching", **params: Any) -> Request:
    return request(tokens, speculation={"tree": tree, "tree_nodes": 9, "verifier": verifier}, **params)


def before(view: Request, draft: Draft, node: int) -> list[int]:
    """The text that leads to a node, itself not included."""
    return [*view.tokens, *(draft.tokens[i] for i in path_to(draft.parents, draft.parents[node]))]


def ranking(view: Request, tokens: list[int], depth: int) -> Floats:
    """What the tokens behind a text are ranked by: logits, and the position's noise if they are sampled."""
    weights = row(tokens)
    if view.params.greedy:
        return weights
    return log_softmax(weights / view.params.temperature) + view.noise.gumbel(len(view.tokens) + depth, VOCAB)


def best(scores: Floats | NDArray[np.float64], count: int) -> list[int]:
    """The highest first."""
    found: list[int] = np.argsort(-scores)[:count].tolist()
    return found


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_children_of_a_static_tree_are_the_best(temperature: float) -> None:
    for seed in range(8):
        view = view_of([1, 2, 3], WIDTHS, temperature=temperature, seed=seed)
        source = drafter()
        source.start(view)
        draft = propose(source, view, 15)
        assert draft.q_logits is None
        assert depths(draft.parents) == [0] * 3 + [1] * 6 + [2] * 6
        at = depths(draft.parents)
        for parent in {*draft.parents}:
            nodes = [i for i, p in enumerate(draft.parents) if p == parent]
            scores = ranking(view, before(view, draft, nodes[0]), at[nodes[0]])
            assert [draft.tokens[i] for i in nodes] == best(scores, len(nodes))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("nodes", [1, 4, 9])
def test_a_dynamic_tree_is_the_best_of_all(temperature: float, nodes: int) -> None:
    for seed in range(5):
        view = view_of([1, 2, 3], "dynamic", temperature=temperature, seed=seed)
        source = drafter()
        source.start(view)
        draft = propose(source, view, nodes)
        scores: dict[tuple[int, ...], float] = {}

        def visit(path: tuple[int, ...], so_far: float, view: Request, scores: dict[tuple[int, ...], float]) -> None:
            if len(path) < view.depth_limit:
                logs = log_softmax(ranking(view, [*view.tokens, *path], len(path)))
                for t in range(VOCAB):
                    scores[(*path, t)] = so_far + float(logs[t])
                    visit((*path, t), scores[(*path, t)], view, scores)

        visit((), 0.0, view, scores)
        likeliest = sorted(scores, key=lambda path: -scores[path])[:nodes]
        assert {(*before(view, draft, i)[3:], draft.tokens[i]) for i in range(len(draft))} == set(likeliest)


def test_the_cache_is_left_with_the_request_s_tokens() -> None:
    """After any tree and any outcome the next draft is that of a fresh drafter."""
    rng = random.Random(0)
    for tree in (WIDTHS, "dynamic", (-1, 0, 0, -1, 1)):
        source, view = drafter(), view_of([1, 2, 3], tree)
        source.start(view)
        for _ in range(8):
            draft = propose(source, view, rng.randint(1, 9))
            agrees(source, view)
            assert source.model.sequences[view.id].cached == view.tokens
            fresh = drafter()
            fresh.start(view)
            assert propose(fresh, view, len(draft)).tokens == draft.tokens
            node = rng.randrange(-1, len(draft))
            view.tokens += [*(draft.tokens[i] for i in path_to(draft.parents, node)), rng.randrange(VOCAB)]


def test_one_run_a_level_for_all_requests() -> None:
    model = Counting(TABLE.table, max_seq_len=64)
    source = drafter(model, slots=3)
    views = [
        request([1, 2], id="chain"),
        request([3], id="tree", speculation={"tree": WIDTHS}),
        request([2, 2, 2], id="dynamic", speculation={"tree": "dynamic"}),
    ]
    for view in views:
        source.start(view)
    drafts = source.propose(views, [3, 15, 1])
    assert [len(draft) for draft in drafts] == [3, 15, 1]
    assert model.fed == [2 + 1 + 3, 1 + 3 + 1, 1 + 6]  # what each run was fed: a level of every tree
    for view, draft, budget in zip(views, drafts, [3, 15, 1], strict=True):
        alone = drafter(slots=3)
        alone.start(view)
        assert propose(alone, view, budget).tokens == draft.tokens


def test_a_tree_of_width_one_is_the_chain() -> None:
    for verifier, temperature in (("matching", 0.0), ("matching", 1.0), ("rejection", 1.0)):
        chain = request([1, 2, 3], speculation={"verifier": verifier}, temperature=temperature)
        tree = view_of([1, 2, 3], None, verifier=verifier, temperature=temperature)
        object.__setattr__(tree.speculation, "tree", (1, 1, 1, 1))
        drafts = []
        for view in (chain, tree):
            source = drafter()
            source.start(view)
            drafts.append(propose(source, view, 4))
        assert drafts[0].tokens == drafts[1].tokens
        assert drafts[0].parents == drafts[1].parents
        if drafts[0].q_logits is not None:
            assert drafts[1].q_logits is not None
            assert np.array_equal(drafts[0].q_logits, drafts[1].q_logits)


@pytest.mark.parametrize("manner", Siblings)
def test_rows_of_q_for_verifiers_that_compare(manner: Siblings) -> None:
    """Drawn trees carry the row each node was drawn from; trees that rank their nodes carry none."""
    view = view_of([1, 2, 3], WIDTHS, temperature=1.0)
    view.verifier = type(
        "Verifier",
        (),
        {"shares_noise": False, "siblings": manner, "takes_trees": True, "name": "test"},
    )()
    source = drafter()
    source.start(view)
    draft = propose(source, view, 15)
    assert draft.q_logits is not None
    for node in range(len(draft)):
        expected = softmax(row(before(view, draft, node)))
        family = [i for i, parent in enumerate(draft.parents) if parent == draft.parents[node]]
        if manner is Siblings.GREEDY and len(family) > 1:
            others = [draft.tokens[i] for i in family[1:]]
            assert others == best(expected, len(others))
            certain, rest = np.zeros_like(expected), expected.copy()
            certain[draft.tokens[node]], rest[others] = 1.0, 0.0
            expected = rest / rest.sum() if node == family[0] else certain
        np.testing.assert_allclose(softmax(draft.q_logits[node]), expected, atol=1e-6, rtol=1e-5)
    siblings = [draft.tokens[i] for i in range(3)]
    assert manner is Siblings.INDEPENDENT or len(set(siblings)) == 3
    object.__setattr__(view.speculation, "tree", "dynamic")
    ranked = propose(source, view, 6)
    assert ranked.q_logits is None
    assert ranked.tokens[0] == int(row([1, 2, 3]).argmax())


def test_a_tree_stops_where_the_cache_is_full() -> None:
    view = view_of([1] * 58, WIDTHS)
    source = drafter()  # 64 positions
    source.start(view)
    draft = propose(source, view, 15)
    assert len(draft) == 6  # beyond its context it may not propose
    agrees(source, view)


class Blind(TableModel):
    """Says nothing that could be drawn."""

    def forward(self, batch: ForwardBatch, cache: object) -> ForwardOutput:
        out = super().forward(batch, cache)  # type: ignore[arg-type]
        return ForwardOutput(np.full_like(host(out.logits), np.nan), out.hidden)


def test_numbers_that_are_none_make_no_tree() -> None:
    view = view_of([1, 2], "dynamic")
    source = drafter(Blind(TABLE.table.copy(), max_seq_len=64))
    source.start(view)
    with pytest.raises(Exception, match="nan"):
        propose(source, view, 4)


@pytest.mark.parametrize("kind", ["fp32", "int8"])
def test_on_a_real_architecture(kind: str) -> None:
    """A tree grown level by level, with a mask over rows fed before, says what reading each path alone says."""
    model = small_models.llama(kind, max_seq_len=64)
    view = view_of(small_models.ids(20), (3, 2, 2), seed=2)
    spec = CacheSpec(max_seq_len=64)
    source = ModelDrafter(DraftModel(model, vocab_size=64, cache=spec))
    source.start(view)
    draft = propose(source, view, 21)
    inner = [node for node, depth in enumerate(depths(draft.parents)) if depth < 2]
    assert inner
    for node in inner:
        text = [*before(view, draft, node), draft.tokens[node]]
        cache = model.new_cache(spec)
        (logits,) = small_models.feed(model, cache, (cache.allocate(), text))
        mine = [draft.tokens[i] for i, p in enumerate(draft.parents) if p == node]
        assert mine == best(logits[-1], 2)
