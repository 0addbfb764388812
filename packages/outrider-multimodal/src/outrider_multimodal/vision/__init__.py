"""Images in prompts: reading them, what the model's tower makes of them, and where it stands in a prompt."""

from outrider_multimodal.vision.images import ImageLimits, ImageSource, from_data_url

__all__ = ["ImageLimits", "ImageSource", "from_data_url"]
