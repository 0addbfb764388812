"""The text of PDF files, read by pypdf in a process of bounded time and memory: the files come from anywhere."""

from __future__ import annotations

import base64
from importlib.util import find_spec
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from outrider.utils.child import ChildError, Children
from outrider_server.http.context import CALLER, Caller
from outrider_server.http.errors import ApiError, invalid, json_response
from outrider_server.http.request_body import caller_name, read_body

router = APIRouter(include_in_schema=False)

PATH = "/pdf/text"  # outside /playground/, which the metrics key opens too
_DEADLINE_S = 25.0  # the reader's own is shorter: this one is for a page that takes all of it
_MEMORY = 768 << 20

_READERS = Children(
    "outrider_server.playground.pdf_reader:reader",
    None,
    count=2,
    memory=_MEMORY,
    deadline=_DEADLINE_S,
    name="reads PDF files",
)


@router.post(PATH)
async def text(request: Request) -> Response:
    """The text of a PDF file, which is the body: ``{"text", "pages", "pages_read"}``. Nothing of it is kept."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/pdf":  # no page of another site may send this type without being asked first
        raise ApiError(415, "send the file itself as application/pdf")
    if find_spec("pypdf") is None:
        raise ApiError(501, "PDF files are read by pypdf: pip install 'outrider[pdf]'", code="not_installed")
    body = await read_body(request)
    CALLER.set(Caller(caller_name(request), len(body)))
    return json_response(await request.app.state.models.executors.read_images(lambda: extract(body)))


def extract(file: bytes) -> dict[str, Any]:
    """The text of a file, and the numbers of its pages and of those that were read.

    Raises:
        ApiError: 400 for a file that is no PDF, is locked, has no text, or takes too much time or memory.
        CapacityError: no process can be started.
    """
    try:
        found: dict[str, Any] = _READERS.ask(base64.b64encode(file).decode())
    except ChildError as error:
        raise invalid(f"the PDF file cannot be read: it {error}") from None
    if "problem" in found:
        raise invalid(f"the PDF file cannot be read: {found['problem']}")
    return found
