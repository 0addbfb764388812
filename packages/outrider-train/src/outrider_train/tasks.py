"""The interface of a draft in training: a module, and its guesses for a batch, depth by depth."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from outrider.drafters.heads.config import HeadConfig
from outrider_torch.heads import load_head, save_head
from outrider_torch.heads.blockwise import BlockwiseHeads
from outrider_torch.heads.medusa import MedusaHeads
from outrider_torch.heads.vocabulary import ScoringHead
from outrider_train.batches import Batch
from outrider_train.target.llama import Llama


@dataclass(frozen=True)
class DraftPosition:
    """One draft position: the LM head's input at each query row, and the shift to its label row.

    ``rows``: float [B * A, d]. ``shift``: row t is judged by the target's distribution at row t + shift. ``weight`` of
    the mean loss of these rows, 0 where they are only measured. ``extra``: a further loss, or None.
    ``own``: bool [B * A], the query rows that guess; None: all.
    """

    rows: Tensor
    shift: int
    weight: float
    extra: Tensor | None = None
    own: Tensor | None = None


class Task(Protocol):
    """A draft in training."""

    module: nn.Module
    depth: int  # draft positions that ``draft_positions`` yields
    max_shift: int  # the largest shift
    rule: str  # of options.RULES

    @property
    def vocabulary(self) -> Tensor | None:
        """int64 [scored]: the target ids that the LM head scores; None: all."""

    def head(self) -> Tensor:
        """The LM head's rows, float [scored, d]."""

    def draft_positions(self, batch: Batch, step: int | None) -> Iterator[DraftPosition]:
        """Every draft position, nearest first. ``step``: training step, seeds randomness; None: measure all depths."""

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        """Write the files that drafting loads. ``facts``: ``acceptance`` and ``training`` of ``HeadConfig``."""

    def restore(self, folder: Path) -> None:
        """Take the weights that ``save`` wrote."""


class HeadTask(ABC):
    """Base of the heads' tasks: their files, and the rows of the target's LM head that score them."""

    module: nn.Module
    rule: str = "kl"

    def __init__(self, module: nn.Module, config: HeadConfig, target: Llama, *, depth: int, max_shift: int) -> None:
        self.module, self.config, self.target = module, config, target
        self.depth, self.max_shift = depth, max_shift
        self._rows = target.head.detach()
        if self.vocabulary is not None:
            self._rows = self._rows[self.vocabulary].contiguous()

    @property
    def vocabulary(self) -> Tensor | None:
        return self.module.draft_ids if isinstance(self.module, ScoringHead) else None

    def head(self) -> Tensor:
        if isinstance(self.module, ScoringHead) and self.module.lm_head is not None:
            return self.module.lm_head.weight
        return self._rows

    def save(self, folder: Path, facts: Mapping[str, Any]) -> None:
        self.config = replace(self.config, **facts)
        save_head(folder, self.module, self.config)

    def restore(self, folder: Path) -> None:
        module, self.config = load_head(folder)
        self.module.load_state_dict(module.state_dict())

    @abstractmethod
    def draft_positions(self, batch: Batch, step: int | None) -> Iterator[DraftPosition]: ...


class MedusaTask(HeadTask):
    """Medusa-1 and blockwise heads: each head's cross-entropy, weighted λ^k (Cai et al. 2024, equation 1)."""

    def __init__(self, module: MedusaHeads | BlockwiseHeads, config: HeadConfig, target: Llama, decay: float) -> None:
        super().__init__(module, config, target, depth=config.heads, max_shift=config.heads)
        self.weights = [decay ** (k + 1) for k in range(config.heads)]

    def draft_positions(self, batch: Batch, step: int | None) -> Iterator[DraftPosition]:
        hidden = batch.features[:, batch.context :].flatten(0, 1)
        for k, rows in enumerate(self.module(hidden.float())):
            yield DraftPosition(rows, k + 1, self.weights[k])


def noise(seed: int, step: int) -> torch.Generator:
    """The random generator of one training step."""
    return torch.Generator().manual_seed((seed * 1_000_003 + step) % (1 << 62))


LogFn = Callable[[str], None]
