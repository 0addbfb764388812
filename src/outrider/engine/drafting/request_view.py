"""A request as drafters see it while they propose: with the policy that decides how long drafts grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.config import SamplingParams, SpeculationParams
from outrider.core.constraint import Constraint
from outrider.core.verify import DraftSampler
from outrider.engine.adaptive.policy import DraftLengthPolicy
from outrider.engine.request import Request


@dataclass(frozen=True, slots=True)
class PolicyView:
    """The ``RequestView`` of an adaptive request: the policy answers for the length, the request for the rest."""

    request: Request
    policy: DraftLengthPolicy

    def should_continue(self, source: str, paths: Sequence[Sequence[float]]) -> bool:
        return self.policy.should_continue(self.request, source, paths)

    @property
    def id(self) -> str:
        return self.request.id

    @property
    def tokens(self) -> Sequence[int]:
        return self.request.tokens

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
    def constraint(self) -> Constraint | None:
        return self.request.constraint

    @property
    def speculation(self) -> SpeculationParams:
        return self.request.speculation

    @property
    def depth_limit(self) -> int:
        return self.request.depth_limit

    def draws(self) -> DraftSampler:
        return self.request.draws()
