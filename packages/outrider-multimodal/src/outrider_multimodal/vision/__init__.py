"""Images in prompts: files to pixels, pixels to the tower's features, features to positions in the prompt."""

from outrider_multimodal.vision.images import ImageLimits, ImageSource, from_data_url

__all__ = ["ImageLimits", "ImageSource", "from_data_url"]
