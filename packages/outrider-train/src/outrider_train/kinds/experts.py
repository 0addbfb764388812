"""A mixture of experts as a torch module: for draft heads of targets that have one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider_torch.kernels.mlp import route
from outrider_train.target.llama import GatedMlp

__all__ = ["MixtureOfExperts"]


class _Router(nn.Linear):
    """Its scores' bias is a target's, and is not trained: no gradient reaches it."""

    e_score_correction_bias: Tensor | None

    def __init__(self, inputs: int, experts: int, *, bias: bool, score_bias: bool) -> None:
        super().__init__(inputs, experts, bias=bias)
        self.register_buffer("e_score_correction_bias", torch.zeros(experts) if score_bias else None)


class MixtureOfExperts(nn.Module):
    """The weighted sum of each row's best experts, and of the expert of all rows.

    An expert learns from the rows that choose it, and the router from the weights of those that were chosen. There is
    no loss for their balance: the head begins with the target's experts, which are balanced.
    """

    def __init__(self, config: ModelConfig) -> None:
        """Raises ``ConfigError`` for experts with biases, or whose weights are factors of their inputs."""
        super().__init__()
        of, d = config.experts, config.hidden_size
        assert of is not None
        if of.bias or of.scales_inputs or of.beside:
            raise ConfigError(
                f"a draft head of a {config.family} model cannot be trained: its experts have biases, factors of their "
                "inputs or an MLP beside them; use another target"
            )
        self.of = of
        self.gate = _Router(d, of.count, bias=of.router_bias, score_bias=of.score_bias)
        self.experts = nn.ModuleList(GatedMlp(config, of.size) for _ in range(of.count))
        self.shared_expert = GatedMlp(config, of.shared_size) if of.shared_size else None
        gated = of.shared_size and of.shared_gate
        self.shared_expert_gate = nn.Linear(d, 1, bias=False) if gated else None

    def forward(self, x: Tensor) -> Tensor:
        """x: float [..., d] -> [..., d]."""
        rows = x.reshape(-1, x.shape[-1])
        weights, chosen = route(self.of, self.gate(rows).float(), self.gate.e_score_correction_bias)
        out = torch.zeros_like(rows)
        for index in chosen.unique().tolist():
            own, places = (chosen == index).nonzero(as_tuple=True)
            made = self.experts[index](rows[own]) * weights[own, places, None].to(rows.dtype)
            out = out.index_add(0, own, made.to(out.dtype))
        if self.shared_expert is not None:
            shared = self.shared_expert(rows)
            if self.shared_expert_gate is not None:
                shared = shared * self.shared_expert_gate(rows).float().sigmoid().to(shared.dtype)
            out = out + shared
        return out.view(x.shape)
