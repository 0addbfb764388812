"""Bodies of ``multipart/form-data``: fields, and one file."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from email.message import EmailMessage
from typing import Any

from starlette.requests import ClientDisconnect, Request

from outrider.server.http.errors import ApiError, invalid
from outrider.server.http.lanes import CALLER, Caller
from outrider.server.http.request_body import caller_name

__all__ = ["Form", "parse_form", "read_form"]

_MOST_PARTS = 64
_SHOWN = 60


@dataclass
class Form:
    """What a form holds."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # name of the file, and what it holds


async def read_form(request: Request) -> Form:
    """The form in a request's body, taken apart beside the event loop.

    Raises ApiError: 403 for one that a web page of another site sends, which any page may without asking; 415 for
    another kind of body, 408 for one that does not arrive in time, 400 for a damaged one.
    """
    _check_origin(request)
    kind = request.headers.get("content-type", "")
    boundary = _boundary(kind)
    models: Any = request.app.state.models
    try:
        async with asyncio.timeout(models.settings.body_timeout):
            body = await request.body()
    except TimeoutError:
        raise ApiError(408, "the body did not arrive in time", headers={"Connection": "close"}) from None
    except ClientDisconnect:
        raise ApiError(499, "the client has gone") from None
    CALLER.set(Caller(caller_name(request), len(body)))
    form: Form = await models.off_loop.run_if_large(lambda: parse_form(body, boundary))
    return form


def _check_origin(request: Request) -> None:
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    own = origin is None or origin.partition("://")[2] == request.headers.get("host", "")
    allowed = request.app.state.models.settings.cors_origins
    if (own and site in ("none", "same-origin")) or origin in allowed or "*" in allowed:
        return
    raise ApiError(403, f"a page of {(origin or 'another site')[:_SHOWN]} may not send forms here: see --cors-origin")


def _boundary(content_type: str) -> bytes:
    message = EmailMessage()
    try:
        message["content-type"] = content_type
    except ValueError:
        message["content-type"] = ""
    boundary = message.get_param("boundary")
    if message.get_content_type() != "multipart/form-data" or not isinstance(boundary, str) or not boundary:
        raise ApiError(415, f"send multipart/form-data with a file, not {content_type[:_SHOWN]!r}")
    return boundary.encode(errors="replace")


def parse_form(body: bytes, boundary: bytes) -> Form:
    """Take a body apart (RFC 7578). Raises ApiError 400 for one that breaks off, or has too many parts."""
    line = b"\r\n--" + boundary
    parts = (b"\r\n" + body).split(line, _MOST_PARTS + 2)
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        many = len(parts) > _MOST_PARTS + 2
        raise invalid(f"the form has more than {_MOST_PARTS} parts" if many else "the form breaks off: send all of it")
    form = Form()
    for part in parts[1:-1]:
        head, separator, data = part.partition(b"\r\n\r\n")
        name, filename = _names(head)
        if not separator or not name:
            raise invalid("a part of the form has no name: write Content-Disposition: form-data; name=...")
        if filename is None:
            form.fields.setdefault(name.removesuffix("[]"), []).append(_text(name, data))
        elif name in form.files:
            raise invalid(f"{name[:_SHOWN]} comes twice: send one file", name[:_SHOWN])
        else:
            form.files[name] = filename, data
    return form


def _names(head: bytes) -> tuple[str, str | None]:
    """Of the field, and of the file if it is one."""
    for line in head.decode("utf-8", errors="replace").split("\r\n"):
        key, _, value = line.partition(":")
        if key.strip().lower() == "content-disposition":
            message = EmailMessage()
            try:
                message["content-disposition"] = value.strip()
            except ValueError:
                return "", None
            name, filename = (message["content-disposition"].params.get(each) for each in ("name", "filename"))
            return str(name or ""), None if filename is None else str(filename)
    return "", None


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise invalid(f"{name[:_SHOWN]} is not UTF-8 text: correct it", name[:_SHOWN]) from None
