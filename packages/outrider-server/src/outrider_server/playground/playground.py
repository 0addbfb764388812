"""The playground at ``/``: static files under a strict content security policy."""

from __future__ import annotations

import hashlib
from importlib.resources import files
from pathlib import PurePosixPath

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

router = APIRouter(include_in_schema=False)

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    # No text may become markup: the page makes every element itself, those of an answer's Markdown too.
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",  # a link in an answer must not be looked up before it is followed
    "Cache-Control": "no-cache",  # asked again each time, and answered 304 while it is the same
}
MODULES = (
    "answer", "api", "app", "attachments", "chats", "composer", "connection", "conversation", "desk", "dom", "drafts",
    "files", "keys", "legend", "looks", "markdown", "messages", "plots", "prometheus", "prompts", "race", "request",
    "search", "settings", "speed", "statistics", "store", "tokens", "tools", "transfer",
)  # fmt: skip
JAVASCRIPT, CSS, HTML = "text/javascript; charset=utf-8", "text/css; charset=utf-8", "text/html; charset=utf-8"
FILES = {
    "/": ("index.html", HTML),
    "/statistics": ("statistics.html", HTML),
    "/favicon.ico": ("icon.svg", "image/svg+xml"),
    "/playground/style.css": ("style.css", CSS),
    "/playground/vendor/markdown-it.esm.min.mjs": ("vendor/markdown-it.esm.min.mjs", JAVASCRIPT),
    **{f"/playground/{name}.js": (f"{name}.js", JAVASCRIPT) for name in MODULES},
}


def _serve(path: str, name: str, kind: str) -> None:
    content = files("outrider_server.playground").joinpath("static", *PurePosixPath(name).parts).read_bytes()
    headers = HEADERS | {"ETag": f'"{hashlib.sha256(content).hexdigest()[:16]}"'}

    @router.get(path)
    async def page(request: Request) -> Response:
        if headers["ETag"] in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(content, headers=headers, media_type=kind)


for _path, (_name, _kind) in FILES.items():
    _serve(_path, _name, _kind)
