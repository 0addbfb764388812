"""How much is drafted: the questions that the engine asks, and the answers of a fixed length."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from outrider.engine.request import Request
from outrider.models.experts import ExpertReads
from outrider.verify.draft import Draft


@dataclass(frozen=True)
class ProposalCost:
    """What a source's proposal for a request took."""

    seconds: float
    levels: int  # of the proposal; 0: it proposed nothing


class DraftLength:
    """Decides how many nodes are drafted and scored, and learns from what became of them.

    One step asks ``budget``, then the sources' questions, then ``select``, and ends with ``observe`` for each request.
    No answer may depend on the noise that tokens are drawn with. The answers here are those of a fixed length: as many
    nodes as each request asks for; nothing is measured, paused or left out.
    """

    def budget(self, requests: Sequence[Request], granted: Sequence[int]) -> list[int]:
        """Nodes to ask each request's sources for, at most ``granted[i]``, which the scheduler has room for."""
        return list(granted)

    def asks(self, request: Request, source: str, drafts: Sequence[Draft]) -> bool:
        """Whether a source is asked, beside the ``drafts`` that cheaper ones have proposed in this step."""
        return True

    def cost_per_level(self, source: str) -> float:
        """Seconds that a source takes for a level of a draft, as far as is known. Cheap ones are asked first."""
        return 0.0

    def should_continue(self, request: Request, source: str, paths: Sequence[Sequence[float]]) -> bool:
        """Whether a further level of a draft is likely to save more time than it takes.

        ``paths``: of each place where the source would look, its scores of the tokens down to there.
        """
        return True

    def select(
        self, requests: Sequence[Request], drafts: Sequence[Draft], num_tokens: Sequence[int], budgets: Sequence[int]
    ) -> list[Draft]:
        """The part of each draft that is worth scoring, at most ``budgets[i]`` nodes of a request's.

        ``num_tokens``: rows that come with each request in any case.
        """
        return list(drafts)

    def observe(self, request: Request, committed: Sequence[int], draft: Draft, path: Sequence[int]) -> None:
        """Learn from the tokens that a step committed; ``path``: the nodes of ``draft`` that were accepted."""

    def observe_proposals(self, request: Request, costs: Mapping[str, ProposalCost]) -> None:
        """Learn what the proposal of each source cost."""

    def observe_forward_pass(
        self, requests: Sequence[Request], drafts: Sequence[Draft], seconds: float, experts: int = 0
    ) -> None:
        """Learn what a forward pass cost in which every request was decoding.

        ``experts``: distinct ones that it read, summed over layers; 0: nobody counted them.
        """

    def observe_prompt(self, reads: ExpertReads) -> None:
        """Learn how many experts the neighbours in a prompt share."""

    def observe_step(self, requests: int, seconds: float) -> None:
        """Learn what such a step took outside its forward pass."""

    def pass_seconds(self, rows: int, context: int) -> float:
        """What a forward pass of one request takes that has so many rows behind so many tokens."""
        return 1.0

    def calibrate(self, sources: Sequence[str] = ()) -> None:
        """Measure what there is to measure now, also of these sources, rather than in the first step that needs it."""

    def finish(self, request_id: str) -> None:
        """Forget a request."""

    def forget_texts(self) -> None:
        """Forget what was learned from texts, as the model that writes them is another; no request is running."""
