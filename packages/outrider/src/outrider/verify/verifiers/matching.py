"""Matching: keep the draft tokens that the target's own draws confirm."""

from __future__ import annotations

from outrider.verify.distribution import TargetRows
from outrider.verify.draft import Draft, Verdict
from outrider.verify.noise import Noise
from outrider.verify.verifiers.base import Siblings


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
    siblings = Siblings.WITHOUT_REPLACEMENT

    def __call__(self, draft: Draft, p: TargetRows, noise: Noise, position: int) -> Verdict:
        path: list[int] = []
        node = -1
        while True:
            token = p.draw(1 + node, noise, position + len(path))
            child = _child(draft, node, token)
            if child is None:
                return Verdict(tuple(path), token)
            path.append(node := child)


def _child(draft: Draft, node: int, token: int) -> int | None:
    """The first child of ``node`` (-1: the root) with this token, or None. Children come after their parents."""
    for i in range(node + 1, len(draft.tokens)):
        if draft.parents[i] == node and draft.tokens[i] == token:
            return i
    return None
