"""Matching: keep the draft tokens that the target's own draws confirm."""

from __future__ import annotations

from outrider.core.distribution import TargetRows
from outrider.core.draft import Draft, Verdict
from outrider.core.noise import Noise
from outrider.core.tree import children


class Matching:
    """Exact for any draft, chain or tree, drawn in any way: every emitted token is the target's own draw.

    A position's draw depends on the seed and on the tokens before it, so the output is that of plain decoding
    with the same seed, token for token. Drafts drawn with the same noise match most often: drafter-invariant
    speculative decoding (Daliri et al. 2024).
    """

    name = "matching"
    exact = True
    shares_noise = True
    takes_trees = True
    without_replacement = True

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        below = children(draft.parents)
        path: list[int] = []
        row = 0
        while True:
            token = p.draw(row, noise, position + len(path))
            node = next((i for i in below[row] if draft.tokens[i] == token), None)
            if node is None:
                return Verdict(tuple(path), token)
            path.append(node)
            row = 1 + node
