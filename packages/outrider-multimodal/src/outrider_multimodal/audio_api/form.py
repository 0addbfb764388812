"""Bodies of ``multipart/form-data``: fields, and one file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from starlette.requests import Request

from outrider_server.http.context import CALLER, Caller
from outrider_server.http.errors import ApiError, invalid
from outrider_server.http.request_body import caller_name, read_body

MAX_PARTS = 64
MAX_HEAD = 4096
"""Bytes of a part's headers, and characters of the header Content-Type."""
MAX_BOUNDARY = 70
"""Characters (RFC 2046, 5.1.1)."""

_SHOWN = 60
# Not the standard library's ``email``: it recurses into comments, and its time grows with the square of a header.
_PARAMETER = re.compile(
    r"""; [ \t]* ([^\s;="]+) [ \t]* = [ \t]* (?: "((?:[^"\\]|\\.)*)" | ([^;"]*) ) [ \t]*""", re.VERBOSE
)


@dataclass
class Form:
    """The fields and the file of a form."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, tuple[str, bytes]] = field(default_factory=dict)  # by field: the file's name and bytes


async def read_form(request: Request) -> Form:
    """The form in a request's body, parsed outside the event loop.

    Raises ApiError: 403 for a form from a page of another site, which browsers send without a preflight; 415 for
    another kind of body, 408 for a late one, 400 for a damaged one.
    """
    _check_origin(request)
    boundary = _boundary(request.headers.get("content-type", ""))
    body = await read_body(request)
    models: Any = request.app.state.models
    CALLER.set(Caller(caller_name(request), len(body)))
    form: Form = await models.executors.run_if_large(lambda: parse_form(body, boundary))
    return form


def _check_origin(request: Request) -> None:
    origin, site = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    own = origin is None or origin.partition("://")[2] == request.headers.get("host", "")
    allowed = request.app.state.models.settings.cors_origins
    if (own and site in ("none", "same-origin")) or origin in allowed or "*" in allowed:
        return
    raise ApiError(403, f"a page of {(origin or 'another site')[:_SHOWN]} may not send forms here: see --cors-origin")


def _boundary(content_type: str) -> bytes:
    kind, parameters = _options(content_type) if len(content_type) <= MAX_HEAD else ("", {})
    boundary = parameters.get("boundary", "")
    if kind != "multipart/form-data" or not 0 < len(boundary) <= MAX_BOUNDARY:
        raise ApiError(415, f"send multipart/form-data with a file, not {content_type[:_SHOWN]!r}")
    return boundary.encode("latin-1", errors="replace")


def _options(value: str) -> tuple[str, Mapping[str, str]]:
    """A header's value, and its readable parameters by name.

    ``name*=utf-8''...`` (RFC 5987), which older clients send for names beyond ASCII, is ``name``.
    """
    kind, _, rest = value.partition(";")
    rest, at, found = f";{rest}", 0, dict[str, str]()
    while part := _PARAMETER.match(rest, at):
        name, quoted, plain = part[1].lower(), part[2], part[3]
        text = (plain or "").strip() if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        if name.endswith("*"):
            name, text = name[:-1], unquote(text.rpartition("'")[2])
        found[name] = text
        at = part.end()
    return kind.strip().lower(), found


def parse_form(body: bytes, boundary: bytes) -> Form:
    """Parse a body (RFC 7578), in time linear in its length.

    Raises ApiError 400 for a truncated body, too many parts or too long headers.
    """
    line = b"\r\n--" + boundary
    parts = (b"\r\n" + body).split(line, MAX_PARTS + 2)
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        many = len(parts) > MAX_PARTS + 2
        raise invalid(f"the form has more than {MAX_PARTS} parts" if many else "the form breaks off: send all of it")
    form = Form()
    for part in parts[1:-1]:
        end = part.find(b"\r\n\r\n", 0, MAX_HEAD)
        if end < 0 and len(part) >= MAX_HEAD:
            raise invalid(f"the headers of a part have more than {MAX_HEAD} bytes: send Content-Disposition alone")
        names = _names(part[: max(end, 0)])
        if end < 0 or not names.get("name"):
            raise invalid("a part of the form has no name: write Content-Disposition: form-data; name=...")
        name, filename, data = names["name"], names.get("filename"), part[end + 4 :]
        if filename is None:
            form.fields.setdefault(name.removesuffix("[]"), []).append(_text(name, data))
        elif name in form.files:
            raise invalid(f"{name[:_SHOWN]} comes twice: send one file", name[:_SHOWN])
        else:
            form.files[name] = filename, data
    return form


def _names(head: bytes) -> Mapping[str, str]:
    """``name`` of the field and ``filename`` of its file, as far as the headers of a part give them."""
    for line in head.decode("utf-8", errors="replace").split("\r\n"):
        key, _, value = line.partition(":")
        if key.strip().lower() == "content-disposition":
            return _options(value)[1]
    return {}


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise invalid(f"{name[:_SHOWN]} is not UTF-8 text: correct it", name[:_SHOWN]) from None
