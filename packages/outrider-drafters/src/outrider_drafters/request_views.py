"""Views of a request that one draft source passes to another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams, SpeculationParams
from outrider.drafters.api import RequestView
from outrider.models.inputs import InputSource
from outrider.verify.arrays import Array
from outrider.verify.constraint import Constraint
from outrider.verify.verifiers.base import DraftSampler, Drawn


class ForwardingView:
    """The fields of a ``RequestView`` that views forward to their request."""

    request: RequestView

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def prompt_length(self) -> int:
        return self.request.prompt_length

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def slot(self) -> int | None:
        return self.request.slot

    @property
    def num_computed_tokens(self) -> int:
        return self.request.num_computed_tokens

    @property
    def cache_salt(self) -> str:
        return self.request.cache_salt

    @property
    def prefix_keys(self) -> Sequence[int]:
        return self.request.prefix_keys

    @property
    def is_alone(self) -> bool:
        return self.request.is_alone

    @property
    def prefix_salt(self) -> str:
        return self.request.prefix_salt

    @property
    def tenant(self) -> str:
        return self.request.tenant

    @property
    def input(self) -> InputSource:
        return self.request.input

    @property
    def constraint(self) -> Constraint | None:
        return self.request.constraint

    @property
    def seconds_left(self) -> float:
        return self.request.seconds_left


@dataclass(frozen=True)
class ChangedView(ForwardingView):
    """A ``RequestView`` with some of its fields changed."""

    request: RequestView
    tokens: Sequence[int]
    depth_limit: int
    speculation: SpeculationParams
    drawing: DraftSampler

    def should_continue(self, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """As ``RequestView.should_continue``, without an estimate of gain: inner drafts are not measured."""
        return self.seconds_left > 0

    def draws(self) -> DraftSampler:
        return self.drawing


@dataclass(frozen=True)
class _Shifted(DraftSampler):
    """Draws shifted by ``shift`` tokens, so that they equal the draws of the step at the same positions."""

    shift: int = 0

    def draw(self, log_weights: Array, *, depth: int, node: int) -> int:
        return super().draw(log_weights, depth=depth + self.shift, node=node + self.shift)

    def siblings(self, log_weights: Array, count: int, *, depth: int, node: int) -> Drawn:
        return super().siblings(log_weights, count, depth=depth + self.shift, node=node + self.shift)

    def race_noise(self, tokens: NDArray[np.int64] | int, *, depth: int) -> NDArray[np.float32]:
        return super().race_noise(tokens, depth=depth + self.shift)

    def race_keys(self, depth: int) -> bytes:
        return super().race_keys(depth + self.shift)


def with_drafted(request: RequestView, drafted: Sequence[int], depth: int) -> ChangedView:
    """The request as if ``drafted`` were committed, for a chain of at most ``depth`` further tokens.

    A source that drafts for the view draws with the noise of those positions in a chain.
    """
    draws = request.draws()
    return ChangedView(
        request,
        [*request.tokens, *drafted],
        depth,
        request.speculation,
        _Shifted(draws.noise, draws.base, draws.shares_noise, draws.sibling_sampling, draws.takes_trees, len(drafted)),
    )


@dataclass(frozen=True)
class _ChainView(ForwardingView):
    """A view of a request that replaces its tree by a chain."""

    request: RequestView
    speculation: SpeculationParams

    @property
    def tokens(self) -> Sequence[int]:
        return self.request.tokens

    @property
    def depth_limit(self) -> int:
        return self.request.depth_limit

    def should_continue(self, source: str, paths: Sequence[Sequence[float]]) -> bool:
        return self.request.should_continue(source, paths)

    def draws(self) -> DraftSampler:
        return self.request.draws()


def as_chain(request: RequestView) -> RequestView:
    """The request with chains instead of trees, for a source whose drafts never branch."""
    if request.speculation.tree is None:
        return request
    return _ChainView(request, replace(request.speculation, tree=None))


def greedy(request: RequestView) -> ChangedView:
    """The request with drafts of the most likely tokens."""
    speculation = replace(request.speculation, draft_temperature=0.0)
    return ChangedView(request, request.tokens, request.depth_limit, speculation, request.draws())
