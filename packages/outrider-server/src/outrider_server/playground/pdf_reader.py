"""The process that reads PDF files; ``pdf.py`` starts it. It imports little, for a start takes as long as that."""

from __future__ import annotations

import base64
import io
import logging
import time
from collections.abc import Callable
from typing import Any

MAX_CHARACTERS = 400_000  # more than any context holds
READING_S = 15.0  # pages that are read by then are given


def reader(_: object) -> Callable[[str], dict[str, Any]]:
    """The side of the process that reads: base64 in, ``extract``'s object out, or ``{"problem": reason}``."""
    from pypdf.errors import PyPdfError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # it warns of every oddity of a file

    def respond(encoded: str) -> dict[str, Any]:
        try:
            return read(base64.b64decode(encoded))
        except MemoryError:
            return {"problem": "it takes too much memory"}
        except (PyPdfError, ValueError, TypeError, KeyError, LookupError, AttributeError, RecursionError) as error:
            return {"problem": f"it is damaged, or no PDF ({type(error).__name__})"}

    return respond


def read(file: bytes) -> dict[str, Any]:
    """``{"text", "pages", "pages_read"}``, or ``{"problem": reason}``. Raises pypdf's errors."""
    from pypdf import PdfReader
    from pypdf.errors import DependencyError

    began = time.monotonic()
    document = PdfReader(io.BytesIO(file))
    try:
        if document.is_encrypted and not document.decrypt(""):
            return {"problem": "it is locked with a password"}
    except DependencyError:
        return {"problem": "it is encrypted"}
    texts: list[str] = []
    size = 0
    for page in document.pages:
        if size > MAX_CHARACTERS or time.monotonic() - began > READING_S:
            break
        texts.append(page.extract_text().strip())
        size += len(texts[-1])
    text = "\n\n".join(filter(None, texts))[:MAX_CHARACTERS]
    if not text:
        return {"problem": "it has no text; its pages may be pictures"}
    text = text.encode("utf-8", "replace").decode()  # broken fonts give lone surrogates
    return {"text": text, "pages": len(document.pages), "pages_read": len(texts)}
