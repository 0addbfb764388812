"""Images in requests: data URLs, as bytes. Nothing is fetched, for no caller and by no option."""

from __future__ import annotations

from typing import Any

from outrider.errors import InvalidRequestError
from outrider_multimodal.vision import from_data_url
from outrider_server.http.errors import ApiError, invalid

__all__ = ["image_file"]

_DETAILS = ("auto", "low", "high", None)
"""Without influence: a model has one way to see."""


def image_file(image_url: Any, where: str) -> bytes:
    """The bytes of ``{"url": "data:...", "detail": ...}``, or of a URL alone. Raises ApiError for anything else."""
    given = {"url": image_url} if isinstance(image_url, str) else image_url
    if not isinstance(given, dict) or not isinstance(given.get("url"), str):
        raise _refused(f"{where} has no url: send {{'url': 'data:image/png;base64,...'}}", where)
    unknown = next((name for name in given if name not in ("url", "detail")), None)
    if unknown is not None:
        raise _refused(f"{where} has the unknown field {str(unknown)[:60]!r}: leave it out", where)
    if given.get("detail") not in _DETAILS:
        raise _refused(f"{where}.detail={str(given['detail'])[:60]!r} is unknown: use auto, low or high", where)
    try:
        return from_data_url(given["url"], where)
    except InvalidRequestError as error:
        raise _refused(str(error), where) from None


def _refused(message: str, where: str) -> ApiError:
    return invalid(message, where)
