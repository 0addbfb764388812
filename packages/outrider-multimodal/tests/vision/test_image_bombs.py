"""Image files that are small and claim much: each is refused in one line before it costs memory or time."""

from __future__ import annotations

import io
import struct
import zlib
from collections.abc import Callable

import pytest

from outrider.errors import InvalidRequestError

pytest.importorskip("PIL")

from PIL import Image

from outrider_multimodal.vision.images import ImageLimits, read_image

Bytes = Callable[[], bytes]
LIMITS = ImageLimits(pixels=1 << 22)
PARTS = 20_000
SCREEN = (1 << 11, 1 << 11)


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def zeros(size: int) -> bytes:
    return zlib.compress(bytes(size), 9)


def png(
    width: int = 8, height: int = 8, *, before: bytes = b"", data: bytes | None = None, after: bytes = b""
) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zeros(200) if data is None else data
    parts = chunk(b"IHDR", header) + before + chunk(b"IDAT", data) + after + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def saved(size: tuple[int, int] = (8, 8), kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", size, (9, 99, 200)).save(file, kind, **options)
    return file.getvalue()


def jpeg_of(parts: bytes) -> bytes:
    sound = saved()
    return sound[:2] + parts + sound[2:]


def scans(count: int) -> bytes:
    sound = saved(SCREEN, progressive=True)
    last = sound[sound.rfind(b"\xff\xda") : -2]
    return sound[:-2] + last * count + sound[-2:]


def gif(screen: tuple[int, int], frame: tuple[int, int]) -> bytes:
    sizes = struct.pack("<HH", *screen), struct.pack("<HHHH", 0, 0, *frame)
    return b"GIF89a" + sizes[0] + b"\x80\0\0\0\0\0\xff\xff\xff\x2c" + sizes[1] + b"\0\x02\x02\x4c\x01\0;"


def bmp(width: int, height: int, data: bytes) -> bytes:
    start = 14 + 40 + 1024
    head = struct.pack("<IHHI", start + len(data), 0, 0, start)
    about = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(data), 2835, 2835, 256, 0)
    return b"BM" + head + about + bytes(1024) + data


