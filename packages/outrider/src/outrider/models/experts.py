"""Mixtures of experts: their sizes, and how a router chooses and weighs them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

__all__ = ["ExpertReads", "Experts", "Router"]

Router = Literal["softmax", "sigmoid", "softmax_of_used"]
"""From a router's numbers to the scores of experts: softmax over all, sigmoid, or softmax over those in use alone."""


@dataclass(frozen=True, kw_only=True)
class Experts:
    """A mixture of experts: a router scores them for each token; the best are computed, and summed by its weights.

    A weight is the expert's score; ``normalised``, divided by the larger of ``sum + sum_added`` and ``least_sum``, the
    sum being over the token's experts; then multiplied by ``scale``.
    """

    count: int
    used: int  # experts that one token is computed by
    size: int  # intermediate size of one expert
    normalised: bool  # the weights of a token's experts sum to 1; those of ``softmax_of_used`` always do
    layers: tuple[bool, ...] = ()  # for each layer, whether it has experts; empty: all
    beside: bool = False  # layers have an MLP too, and the experts beside it
    bias: bool = False  # on the projections of experts
    scales_inputs: bool = False  # the weight multiplies the expert's input in place of its output

    shared_size: int = 0  # intermediate size of an expert that every token is computed by; 0: none
    shared_gate: bool = True  # its output is multiplied by a sigmoid

    router: Router = "softmax"
    router_bias: bool = False  # on the router's numbers
    score_bias: bool = False  # added to scores for the choice alone, ``mlp.gate.e_score_correction_bias``
    groups: int = 0  # groups of experts that stand together, of which the best alone are chosen from; 0: no groups
    groups_used: int = 0
    best_of_group: Literal[1, 2] = 2  # the number of experts whose scores' sum is the group's
    sum_added: float = 0.0
    least_sum: float = 0.0
    scale: float = 1.0

    def of_a_row(self, layers: int) -> int:
        """Experts that a token is computed by in all of so many layers, without shared ones."""
        return self.used * (sum(self.layers) if self.layers else layers)

    @property
    def plain(self) -> bool:
        """Whether the router is Mixtral's or Qwen3-MoE's: a softmax, normalised or not."""
        return self == Experts(
            count=self.count,
            used=self.used,
            size=self.size,
            normalised=self.normalised,
            layers=self.layers,
            bias=self.bias,
            beside=self.beside,
            shared_size=self.shared_size,
            shared_gate=self.shared_gate,
            router_bias=self.router_bias,
        )


@dataclass(frozen=True)
class ExpertReads:
    """Distinct experts that a forward pass read, summed over layers, without shared ones."""

    count: int
    by_rows: Mapping[int, float]
    """The mean over windows of so many neighbouring rows (1, 2, 4 ... 32), as far as the pass has a whole one."""
