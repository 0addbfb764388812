"""Image prompts of one model: from prompts with images to token ids and features."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.errors import InvalidRequestError, ModelFormatError
from outrider.models.inputs import EncodedPrompt
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_multimodal.images import PlacedImage, PromptImages
from outrider_multimodal.vision.features import FeatureCache
from outrider_multimodal.vision.images import ImageLimits, ImageSource, read_image
from outrider_multimodal.vision.preparation import ImagePreparer, PreparedImage
from outrider_multimodal.vision.tower import Tower
from outrider_torch.kernels.torch_processor import use_chosen_threads


class Vision:
    """Reads prompts with images for one model, whose text part runs separately."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, *, device: Any, context: int) -> None:
        """``context``: tokens of a prompt and its output.

        Raises:
            ConfigError: Pillow is missing.
            ModelFormatError: files are damaged or inconsistent.
        """
        use_chosen_threads()
        self._tower = Tower(folder, torch.device(device))
        self._preparer = ImagePreparer(folder, tokenizer, self._tower.image_token)
        self._context = context
        self._features = FeatureCache()
        found = self._tower.features_of_a_frame(self._tower.frame_size)
        if found != self._preparer.per_frame:
            raise ModelFormatError(
                f"{folder}: the vision tower gives {found} features of an image, and the prompt has "
                f"image_seq_len={self._preparer.per_frame} places for them: correct processor_config.json"
            )

    def read(
        self,
        token_ids: Sequence[int],
        images: Sequence[ImageSource],
        *,
        limits: ImageLimits | None = None,
        domain: str = "",
        tenant: str = "",
    ) -> EncodedPrompt:
        """Encode a prompt that has one placeholder per image, with the images in order.

        Features are computed at first use, and cached for the same ``domain``.

        Raises ``InvalidRequestError`` if there are too many images or too few placeholders, an image is unreadable,
        or the images leave no room in the context.
        """
        limits = limits or ImageLimits()
        self._check_count(token_ids, images, limits)
        ids: list[int] = []
        placed: list[PlacedImage] = []
        sources = iter(images)
        for token in token_ids:
            if token != self._tower.image_token:
                ids.append(token)
                continue
            name = f"image {len(placed) + 1} of {len(images)}" if len(images) > 1 else "the image"
            image = self._preparer.prepare(read_image(next(sources), limits, name))
            places = [i for i, each in enumerate(image.tokens, len(ids)) if each == self._tower.image_token]
            ids += image.tokens
            self._check_room(ids, name)
            placed.append(PlacedImage(image.digest, places, self._encoder(image, domain, tenant)))
        return EncodedPrompt(ids, PromptImages(placed))

    def _encoder(self, image: PreparedImage, domain: str, tenant: str) -> Callable[[], Tensor]:
        compute = partial(self._tower.encode, image)
        return partial(self._features.get, image.digest, domain, tenant, compute)

    def _check_count(self, token_ids: Sequence[int], images: Sequence[ImageSource], limits: ImageLimits) -> None:
        if len(images) > limits.count:
            raise InvalidRequestError(
                f"{len(images)} images in one prompt, and at most {limits.count} are taken: send fewer", param="image"
            )
        marks = list(token_ids).count(self._tower.image_token)
        if marks != len(images):
            raise InvalidRequestError(
                f"the prompt has {marks} placeholders for {len(images)} images: write {self._preparer.placeholder} "
                "once for each image",
                param="prompt",
            )

    def _check_room(self, ids: Sequence[int], name: str) -> None:
        if len(ids) >= self._context:
            raise InvalidRequestError(
                f"the prompt has {len(ids)} tokens up to {name}, but the context holds {self._context}: send fewer "
                "or smaller images",
                param="image",
            )