BOMBS: dict[str, tuple[Bytes, str]] = {
    "png of 10^10 pixels": (lambda: png(100_000, 100_000), "pixels"),
    "png as wide as can be": (lambda: png(2**31 - 1, 1), "pixels"),
    "png without pixels": (lambda: png(0, 8), "image"),
    "png above the limit": (lambda: png(2049, 2048), "at most 4,194,304"),
    "png with a text that grows": (lambda: png(before=chunk(b"zTXt", b"a\0\0" + zeros(1 << 24))), "damaged"),
    "png with texts that grow": (lambda: png(before=chunk(b"zTXt", b"a\0\0" + zeros(1 << 20)) * 100), "damaged"),
    "png with other texts that grow": (lambda: png(before=chunk(b"iTXt", b"a\0\1\0\0\0" + zeros(1 << 24))), "damaged"),
    "png with a profile that grows": (lambda: png(before=chunk(b"iCCP", b"a\0\0" + zeros(1 << 24))), "damaged"),
    "png of many parts": (lambda: png(before=chunk(b"aaAa", b"") * PARTS), "too many parts"),
    "png of many parts behind": (lambda: png(after=chunk(b"aaAa", b"") * PARTS), "too many parts"),
    "png of many empty pieces": (lambda: png(before=chunk(b"IDAT", b"") * PARTS), "too many parts"),
    "png cut in its header": (lambda: png()[:20], "image"),
    "png without data": (lambda: png()[:33], "image"),
    "png of garbage": (lambda: png(data=b"\xff" * 50), "damaged"),
    "png signature alone": (lambda: b"\x89PNG\r\n\x1a\n", "image"),
    "jpeg of many comments": (lambda: jpeg_of(b"\xff\xfe\0\2" * PARTS), "too many parts"),
    "jpeg of many profiles": (lambda: jpeg_of(b"\xff\xe2\0\2" * PARTS), "too many parts"),
    "jpeg of many markers": (lambda: jpeg_of(b"\xff\xe1\0\2" * PARTS), "too many parts"),
    "jpeg of many fill bytes": (lambda: jpeg_of(b"\xff" * 2 * PARTS), "too many parts"),
    "jpeg of many scans": (lambda: scans(300), "times over 2048 x 2048"),
    "jpeg cut": (lambda: saved((64, 64))[:300], "damaged"),
    "jpeg of 65535 x 65535": (
        lambda: saved().replace(b"\0\x11\x08\0\x08\0\x08", b"\0\x11\x08\xff\xff\xff\xff"), "pixels"
    ),
    "gif with a larger frame": (lambda: gif((1, 1), (65535, 65535)), "pixels"),
    "gif with a frame just above": (lambda: gif((1, 1), (2100, 2100)), "at most 4,194,304"),
    "gif with a large screen": (lambda: gif((65535, 65535), (1, 1)), "pixels"),
    "gif cut": (lambda: gif((8, 8), (8, 8))[:20], "image"),
    "bmp of many runs": (lambda: bmp(2000, 2000, b"\1\0" * PARTS), "too many parts"),
    "bmp of many ends": (lambda: bmp(1, 2000, b"\0\0" * PARTS), "too many parts"),
    "bmp of a negative width": (lambda: bmp(-5, 5, b"\0\0"), "image"),
    "bmp of 2^31 rows": (lambda: bmp(2**31 - 1, 2**31 - 1, b""), "pixels"),
    "bmp cut": (lambda: bmp(8, 8, b"")[:60], "image"),
    "webp cut": (lambda: saved(kind="WEBP")[:20], "image"),
    "webp of garbage": (lambda: saved(kind="WEBP")[:30] + b"\xff" * 50, "image"),
    "tiff": (lambda: saved(kind="TIFF"), "no image that is known"),
    "icon": (lambda: saved((16, 16), kind="ICO"), "no image that is known"),
    "postscript": (lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", "no image that is known"),
    "svg": (lambda: b'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"/>', "no image that is known"),
    "gzip of a png": (lambda: zlib.compress(png(), wbits=31), "no image that is known"),
    "nothing": (lambda: b"", "no image that is known"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.filterwarnings("ignore:Image size")
def test_bombs_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_multimodal.vision.images._MOST_READS", PARTS // 2, raising=False)
    make, says = BOMBS[name]
    with pytest.raises(InvalidRequestError, match=says) as refused:
        read_image(make(), LIMITS, "the image")
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 300


SOUND: dict[str, Bytes] = {
    "png with exif of nonsense": lambda: png(before=chunk(b"eXIf", b"MM\0*\0\0\0\x08" + b"\xff" * 200)),
    "jpeg with exif of nonsense": lambda: jpeg_of(b"\xff\xe1\0\x20Exif\0\0II*\0\x08\0\0\0" + b"\xff" * 16),
    "png with more data than pixels": lambda: png(data=zeros(1 << 24)),
    "png of a thousand parts": lambda: png(before=chunk(b"aaAa", b"") * 1000),
    "progressive jpeg": lambda: saved(SCREEN, progressive=True),
    "animation": lambda: saved(
        kind="PNG", save_all=True, append_images=[Image.new("RGB", (8, 8), (i, 0, 0)) for i in range(300)]
    ),
    "turned by 90 degrees": lambda: saved(
        exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    ),
}


@pytest.mark.parametrize("name", SOUND)
@pytest.mark.filterwarnings("ignore:Corrupt EXIF", "ignore:Metadata Warning", "ignore:Possibly corrupt")
def test_what_is_odd_and_harmless_is_read(name: str) -> None:
    image = read_image(SOUND[name](), LIMITS, "the image")
    assert image.mode == "RGB"
    assert image.tobytes()


def test_an_image_is_in_memory_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three copies of the largest that is taken would be 800 MB."""

    def copied(*_: object, **__: object) -> None:
        raise AssertionError("it was copied")

    monkeypatch.setattr(Image.Image, "copy", copied)
    assert read_image(saved((64, 64)), LIMITS, "the image").size == (64, 64)


def test_pixels_are_those_of_pillow() -> None:
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP"):
        data = saved((33, 21), kind)
        assert read_image(data, LIMITS, "it").tobytes() == Image.open(io.BytesIO(data)).convert("RGB").tobytes()
