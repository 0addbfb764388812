"""Tensors of an encoder–decoder model under their canonical names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig


class Renamed(Mapping[str, Tensor]):
    """A file's tensors by canonical names, and computed positions if the file has none."""

    def __init__(self, places: Mapping[str, str], held: Mapping[str, Tensor], config: EncoderDecoderConfig) -> None:
        self._places, self._held, self._config = dict(places), held, config
        missing = [f"{stack}.positions.weight" for stack in ("encoder", "decoder")]
        self._computed = [name for name in missing if config.positions == "learned" and name not in places]

    def __getitem__(self, name: str) -> Tensor:
        if name in self._computed:
            return sines(self._config.max_seq_len, self._config.hidden_size)
        value = self._held[self._places[name]]
        return value.flatten() if name == "logit_bias" else value

    def __iter__(self) -> Iterator[str]:
        yield from self._places
        yield from self._computed

    def __len__(self) -> int:
        return len(self._places) + len(self._computed)


def sines(positions: int, size: int) -> Tensor:
    """Marian's table: sines in the first half of the columns, cosines in the second: float32 [positions, size]."""
    rates = torch.pow(10000.0, -torch.arange(0, size, 2, dtype=torch.float64) / size)
    turns = torch.arange(positions, dtype=torch.float64)[:, None] * rates
    return torch.cat([turns.sin(), turns.cos()[:, : size // 2]], dim=1).float()
