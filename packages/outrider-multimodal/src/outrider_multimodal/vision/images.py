"""Image files as pixels, within limits of bytes and pixels. Nothing is ever fetched."""

from __future__ import annotations

import base64
import binascii
import io
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Union

from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from PIL.Image import Image

ImageSource = Union[str, Path, bytes, "Image"]
"""A file, a data URL, the bytes of a file, or an image of Pillow's."""

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Pillow reads further formats, some of them by starting other programs."""

_MOST_READS = 1 << 19  # parts of a file; a PNG of 64 MB in chunks of 8 KB, libpng's default, has 30,000
_JPEG_SCAN = b"\xff\xda"
_FEW_SCANS = 16  # ordinary progressive files have about ten
_MOST_SCANNED = 1 << 30  # pixels of all scans: a few seconds
_OF_DECODERS = (OSError, ValueError, SyntaxError, LookupError, TypeError, AttributeError, ArithmeticError, struct.error,
                RecursionError, MemoryError, EOFError)  # fmt: skip
"""Exceptions that Pillow raises for damaged files."""


@dataclass(frozen=True)
class ImageLimits:
    """Limits for the images of one prompt."""

    count: int = 32
    nbytes: int = 64 << 20  # of one file
    pixels: int = 1 << 26  # of one image; a small file may claim any number


def read_image(source: ImageSource, limits: ImageLimits, name: str) -> Image:
    """Decode an image into memory; of an animation, its first frame.

    Args:
        name: the image's name in messages.

    Raises:
        InvalidRequestError: the source is no image of ``FORMATS``, damaged, too large, or a URL to fetch.
    """
    from PIL.Image import Image

    if isinstance(source, Image):
        _check_pixels(source, limits, name)
        return source
    if isinstance(source, str) and _scheme(source):
        source = from_data_url(source, name)
    if isinstance(source, str | Path):
        source = _read_file(Path(source), limits, name)
    if not isinstance(source, bytes):
        raise InvalidRequestError(f"{name} is of type {type(source).__name__}: give a file, bytes or a Pillow image")
    if len(source) > limits.nbytes:
        raise _refused(name, f"has {len(source):,} bytes, and at most {limits.nbytes:,} are taken: make it smaller")
    return _decode(source, limits, name)


def from_data_url(url: str, name: str) -> bytes:
    """The bytes of ``data:image/png;base64,...``. Raises ``InvalidRequestError`` for other URLs."""
    if _scheme(url) != "data":
        shown = url[:40] + ("..." if len(url) > 40 else "")
        raise _refused(
            name, f"is {shown!r}, and images are not fetched: send it as a data URL (data:image/png;base64,...)"
        )
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise _refused(name, "is a data URL without base64: send data:image/png;base64,...")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise _refused(name, "is not valid base64: send the bytes of the file in base64") from None


def _scheme(text: str) -> str:
    """The scheme of a URL (``data``, ``http``, ``file``); "" for a path."""
    scheme, colon, _ = text[:32].partition(":")
    return scheme.lower() if colon and len(scheme) > 1 and scheme.replace("+", "").isalnum() else ""


def _read_file(path: Path, limits: ImageLimits, name: str) -> bytes:
    try:
        with path.expanduser().open("rb") as file:
            return file.read(limits.nbytes + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no path"
        raise _refused(name, f"cannot be read from {str(path)[:200]!r}: {reason}") from None


class _TooManyPartsError(Exception):
    """A file has too many parts: reading them would take seconds and gigabytes."""


class _Parts(io.BytesIO):
    """A file with a bound on reads: Pillow reads and partly keeps each part of a file."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._left = _MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise _TooManyPartsError
        return super().read(size)


def _decode(data: bytes, limits: ImageLimits, name: str) -> Image:
    from PIL import Image, ImageOps, UnidentifiedImageError

    try:
        with Image.open(_Parts(data), formats=FORMATS) as opened:
            _check_pixels(opened, limits, name)
            _check_scans(opened, data, name)
            ImageOps.exif_transpose(opened, in_place=True)  # as transformers loads a file
            _check_pixels(opened, limits, name)  # a frame may exceed the size in the file's header
            return opened if opened.mode == "RGB" else opened.convert("RGB")  # a copy would be as large again
    except InvalidRequestError:
        raise
    except UnidentifiedImageError:
        raise _refused(name, f"is no image that is known here: send one of {', '.join(FORMATS)}") from None
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise _refused(name, f"has too many pixels: at most {limits.pixels:,} are taken, make it smaller") from None
    except _TooManyPartsError:
        raise _refused(name, "is a file of too many parts: save it again") from None
    except _OF_DECODERS as error:
        reason = " ".join(str(error).split())[:100]
        raise _refused(name, f"is damaged ({reason}): send it again") from None


def _check_scans(image: Image, data: bytes, name: str) -> None:
    """Bound a JPEG's scans: each rewrites all pixels, at the cost of a few bytes in the file."""
    width, height = image.size
    scans = data.count(_JPEG_SCAN) if image.format == "JPEG" else 1
    if scans > _FEW_SCANS and scans * width * height > _MOST_SCANNED:
        raise _refused(name, f"goes {scans:,} times over {width} x {height} pixels: save it again")


def _check_pixels(image: Image, limits: ImageLimits, name: str) -> None:
    width, height = image.size
    if width * height > limits.pixels:
        pixels = f"has {width} x {height} pixels, and at most {limits.pixels:,} are taken: make it smaller"
        raise _refused(name, pixels)
    if not width or not height:
        raise _refused(name, "has no pixels: send another")


def _refused(name: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{name} {why}", param="image")
