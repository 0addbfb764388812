"""One draft of what the drafters of a group propose for a request: ``draft="a+b"``."""

from __future__ import annotations

from collections.abc import Mapping

from outrider.config.combination import Group
from outrider.drafters.merge import combine
from outrider.engine.draft_length.policy import ProposalCost
from outrider.engine.request import Request
from outrider.verify.draft import Draft


def merge_proposals(
    request: Request, group: Group, proposals: Mapping[str, Draft], costs: Mapping[str, ProposalCost], budget: int
) -> Draft:
    """The group's proposals in one tree of at most ``budget`` nodes; under a verifier of chains, the first proposal.

    The tree of an adaptive request has that many nodes for each proposal, as its policy selects the best of them all.
    There a token proposed by several drafters is credited to the cheapest.
    """
    if request.adaptive and request.verifier.takes_trees:
        group = tuple(sorted(group, key=lambda name: _milliseconds(costs.get(name))))
    drafts = [draft for name in group if (draft := proposals.get(name))]
    if request.adaptive:
        budget *= len(drafts)
    return combine(drafts if request.verifier.takes_trees else drafts[:1], budget)


def _milliseconds(cost: ProposalCost | None) -> float:
    """Whole milliseconds, so that noise does not decide between drafters that cost the same."""
    return round(cost.seconds if cost else 0.0, 3)
