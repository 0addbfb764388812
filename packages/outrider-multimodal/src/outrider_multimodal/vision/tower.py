"""A model's vision tower and connector, by transformers' own code."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.errors import ModelFormatError
from outrider_multimodal.vision.preparation import PreparedImage
from outrider_multimodal.vision_language import VISION_LANGUAGE, transformers_config


class Tower:
    """Runs frame by frame, so that the bits of a frame's features depend on that frame alone."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        """Load the tower, in float32 on a CPU. Raises ``ModelFormatError`` if tensors are missing."""
        self._module, self.image_token = _load(folder, device)
        self._device = device
        self._one_at_a_time = threading.Lock()

    @torch.inference_mode()
    def encode(self, image: PreparedImage) -> Tensor:
        """Features [tokens, d] of all frames, in order."""
        return torch.cat([self._frame(image, i) for i in range(len(image.frames))])

    def _frame(self, image: PreparedImage, index: int) -> Tensor:
        given = {"pixel_values": image.frames[index][None, None].to(self._device)}
        if image.masks is not None:
            given["pixel_attention_mask"] = image.masks[index][None, None].to(self._device)
        with self._one_at_a_time:  # a frame uses all threads of torch; the next waiting image follows
            out = self._module.get_image_features(**given)
        found = getattr(out, "pooler_output", out)  # transformers 4 returns the features themselves
        features: Tensor = torch.cat(list(found)) if isinstance(found, list | tuple) else found
        return features.reshape(-1, features.shape[-1])

    def features_of_a_frame(self, size: int, channels: int = 3) -> int:
        """The number of features of a frame of ``size`` by ``size`` pixels, from a trial run."""
        return len(self.encode(PreparedImage(torch.ones(1, channels, size, size), None, ())))

    @property
    def frame_size(self) -> int:
        """Pixels of a frame's side."""
        return int(self._module.config.vision_config.image_size)


def _load(folder: Path, device: torch.device) -> tuple[Any, int]:
    """The model without its text part, and the id of the placeholder token."""
    from transformers import AutoModel
    from transformers.utils import logging

    config = transformers_config(folder)
    image_token = int(config.image_token_id)
    text_part = VISION_LANGUAGE[config.model_type].text_part
    text = config.text_config
    text.num_hidden_layers, text.vocab_size, text.pad_token_id = 0, 1, None  # constructed, then discarded
    verbosity = logging.get_verbosity()
    logging.set_verbosity_error()  # it would report the text part's tensors as unexpected
    logging.disable_progress_bar()
    try:
        module, report = AutoModel.from_pretrained(
            folder,
            config=config,
            dtype=torch.bfloat16 if device.type == "cuda" else torch.float32,
            attn_implementation="sdpa",
            local_files_only=True,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except Exception as error:  # noqa: BLE001 - any error of foreign code is a fault of the folder
        reason = " ".join(str(error).split())[:200]
        raise ModelFormatError(f"{folder}: transformers cannot load its vision tower: {reason}") from None
    finally:
        logging.set_verbosity(verbosity)
    lost = [_name(each) for key in ("missing_keys", "mismatched_keys") for each in report.get(key, ())]
    lost = sorted(name for name in lost if not name.startswith(f"{text_part}."))
    if lost:
        raise ModelFormatError(
            f"{folder} has no tensor {lost[0][:100]!r} of the right shape ({len(lost)} are missing): download it again"
        )
    delattr(module, text_part)
    return module.to(device).eval(), image_token


def _name(reported: Any) -> str:
    """A reported tensor's name: mismatches are reported with both shapes."""
    return str(reported[0] if isinstance(reported, tuple) else reported).removeprefix("model.")
