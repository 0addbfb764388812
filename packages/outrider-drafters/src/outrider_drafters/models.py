"""Several draft models, their drafts merged (SpecInfer, Miao et al. 2023; docs/algorithms/draft-model.md)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from outrider.cache import KVCache
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.cost import DraftingCost
from outrider.drafters.merge import merge
from outrider.drafters.model.model import ModelDrafter
from outrider.verify.draft import Draft
from outrider_drafters.request_views import greedy


def build(context: DrafterContext) -> Drafter:
    """The source ``models``."""
    return ModelsDrafter([ModelDrafter(model, "models") for model in context.cached_draft_models])


class ModelsDrafter(Drafter):
    """Each model drafts a chain, or a tree of the request's shape, with its share of the budget.

    For verifiers that compare ``p`` with ``q``, the merged draft has no ``q``, so each model drafts its most
    likely tokens, which the one-hot rule accepts most often.
    """

    def __init__(self, drafters: Sequence[ModelDrafter]) -> None:
        """``drafters``: the most trusted first; it keeps its nodes when a budget is short."""
        self._drafters = drafters

    @property
    def caches(self) -> Sequence[KVCache]:
        return [cache for drafter in self._drafters for cache in drafter.caches]

    def time_drafts(self) -> DraftingCost | None:
        costs = [cost for drafter in self._drafters if (cost := drafter.time_drafts()) is not None]
        return reduce(DraftingCost.plus, costs) if costs else None

    def start(self, request: RequestView) -> None:
        for drafter in self._drafters:
            drafter.start(request)

    def finish(self, request_id: str) -> None:
        for drafter in self._drafters:
            drafter.finish(request_id)

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        views = [request if request.draws().shares_noise else greedy(request) for request in requests]
        proposed = [
            drafter.propose(views, [self._share(i, r, budget) for r, budget in zip(requests, budgets, strict=True)])
            for i, drafter in enumerate(self._drafters)
        ]
        return [merge(drafts, budget, "models") for *drafts, budget in zip(*proposed, budgets, strict=True)]

    def _share(self, index: int, request: RequestView, budget: int) -> int:
        """Nodes for one of the models; they sum to the budget, unless chains are shorter."""
        count = len(self._drafters)
        share = (budget + count - 1 - index) // count
        return share if request.speculation.tree is not None else min(share, request.depth_limit)
