"""Images in a prompt: their positions, and the features that replace the embeddings there."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from outrider.models.inputs import InputSource
from outrider.verify.arrays import Array, Floats, host

_PLACE_BITS = 32


@dataclass(frozen=True)
class PlacedImage:
    """One image of a prompt."""

    digest: bytes  # of all inputs of its features
    positions: Sequence[int]  # of its placeholder tokens in the prompt, ascending
    encode: Callable[[], Array]  # its features, float [len(positions), d]


class PromptImages(InputSource):
    """The images of one prompt, in order. Several outputs of the prompt share them."""

    def __init__(self, images: Sequence[PlacedImage]) -> None:
        self._images = images
        self._positions = [position for image in images for position in image.positions]

    @cached_property
    def features(self) -> Floats:
        """float [n, d], of all positions in order; computed at the first call, which takes long."""
        features = np.concatenate([host(image.encode()) for image in self._images])
        self._images = [PlacedImage(image.digest, image.positions, _encoded) for image in self._images]  # frees pixels
        return features

    def prepare(self) -> None:
        _ = self.features

    def rows(self, start: int, stop: int) -> tuple[list[int], Floats] | None:
        first, last = bisect_left(self._positions, start), bisect_left(self._positions, stop)
        if first == last:
            return None
        return [position - start for position in self._positions[first:last]], self.features[first:last]

    def keys(self, prompt: Sequence[int]) -> list[int]:
        """The prompt with images in place of placeholders.

        A placeholder's key combines the image's digest and the index within it, so that equal keys mean equal rows.
        """
        keys = list(prompt)
        for image in self._images:
            whole = int.from_bytes(image.digest) << _PLACE_BITS
            for place, position in enumerate(image.positions):
                keys[position] = whole | place
        return keys


def _encoded() -> Array:
    raise AssertionError("the features of an image are computed once")
