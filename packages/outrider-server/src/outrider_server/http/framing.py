"""Where a request ends, so that all who read it agree; and HEAD."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from outrider_server.http.errors import ApiError


class FramingMiddleware:
    """Refuses what HTTP's readers disagree about, and disconnects: two of them may see two different requests.

    ``Transfer-Encoding`` beside ``Content-Length``, or from before it existed (RFC 9112, 6.1 and 6.3); other versions.
    HEAD is answered as GET; the protocol leaves the body out.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        error = _framing_error(scope)
        if error is not None:
            await error.response()(scope, receive, send)
        elif scope["method"] == "HEAD":
            as_get = {**scope, "method": "GET"}
            try:
                await self._app(as_get, receive, send)
            finally:
                scope["route"] = as_get.get("route")
        else:
            await self._app(scope, receive, send)


def _framing_error(scope: Scope) -> ApiError | None:
    version, names = scope["http_version"], {name for name, _ in scope["headers"]}
    close = {"Connection": "close"}
    if version not in ("1.0", "1.1"):
        return ApiError(400, f"HTTP/{version} is not spoken here: use HTTP/1.1", code="http_version", headers=close)
    if b"transfer-encoding" in names and (b"content-length" in names or version == "1.0"):
        other = "Content-Length" if b"content-length" in names else "HTTP/1.0"
        return ApiError(
            400, f"Transfer-Encoding and {other} do not go together: use one", code="framing", headers=close
        )
    return None
