"""What is known of the current HTTP request wherever its work is done, without handing it through every call."""

from __future__ import annotations

from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
"""The ``X-Request-Id`` that the client gave, or one of ours."""
SESSION: ContextVar[str] = ContextVar("SESSION", default="")
"""The client's ``X-Session-Id``: requests of one session are best served by one replica. Empty: none."""
