"""Images in prompts: reading them, what the model's tower makes of them, and where it stands in a prompt."""

from typing import TYPE_CHECKING, Any

from outrider_multimodal.vision.images import ImageLimits, ImageSource, from_data_url
from outrider_multimodal.vision.prompts import ImagePrompt, ReadPrompt, has_images, split_images

if TYPE_CHECKING:
    from outrider_multimodal.vision.vision import Vision

__all__ = [
    "ImageLimits",
    "ImagePrompt",
    "ImageSource",
    "ReadPrompt",
    "Vision",
    "from_data_url",
    "has_images",
    "split_images",
]


def __getattr__(name: str) -> Any:
    """A tower is a network of torch, which is imported when the first one is loaded."""
    if name != "Vision":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from outrider_multimodal.vision.vision import Vision

    return Vision
