"""Optimisers of drafts: AdamW for all parameters, or Muon for the weight matrices of hidden layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from outrider.errors import ConfigError

OPTIMIZERS = ("adamw", "muon")
MUON_LR = 10.0
"""Muon's learning rate over AdamW's: 0.01 for matrices where the rest has 0.001."""
MOMENTUM = 0.95
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_ITERATIONS = 5


class Muon(torch.optim.AdamW):
    """Muon for the parameter groups with ``muon=True``, AdamW for the others.

    An update of a weight matrix W, float [rows, cols], with gradient G of the same shape:

        M <- 0.95 M + 0.05 G
        U  = orthogonalize(0.95 M + 0.05 G)                                 Nesterov's momentum
        W <- (1 - lr weight_decay) W - lr 0.2 sqrt(max(rows, cols)) U

    Jordan et al. 2024, *Muon: an optimizer for hidden layers in neural networks*. The factor of U is that of Liu et
    al. 2025, *Muon is scalable for LLM training* (arXiv 2502.16982, equation 4): it makes updates as large as AdamW's.

    State of a matrix: ``momentum_buffer``, M. State of the others: as of ``torch.optim.AdamW``. A step sets the
    gradients of matrices to None.
    """

    def __init__(self, groups: list[dict[str, Any]], *, precision: torch.dtype, **adamw: Any) -> None:
        """``precision``: dtype of the orthogonalising products. ``adamw``: arguments of ``torch.optim.AdamW``."""
        super().__init__(groups, **adamw)
        self._precision = precision

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            if group.get("muon"):
                self._step_matrices(group)
        super().step()  # leaves out parameters without a gradient
        return loss

    def _step_matrices(self, group: dict[str, Any]) -> None:
        lr, decay = group["lr"], group["weight_decay"]
        for parameter in group["params"]:
            if parameter.grad is None:
                continue
            gradient, state = parameter.grad, self.state[parameter]
            if not state:
                state["momentum_buffer"] = torch.zeros_like(parameter)
            momentum = state["momentum_buffer"].lerp_(gradient, 1 - MOMENTUM)
            update = orthogonalize(gradient.lerp(momentum, MOMENTUM), self._precision)
            parameter.mul_(1 - lr * decay)
            parameter.add_(update.to(parameter.dtype), alpha=-lr * 0.2 * math.sqrt(max(parameter.shape)))
            parameter.grad = None


def orthogonalize(matrix: Tensor, precision: torch.dtype) -> Tensor:
    """About U V^T, where ``matrix`` is U S V^T: ``precision`` [rows, cols], with singular values from 0.7 to 1.2.

    Five Newton-Schulz iterations X <- a X + b (X X^T) X + c (X X^T)^2 X, from a matrix of Frobenius norm 1. The
    coefficients are those of Jordan et al. 2024: they grow small singular values fast, and end near 1 rather than at 1.
    Those below a thousandth of the norm stay smaller.
    """
    a, b, c = _COEFFICIENTS
    x: Tensor = (matrix / matrix.norm().clamp(min=1e-7)).to(precision)
    tall = x.shape[0] > x.shape[1]
    x = x.t() if tall else x  # so that X X^T is the smaller of both squares
    for _ in range(_ITERATIONS):
        square = x @ x.t()
        x = torch.addmm(x, torch.addmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.t() if tall else x


def matrices(module: nn.Module) -> list[Tensor]:
    """The parameters that Muon updates, in the module's order: trained weights of linear layers except LM heads."""
    return [
        layer.weight
        for name, layer in module.named_modules()
        if isinstance(layer, nn.Linear) and name.rpartition(".")[2] != "lm_head" and layer.weight.requires_grad
    ]


def make_optimizer(
    name: str, module: nn.Module, *, lr: float, weight_decay: float, precision: torch.dtype
) -> torch.optim.Optimizer:
    """One of ``OPTIMIZERS`` for the trained parameters. Each group's ``lr_factor`` multiplies ``lr``.

    ``lr``: AdamW's highest learning rate. Raises ``ConfigError`` if ``module`` has nothing for Muon to update.
    """
    parameters = [p for p in module.parameters() if p.requires_grad]
    options: dict[str, Any] = {"lr": lr, "betas": (0.9, 0.95), "weight_decay": weight_decay}
    if name == "adamw":
        return torch.optim.AdamW([{"params": parameters, "lr_factor": 1.0}], **options)
    hidden = matrices(module)
    if not hidden:
        raise ConfigError(f"optimizer={name!r} updates the matrices of hidden layers, and this has none: use adamw")
    known = set(hidden)
    rest = [p for p in parameters if p not in known]
    groups = [
        {"params": hidden, "muon": True, "lr_factor": MUON_LR},
        {"params": rest, "muon": False, "lr_factor": 1.0},
    ]
    return Muon(groups, precision=precision, **options)


def describe(name: str, lr: float) -> str:
    """The optimiser and its highest learning rates, for reports."""
    adamw = f"AdamW (learning rate {lr:g})"
    return adamw if name == "adamw" else f"Muon (learning rate {lr * MUON_LR:g}) for matrices, {adamw} for the rest"
