"""A request as drafters see it while they propose: with the policy that decides how long drafts grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.config import SpeculationParams
from outrider.drafters.api import ForwardingView
from outrider.engine.adaptive.policy import DraftLengthPolicy
from outrider.engine.drafting.draft_time import DraftTime
from outrider.engine.request import Request
from outrider.verify.verifiers import DraftSampler


@dataclass(frozen=True)
class PolicyView(ForwardingView):
    """A request with who decides how long its drafts grow: the time for them, and a policy if it is adaptive."""

    request: Request
    policy: DraftLengthPolicy
    time: DraftTime

    def should_continue(self, source: str, paths: Sequence[Sequence[float]]) -> bool:
        if not self.time.has_level(self.request.id):
            return False
        return not self.request.adaptive or self.policy.should_continue(self.request, source, paths)

    @property
    def seconds_left(self) -> float:
        return self.time.left()

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
