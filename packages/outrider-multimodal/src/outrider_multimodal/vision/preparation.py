"""Images as their model's inputs, by transformers' own image processor: frames of pixels, and tokens in the prompt.

::

    an image, split     [ row 1, col 1 | row 1, col 2 ]     resized, cut into frames that the tower takes
                        [ row 2, col 1 | row 2, col 2 ]     and, last, the whole image in one frame
    in the prompt       <around><row_1_col_1><image>*64<around><row_1_col_2><image>*64 ... <global-img><image>*64
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from outrider.errors import ConfigError, InvalidRequestError, ModelFormatError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.json_files import read_json_object, shown

if TYPE_CHECKING:
    from PIL.Image import Image

_PER_FRAME = 169
"""Default tokens of a frame without ``processor_config.json``'s, as in transformers."""


@dataclass(frozen=True)
class PreparedImage:
    """The tower's input, and the tokens in the prompt."""

    frames: Tensor  # float32 [n, channels, height, width]
    masks: Tensor | None  # int64 [n, height, width]: 0 where a frame is padding
    tokens: Sequence[int]  # in place of the placeholder

    @cached_property
    def digest(self) -> bytes:
        """32 bytes, of all inputs of its features."""
        digest = hashlib.blake2b(f"{tuple(self.frames.shape)}".encode(), digest_size=32)
        for part in (self.frames, self.masks):
            if part is not None:
                digest.update(part.contiguous().numpy().data)
        return digest.digest()


class ImagePreparer:
    """Prepares images for one model of the SmolVLM and Idefics3 families."""

    def __init__(self, folder: Path, tokenizer: Tokenizer, image_token: int) -> None:
        """Raises ``ConfigError`` without Pillow, ``ModelFormatError`` if the folder's files are incomplete."""
        self._processor = _image_processor(folder)
        self._tokenizer = tokenizer
        self.per_frame = _tokens_per_frame(folder)
        spelt = _spellings(folder)
        self._image = spelt.get("image_token", "<image>")
        self._around = spelt.get("fake_image_token", "<fake_token_around_image>")
        self._whole = spelt.get("global_image_token", "<global-img>")
        for token in (self._image, self._around, self._whole):
            if token not in tokenizer.vocabulary:
                raise ModelFormatError(f"{folder}/tokenizer.json has no token {shown(token)}: download the model again")
        if tokenizer.vocabulary[self._image] != image_token:
            raise ModelFormatError(
                f"{folder}/config.json: image_token_id={image_token} is not {self._image} of its tokenizer.json: "
                "download the model again"
            )

    @property
    def placeholder(self) -> str:
        """The text that marks an image in a prompt."""
        return self._image

    def prepare(self, image: Image) -> PreparedImage:
        """Resize, cut and normalise one image. Raises ``InvalidRequestError`` if the processor cannot."""
        try:
            made = self._processor([[image]], return_tensors="pt", return_row_col_info=True)
            rows, columns = made["rows"][0][0], made["cols"][0][0]
            frames = made["pixel_values"][0].to(torch.float32)
        except (ValueError, TypeError, IndexError, ZeroDivisionError, OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:100]
            size = f"{image.size[0]} x {image.size[1]} pixels"
            raise InvalidRequestError(
                f"an image of {size} cannot be resized for this model ({reason}): send another", param="image"
            ) from None
        masks = made.get("pixel_attention_mask")
        tokens = self._tokenizer.encode(self._text(rows, columns), add_special_tokens=False)
        return PreparedImage(frames, None if masks is None else masks[0], tokens)

    def _text(self, rows: int, columns: int) -> str:
        """The prompt's text for an image of ``rows`` by ``columns`` frames; both are 0 for a single frame."""
        image = self._image * self.per_frame
        text = ""
        for row in range(1, rows + 1):
            for column in range(1, columns + 1):
                text += f"{self._around}<row_{row}_col_{column}>{image}"
            text += "\n"
        text += "\n" if text else ""
        return f"{text}{self._around}{self._whole}{image}{self._around}"


def _image_processor(folder: Path) -> Any:
    try:
        import PIL  # noqa: F401
    except ImportError:
        raise ConfigError("images need Pillow: pip install 'outrider[vision]'") from None
    import transformers

    old = int(transformers.__version__.partition(".")[0]) < 5
    backend: dict[str, Any] = {"use_fast": False} if old else {"backend": "pil"}
    try:
        return transformers.AutoImageProcessor.from_pretrained(
            folder, local_files_only=True, trust_remote_code=False, **backend
        )
    except Exception as error:  # noqa: BLE001 - any error of foreign code is a fault of the files
        reason = " ".join(str(error).split())[:200]
        raise ModelFormatError(f"{folder}: transformers refuses its image processor: {reason}") from None


def _tokens_per_frame(folder: Path) -> int:
    path = folder / "processor_config.json"
    given = read_json_object(path).get("image_seq_len", _PER_FRAME) if path.exists() else _PER_FRAME
    if not isinstance(given, int) or isinstance(given, bool) or not 0 < given < 1 << 16:
        raise ModelFormatError(f"{path}: image_seq_len={shown(given)} is no number of tokens: download it again")
    return given


def _spellings(folder: Path) -> dict[str, str]:
    """Tokens that the tokenizer's configuration names."""
    path = folder / "tokenizer_config.json"
    config = read_json_object(path) if path.exists() else {}
    more = config.get("extra_special_tokens")
    named = {**(more if isinstance(more, dict) else {}), **config}
    contents = {key: value.get("content") if isinstance(value, dict) else value for key, value in named.items()}
    return {key: value for key, value in contents.items() if isinstance(value, str)}
