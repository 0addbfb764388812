"""Images in prompts: reading them, what the model's tower makes of them, and where it stands in a prompt."""

from outrider.vision.images import ImageLimits, ImageSource, from_data_url
from outrider.vision.prompts import ImagePrompt, has_images, split_images
from outrider.vision.vision import ReadPrompt, Vision

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
