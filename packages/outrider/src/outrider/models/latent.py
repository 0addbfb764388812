"""Attention on latents (multi-head latent attention, DeepSeek-V2): its sizes."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["LatentAttention"]


@dataclass(frozen=True, kw_only=True)
class LatentAttention:
    """A row's cache entry is its latent, from which each head's key and value are made, and one rotated key part.

    A head's query and key have ``plain`` numbers of its own, and behind them ``rotated`` ones; the key's are those of
    the row, the same for all heads.
    """

    rank: int  # numbers of a latent; a multiple of 16
    query_rank: int  # numbers of the latent that queries are made from; 0: they are made from the hidden state
    plain: int
    rotated: int
    value_dim: int  # of a head; a multiple of 16
    eps: float  # of the norms of latents

    @property
    def row(self) -> int:
        """Numbers of a row in the cache."""
        return self.rank + self.rotated

    @property
    def query_dim(self) -> int:
        """Numbers of a head's query as it is projected."""
        return self.plain + self.rotated

    def num_weights(self, hidden: int, heads: int) -> int:
        """The number of weights in the matrices of a layer's attention."""
        queries = heads * self.query_dim * (self.query_rank or hidden) + self.query_rank * hidden
        made = self.rank * (self.plain + self.value_dim) + self.value_dim * hidden  # of each head
        return queries + self.row * hidden + heads * made
