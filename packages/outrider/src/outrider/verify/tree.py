"""Functions of draft trees given by their parent links (see ``verify.draft.Draft``).

The running example, four nodes under the last committed token (-1):

    parents = (-1, 0, 0, 1)        root ── 0 ── 1 ── 3
                                           └── 2
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def depths(parents: Sequence[int]) -> list[int]:
    """The depth of each node, 0 for the root's children: ``(-1, 0, 0, 1) -> [0, 1, 1, 2]``."""
    out: list[int] = []
    for parent in parents:
        out.append(0 if parent < 0 else out[parent] + 1)
    return out


def children(parents: Sequence[int]) -> list[list[int]]:
    """The children of the root, then of each node: ``(-1, 0, 0, 1) -> [[0], [1, 2], [3], [], []]``.

    Entry ``1 + i`` belongs to node ``i``, like row ``1 + i`` of the target's logits.
    """
    out: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        out[parent + 1].append(node)
    return out


def path_to(parents: Sequence[int], node: int) -> list[int]:
    """Nodes from the root's child down to ``node``, itself included; ``-1`` gives the empty path."""
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def ancestor_mask(parents: Sequence[int]) -> NDArray[np.bool_]:
    """bool [n, n]: entry (i, j) is true where node ``j`` is ``i`` or one of its ancestors.

    (-1, 0, 0, 1) ->  1 0 0 0
                      1 1 0 0
                      1 0 1 0
                      1 1 0 1
    """
    n = len(parents)
    mask = bytearray(n * n)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node * n : node * n + n] = mask[parent * n : parent * n + n]
        mask[node * n + node] = 1
    return np.frombuffer(mask, np.bool_).reshape(n, n)


def leaves(parents: Sequence[int]) -> int:
    """The number of nodes without children: ``(-1, 0, 0, 1) -> 2``."""
    return len(parents) - len({parent for parent in parents if parent >= 0})


def longest_first(parents: Sequence[int]) -> list[int]:
    """The nodes depth first, the child with the deepest subtree first: ``(-1, 0, 0, 2) -> [0, 2, 3, 1]``.

    The result starts with the longest path.
    """
    heights = [1] * len(parents)
    for node in reversed(range(len(parents))):
        if parents[node] >= 0:
            heights[parents[node]] = max(heights[parents[node]], heights[node] + 1)
    below = children(parents)
    order: list[int] = []
    ahead = [-1]
    while ahead:
        node = ahead.pop()
        ahead += sorted(below[node + 1], key=lambda child: (heights[child], -child))  # popped from the end
        if node >= 0:
            order.append(node)
    return order
