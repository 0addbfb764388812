"""Several draft models in one tree."""

from __future__ import annotations

from outrider.cache import CacheSpec
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.model.model import ModelDrafter
from outrider.models.toy import TableModel
from outrider.verify.tree import path_to
from outrider.verify.verifiers.base import Siblings
from outrider_drafters.models import ModelsDrafter
from tests.drafters.test_model import VOCAB
from tests.drafters.views import request

TABLES = [TableModel.random(VOCAB, order=2, seed=seed, max_seq_len=64) for seed in (1, 2, 3)]


def alone(table: TableModel) -> ModelDrafter:
    return ModelDrafter(DraftModel(table, vocab_size=VOCAB, cache=CacheSpec(max_seq_len=64)))


def drafter() -> ModelsDrafter:
    return ModelsDrafter([alone(table) for table in TABLES])


def test_every_model_s_chain_is_in_the_tree() -> None:
    for temperature, seed in ((0.0, 0), (1.0, 1), (1.0, 2)):
        options = {"draft": "models", "spec_length": 4}
        view = request([1, 2, 3], speculation=options, temperature=temperature, seed=seed)
        together = drafter()
        together.start(view)
        (draft,) = together.propose([view], [16])
        assert draft.q_logits is None
        paths = {tuple(draft.tokens[i] for i in path_to(draft.parents, node)) for node in range(len(draft))}
        for table in TABLES:
            single = alone(table)
            single.start(view)
            (chain,) = single.propose([view], [4])
            assert chain.tokens in paths
        assert max(len(path) for path in paths) == 4
        together.finish(view.id)
        together.finish(view.id)
        assert all(cache.free_tokens() == 64 for cache in together.caches)


def test_budgets_are_shared_out() -> None:
    view = request([1, 2, 3], speculation={"draft": "models"})
    together = drafter()
    together.start(view)
    assert [together._share(i, view, 5) for i in range(3)] == [2, 2, 1]
    for budget in range(1, 9):
        (draft,) = together.propose([view], [budget])
        assert 1 <= len(draft) <= budget


def test_without_coupling_each_drafts_its_most_likely_tokens() -> None:
    view = request([1, 2, 3], temperature=1.0, seed=4)
    object.__setattr__(view.speculation, "tree", (2, 1))
    view.verifier = type(
        "Verifier", (), {"shares_noise": False, "siblings": Siblings.INDEPENDENT, "takes_trees": True, "name": "test"}
    )()
    together = drafter()
    together.start(view)
    (draft,) = together.propose([view], [12])
    assert draft.q_logits is None
    best = TABLES[0].table[2, 3].argsort()[:-3:-1].tolist()
    assert [t for t, p in zip(draft.tokens, draft.parents, strict=True) if p == -1][:2] == best
