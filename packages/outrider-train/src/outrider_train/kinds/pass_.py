"""Training of PaSS's look-ahead embeddings through the frozen target (Monea et al. 2023, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional as F

from outrider.drafters.heads.config import HeadConfig
from outrider_torch.heads.pass_ import LookaheadEmbeddings
from outrider_train.batches import Batch
from outrider_train.kinds.draft import dense_mask
from outrider_train.target.llama import Llama, PastKeyValues
from outrider_train.tasks import DraftPosition, HeadTask, noise


class PassTask(HeadTask):
    """[LA]_1 ... [LA]_T behind some rows of each window; gradients pass through the target to the embeddings alone.

    ::

        tokens   0 1 2 3 4 5 | behind 2: [LA]1 [LA]2 | behind 4: [LA]1 [LA]2
        [LA]2 behind 2 stands at position 4 and sees tokens 0 1 2, [LA]1 behind 2 and itself

    The tokens' keys and values are made without gradients.
    """

    module: LookaheadEmbeddings

    def __init__(self, module: LookaheadEmbeddings, config: HeadConfig, target: Llama, *, seed: int) -> None:
        super().__init__(module, config, target, depth=config.heads, max_shift=config.heads)
        self.seed = seed

    def draft_positions(self, batch: Batch, step: int | None) -> Iterator[DraftPosition]:
        count, asked, ahead = len(batch.tokens), batch.queries, self.config.heads
        picks, device = self._picks(asked, step).to(batch.tokens.device), batch.tokens.device
        p, taken = batch.context, len(picks)
        past = self._read(batch)
        embeddings = self.module().to(self.target.embedding.dtype).repeat(taken, 1)  # [taken * T, d]
        x = embeddings.expand(count, -1, -1)
        at = picks.repeat_interleave(ahead)  # column of the row each [LA] is behind
        offset = torch.arange(ahead, device=device).repeat(taken)
        positions = batch.positions[:, p:][:, at] + 1 + offset
        columns = torch.arange(p + asked, device=device)
        tokens = (columns <= (p + at)[:, None]) & batch.attention_mask[:, None]  # [B, taken * T, P + A]
        ours = (at[:, None] == at) & (offset[:, None] >= offset)
        mask = torch.cat([tokens, ours.expand(count, -1, -1)], dim=-1)[:, None]
        hidden = self.target(x, positions, mask, past).hidden.unflatten(1, (taken, ahead))
        own = torch.zeros(count, asked, dtype=torch.bool, device=device)
        own[:, picks] = True
        for i in range(ahead):
            rows = hidden.new_zeros(count, asked, hidden.shape[-1]).index_copy(1, picks, hidden[:, :, i])
            yield DraftPosition(rows.flatten(0, 1), i + 1, 1.0, own=own.flatten())

    def _picks(self, asked: int, step: int | None) -> Tensor:
        """Query columns to look ahead from: every (T + 1)th, from a random first one."""
        every = self.config.heads + 1
        first = 0 if step is None else int(torch.randint(every, (1,), generator=noise(self.seed, step)))
        return torch.arange(min(first, asked - 1), asked, every)

    @torch.no_grad()
    def _read(self, batch: Batch) -> PastKeyValues:
        """The target's keys and values of every token row."""
        mask = dense_mask(batch)
        x = F.embedding(batch.tokens[:, : mask.shape[-1]], self.target.embedding)
        past: PastKeyValues = self.target(x, batch.positions, mask, keep=True).past
        return past
