"""The playground at ``/``: three static files under a strict content security policy."""

from __future__ import annotations

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/playground/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/playground/stream.js": ("stream.js", "text/javascript; charset=utf-8"),
    "/playground/style.css": ("style.css", "text/css; charset=utf-8"),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
}


def _serve(path: str, name: str, kind: str) -> None:
    content = (files("outrider.server.playground") / "static" / name).read_bytes()

    @router.get(path)
    async def page() -> Response:
        return Response(content, headers=HEADERS, media_type=kind)


for _path, (_name, _kind) in FILES.items():
    _serve(_path, _name, _kind)
