"""ASGI middleware that every request passes before it reaches an endpoint; ``app.py`` has the order."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import re
import time
import uuid
from collections.abc import Mapping, Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from outrider_server.http.context import REQUEST_ID, SESSION, Callers
from outrider_server.http.errors import SHAPE, ApiError, ErrorShape, as_api_error
from outrider_server.http.metrics import ServerMetrics
from outrider_server.settings import ServerSettings

logger = logging.getLogger("outrider_server.access")

_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{0,5})?")
OWN_KEY = ("/health", "/update_weights_from_disk")
"""Paths that need no API key: they tell nothing, or ask for a key of their own."""
MAX_SESSION = 256  # characters of a session's name that count


class AccessLogMiddleware:
    """Gives each request an id, logs it with its time, and turns exceptions into error responses.

    The id comes from the client's ``X-Request-Id`` if that is harmless. Nothing of headers or bodies is logged. HEAD is
    answered as GET; the protocol leaves the body out.
    """

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, shapes: Mapping[str, ErrorShape]) -> None:
        """``shapes``: how errors are written, by the beginning of the path; OpenAI's elsewhere."""
        self._app, self._metrics, self._shapes = app, metrics, shapes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        name = given if _ID.fullmatch(given) else uuid.uuid4().hex
        REQUEST_ID.set(name)
        SESSION.set(headers.get("x-session-id", "")[:MAX_SESSION])
        began, status, complete = time.perf_counter(), 0, False
        SHAPE.set(next((s for path, s in self._shapes.items() if scope["path"].startswith(path)), ApiError.body))

        as_get = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope

        async def named_send(message: Message) -> None:
            nonlocal status, complete
            complete = message["type"] == "http.response.body" and not message.get("more_body", False)
            if message["type"] == "http.response.start":
                status = message["status"]
                answered = MutableHeaders(scope=message)
                answered["X-Request-Id"] = name
                answered["X-Content-Type-Options"] = "nosniff"
            await send(message)

        self._metrics.in_progress.inc()
        try:
            await self._app(as_get, receive, named_send)
        except Exception as error:
            if status == 0:
                await as_api_error(error).response()(scope, receive, named_send)
            elif not complete:  # else it is answered and logged, and Starlette passes it on all the same
                logger.exception("an answer was broken off", exc_info=error)
        finally:
            self._metrics.in_progress.dec()
            scope["route"] = as_get.get("route")
            self._note(scope, name, status, time.perf_counter() - began)

    def _note(self, scope: Scope, name: str, status: int, seconds: float) -> None:
        path = getattr(scope.get("route"), "path", "other")  # the route's path: the client's own may be any text
        self._metrics.http.labels(_method(scope), path, str(status or 499)).inc()
        logger.log(
            logging.DEBUG if path in ("/health", "/metrics") else logging.INFO,
            "%s %s %d",
            _method(scope),
            path,
            status or 499,
            extra={
                "request_id": name,
                "seconds": round(seconds, 4),
                "client": (scope.get("client") or ("",))[0],
                "status": status or 499,
            },
        )


def _method(scope: Scope) -> str:
    known = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    return scope["method"] if scope["method"] in known else "other"


