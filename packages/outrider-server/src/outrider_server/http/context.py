"""The request that is being served: its names, its sender, its deadline, and whether its client is still there."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
from collections.abc import Coroutine
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.types import Receive

from outrider_server.http.errors import ApiError
from outrider_server.settings import LOOPBACK, ServerSettings

logger = logging.getLogger(__name__)

T = TypeVar("T")

REQUEST_ID: ContextVar[str] = ContextVar("REQUEST_ID", default="")
"""The ``X-Request-Id`` that the client gave, or a generated one."""
SESSION: ContextVar[str] = ContextVar("SESSION", default="")
"""The client's ``X-Session-Id``: requests of one session are best served by one replica. Empty: none."""


@dataclass(frozen=True)
class Caller:
    """The sender of the request that is being served, and the size of its body."""

    name: str = ""  # tells callers apart, no more
    body: int = 0  # bytes


NOBODY = Caller()
CALLER: ContextVar[Caller] = ContextVar("caller", default=NOBODY)


class Callers:
    """Opaque names for keys and domains: hashes under a secret of this process, which tell nothing of the key.

    The *tenant* of a request is its API key: tenants get fair shares. Its *domain* is the key with the ``cache_salt``
    of the request: only requests of one domain share cached prefixes and learned texts.
    """

    def __init__(self, *, share_across_keys: bool) -> None:
        self._secret = secrets.token_bytes(32)
        self._shared = share_across_keys

    def keep(self, secret: bytes) -> None:
        """Name domains as another process did with this secret, whose saved sessions are to be found again."""
        self._secret = secret

    def tenant(self, key: bytes) -> str:
        return self._name(b"tenant", key)

    def domain(self, tenant: str, salt: str) -> str:
        """Of a request; ``tenant`` is empty where there are no keys."""
        owner = "" if self._shared else tenant
        return self._name(b"domain", owner.encode(), salt.encode())

    def _name(self, *parts: bytes) -> str:
        digest = hashlib.blake2b(key=self._secret, digest_size=16)
        for part in parts:
            digest.update(len(part).to_bytes(8, "little") + part)
        return digest.hexdigest()


def tenant_of(request: Request) -> str:
    """The caller's tenant, as ``ApiKeyMiddleware`` noted it; empty where there are no keys."""
    tenant: str = getattr(request.state, "tenant", "")
    return tenant


def check_sees_all(request: Request) -> None:
    """Raise ApiError 403 unless the caller may see figures of all callers together."""
    if not getattr(request.state, "sees_all", True):
        message = "these figures are of all callers together: read them with the key that --metrics-key names"
        raise ApiError(403, message, code="metrics_key_needed")


def log_sharing(settings: ServerSettings) -> None:
    """Say in the log where callers are not kept apart."""
    if settings.share_across_keys:
        logger.warning("--share-across-keys: a caller can find out what callers with other keys asked and were told")
    elif not settings.keys and settings.uds is None and settings.host not in LOOPBACK:
        logger.warning(
            "no API keys: all callers share what is cached and learned, and can find out what others asked and were "
            "told; name keys with --api-key to keep them apart"
        )


LATE = "the request took more than {} s: ask for less"


async def by_deadline(request: Request, work: Coroutine[Any, Any, T], message: str = LATE) -> T:
    """The result of ``work``, which is cancelled if the client disconnects or the time for the whole request is up.

    Raises ApiError: 499 after a disconnect, 504 with ``message`` at the deadline.
    """
    try:
        async with asyncio.timeout_at(deadline_of(request)):
            return await unless_disconnected(request, work)
    except TimeoutError:
        raise too_late(request.app.state.models.settings, message) from None


def deadline_of(request: Request) -> float:
    """The time by which the request must be answered, by the event loop's clock; it is set by the first call."""
    if not hasattr(request.state, "deadline"):
        seconds: float = request.app.state.models.settings.request_timeout
        request.state.deadline = asyncio.get_running_loop().time() + seconds
    deadline: float = request.state.deadline
    return deadline


def too_late(settings: ServerSettings, message: str = LATE) -> ApiError:
    return ApiError(504, message.format(f"{settings.request_timeout:g}"), code="timeout")


async def wait_for_disconnect(receive: Receive) -> None:
    """Wait until the client has disconnected."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def unless_disconnected(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, which is cancelled if the client disconnects first."""
    working = asyncio.ensure_future(work)
    disconnect = asyncio.ensure_future(wait_for_disconnect(request.receive))
    try:
        await asyncio.wait({working, disconnect}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not working.done():
            working.cancel()
        disconnect.cancel()
        await asyncio.wait({working, disconnect})
    if working.cancelled():
        raise ApiError(499, "the client has gone")
    return working.result()
