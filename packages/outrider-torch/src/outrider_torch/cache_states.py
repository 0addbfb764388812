"""Recurrent states in torch tensors: for models that torch computes, on any device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outrider.cache.states import RecurrentStates, StateShape
from outrider.errors import CapacityError
from outrider_torch.cache_pool import TorchPool


class TorchStates(RecurrentStates):
    """``RecurrentStates`` of tensors."""

    grows = False

    def __init__(
        self, shape: StateShape, places: int, pending: int, branches: int = 0, *, device: torch.device | str = "cpu"
    ) -> None:
        """Raises CapacityError if memory is short."""
        self._device = torch.device(device)
        try:
            super().__init__(shape, places, pending, branches)
        except torch.OutOfMemoryError as error:
            raise CapacityError(f"no memory for the recurrent states of {places} sequences: use fewer") from error

    def _zeros(self, shape: tuple[int, ...]) -> Tensor:
        return TorchPool.zeros(shape, torch.float32, self._device)

    def _taken(self, held: Any) -> NDArray[np.float32]:
        copy: NDArray[np.float32] = held.cpu().numpy().copy()
        return copy

    def _given(self, array: NDArray[np.float32]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(self._device)