class AllowedHostsMiddleware:
    """Refuses Host headers of other names (see ``ServerSettings.hosts``)."""

    def __init__(self, app: ASGIApp, hosts: Sequence[str]) -> None:
        self._app, self._hosts = app, {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            given = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host"]
            if len(given) != 1 or _host_name(given[0]) not in self._hosts:
                message = "this server does not answer to that Host: name it with --allowed-host"
                await ApiError(421, message, code="unknown_host").response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _host_name(host: str) -> str | None:
    """The name in a Host header, in small letters; None for anything but ``name`` or ``[address]``, and a port."""
    found = _HOST.fullmatch(host)
    return None if found is None else (found[1] or found[2]).lower()


class ApiKeyMiddleware:
    """Requires an API key: ``Authorization: Bearer``, ``X-Api-Key``, or the password of ``Basic``.

    Basic is how a browser asks for a key before it shows the playground. Every key is compared, each in constant
    time, so that the time taken tells neither which key was close nor how close. The tenant of the key is noted in
    the request's state, for ``outrider_server.http.context``.
    """

    def __init__(self, app: ASGIApp, settings: ServerSettings, callers: Callers) -> None:
        self._app, self._callers = app, callers
        keys, metrics_key = settings.keys, settings.metrics_key
        self._digests = [_digest(key.encode()) for key in keys]
        self._metrics_digests = [] if metrics_key is None else [_digest(metrics_key.encode())]
        # Figures of all callers together tell one of the others, unless there are none, or they share everything.
        self._all_see_all = metrics_key is None and (len(set(keys)) == 1 or settings.share_across_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OWN_KEY:
            headers = dict(scope["headers"])
            key = given_key(headers)
            known = not self._digests or _is_among(key, self._digests)
            sees_all = _is_among(key, self._metrics_digests) and _is_about_figures(scope["path"])
            state = scope.setdefault("state", {})
            state["tenant"] = self._callers.tenant(key) if self._digests else ""
            state["sees_all"] = sees_all or self._all_see_all
            if not known and not sees_all:
                wants_page = b"text/html" in headers.get(b"accept", b"")
                scheme = 'Basic realm="outrider", charset="UTF-8"' if wants_page else "Bearer"
                error = ApiError(
                    401,
                    "the API key is missing or wrong: send it as Authorization: Bearer KEY",
                    code="invalid_api_key",
                    headers={"WWW-Authenticate": scheme},
                )
                await error.response()(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_about_figures(path: str) -> bool:
    """Whether the metrics key opens it: the figures, and the page of statistics with its files, which hold nothing."""
    return path in ("/metrics", "/slots", "/statistics", "/favicon.ico") or path.startswith("/playground/")


def _is_among(given: bytes, digests: Sequence[bytes]) -> bool:
    digest, known = _digest(given), False
    for own in digests:
        known |= hmac.compare_digest(digest, own)
    return known


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def given_key(headers: dict[bytes, bytes]) -> bytes:
    """The key of a request's headers; empty without one."""
    scheme, _, value = headers.get(b"authorization", b"").strip().partition(b" ")
    value = value.strip()
    if scheme.lower() == b"bearer":
        return value
    if scheme.lower() == b"basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except binascii.Error:
            return b""
    return headers.get(b"x-api-key", b"")


class SizeLimitMiddleware:
    """Refuses heads and bodies that are too large, by their Content-Length or while they are read."""

    def __init__(self, app: ASGIApp, *, head: int, body: int, bodies: Mapping[str, int] | None = None) -> None:
        """``bodies``: limits of paths that begin so, in place of ``body``."""
        self._app, self._head, self._body, self._bodies = app, head, body, dict(bodies or {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > self._head:  # 4: ": " and a line's end
            message = f"the headers are larger than {self._head} bytes: send less"
            error = ApiError(431, message, code="headers_too_large", headers={"Connection": "close"})
            await error.response()(scope, receive, send)
            return
        limit = next((own for path, own in self._bodies.items() if scope["path"].startswith(path)), self._body)
        declared = dict(scope["headers"]).get(b"content-length", b"")
        if declared.isdigit() and int(declared[:20]) > limit:
            await self._too_large(limit).response()(scope, receive, send)
            return
        read = 0

        async def counted() -> Message:
            nonlocal read
            message = await receive()
            read += len(message.get("body", b""))
            if read > limit:
                raise self._too_large(limit)
            return message

        await self._app(scope, counted, send)

    def _too_large(self, limit: int) -> ApiError:
        message = f"the body is larger than {limit} bytes: send less"
        return ApiError(413, message, code="body_too_large")  # closing would lose it while the body still comes
