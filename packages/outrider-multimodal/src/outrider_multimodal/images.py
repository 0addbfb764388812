"""Where a prompt shows images, and what the model reads there in place of the embeddings of tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from outrider.models.base import HeadTarget
from outrider.verify.arrays import Array, Floats, host

__all__ = ["PlacedImage", "PromptImages", "with_images"]

_PLACE_BITS = 32


@dataclass(frozen=True)
class PlacedImage:
    """One image of a prompt."""

    digest: bytes  # of all that its features are computed from
    positions: Sequence[int]  # of its placeholder tokens in the prompt, ascending
    encode: Callable[[], Array]  # its features, float [len(positions), d]


class PromptImages:
    """The images of one prompt, in order. Several outputs of the prompt share them."""

    def __init__(self, images: Sequence[PlacedImage]) -> None:
        self._images = images
        self._positions = [position for image in images for position in image.positions]

    @cached_property
    def features(self) -> Floats:
        """float [n, d], of all positions in order; computed when first asked for, which takes long."""
        features = np.concatenate([host(image.encode()) for image in self._images])
        self._images = [PlacedImage(image.digest, image.positions, _encoded) for image in self._images]  # frees pixels
        return features

    def between(self, start: int, end: int) -> tuple[list[int], Floats]:
        """Which of the positions from ``start`` to ``end`` show an image, counted from ``start``, and what: [n, d]."""
        first, last = bisect_left(self._positions, start), bisect_left(self._positions, end)
        return [position - start for position in self._positions[first:last]], self.features[first:last]

    def keys(self, prompt: Sequence[int]) -> list[int]:
        """The prompt as the cache tells prefixes apart: at an image's places stands the image, not a placeholder.

        A key of a place is the image's digest and the place within it, so that equal keys mean equal rows.
        """
        keys = list(prompt)
        for image in self._images:
            whole = int.from_bytes(image.digest) << _PLACE_BITS
            for place, position in enumerate(image.positions):
                keys[position] = whole | place
        return keys


def _encoded() -> Array:
    raise AssertionError("the features of an image are computed once")


def with_images(model: HeadTarget, token_ids: Sequence[int], shown: Sequence[tuple[Sequence[int], Floats]]) -> Floats:
    """float32 [T, d]: the tokens' embeddings, and those of images in the rows that show them."""
    inputs = host(model.embed(np.array(token_ids, np.int64))).copy()
    for rows, features in shown:
        inputs[list(rows)] = features
    return inputs
