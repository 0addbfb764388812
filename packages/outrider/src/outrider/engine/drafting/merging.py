"""Merges the proposals of a group of drafters into one draft: ``draft="a+b"``."""

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
    """The group's proposals in one tree of at most ``budget`` nodes; the first proposal if the verifier takes chains.

    For an adaptive request, ``budget`` is per proposal, because its policy then selects the best nodes, and a node that
    several drafters proposed is credited to the cheapest.
    """
    if request.adaptive and request.verifier.takes_trees:
        group = tuple(sorted(group, key=lambda name: _milliseconds(costs.get(name))))
    drafts = [draft for name in group if (draft := proposals.get(name))]
    if request.adaptive:
        budget *= len(drafts)
    return combine(drafts if request.verifier.takes_trees else drafts[:1], budget)


def _milliseconds(cost: ProposalCost | None) -> float:
    """The cost rounded to milliseconds, so that noise does not order drafters of equal cost."""
    return round(cost.seconds if cost else 0.0, 3)
