"""Images in requests: data URLs, as bytes. Nothing is fetched, for no caller and by no option."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from outrider_server.http.errors import invalid
from outrider_server.openai.schema.chat import ContentPart

_DETAILS = ("auto", "low", "high", None)
"""Without influence: a model has one way to see."""


def image_parts(
    content: Sequence[ContentPart], where: str, images: list[bytes], text_of: Callable[[ContentPart, str], str]
) -> list[dict[str, str]]:
    """The parts of a message as chat templates take them; the files of its images are added to ``images``.

    Raises ApiError 400 for an image that is no data URL of base64, and any error of ``text_of``.
    """
    parts: list[dict[str, str]] = []
    for i, part in enumerate(content):
        own = f"{where}[{i}]"
        if part.type == "image_url":
            images.append(_image_file(part.image_url, f"{own}.image_url"))
            parts.append({"type": "image"})
        else:
            parts.append({"type": "text", "text": text_of(part, own)})
    return parts


def _image_file(image_url: Any, where: str) -> bytes:
    """The bytes of ``{"url": "data:...", "detail": ...}``, or of a URL alone. Raises ApiError for anything else."""
    given = {"url": image_url} if isinstance(image_url, str) else image_url
    if not isinstance(given, dict) or not isinstance(given.get("url"), str):
        raise invalid(f"{where} has no url: send {{'url': 'data:image/png;base64,...'}}", where)
    unknown = next((name for name in given if name not in ("url", "detail")), None)
    if unknown is not None:
        raise invalid(f"{where} has the unknown field {str(unknown)[:60]!r}: leave it out", where)
    if given.get("detail") not in _DETAILS:
        raise invalid(f"{where}.detail={str(given['detail'])[:60]!r} is unknown: use auto, low or high", where)
    url: str = given["url"]
    if url[:5].lower() != "data:":
        shown = url[:40] + ("..." if len(url) > 40 else "")
        remedy = "images are not fetched: send it as a data URL (data:image/png;base64,...)"
        raise invalid(f"{where} is {shown!r}, and {remedy}", where)
    head, comma, data = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise invalid(f"{where} is a data URL without base64: send data:image/png;base64,...", where)
    try:
        return base64.b64decode(data, validate=True)
    except ValueError:
        raise invalid(f"{where} is not valid base64: send the bytes of the file in base64", where) from None
