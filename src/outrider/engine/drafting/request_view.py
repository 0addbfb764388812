"""A request as drafters see it while they propose: with the policy that decides how long drafts grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.config import SpeculationParams
from outrider.core.verify import DraftSampler
from outrider.drafters.api import ForwardingView
from outrider.engine.adaptive.policy import DraftLengthPolicy
from outrider.engine.request import Request


@dataclass(frozen=True)
class PolicyView(ForwardingView):
    """The ``RequestView`` of an adaptive request: the policy answers for the length, the request for the rest."""

    request: Request
    policy: DraftLengthPolicy

    def should_continue(self, source: str, paths: Sequence[Sequence[float]]) -> bool:
        return self.policy.should_continue(self.request, source, paths)

    @property
    def tokens(self) -> Sequence[int]:
        return self.request.tokens

    @property
    def speculation(self) -> SpeculationParams:
        return self.request.speculation

    @property
    def depth_limit(self) -> int:
        return self.request.depth_limit

    def draws(self) -> DraftSampler:
        return self.request.draws()
