"""Who a request comes from, with whom it shares, and who may see what all of them do."""

from __future__ import annotations

import hashlib
import logging
import secrets

from starlette.requests import Request

from outrider_server.http.errors import ApiError
from outrider_server.settings import LOOPBACK, ServerSettings

logger = logging.getLogger(__name__)


class Callers:
    """Opaque names for keys and domains: hashes under a secret of this process, which tell nothing of the key.

    The *tenant* of a request is its API key: tenants get fair shares. Its *domain* is the key with the ``cache_salt``
    of the request: only requests of one domain share cached prefixes and what is learned from texts.
    """

    def __init__(self, *, share_across_keys: bool) -> None:
        self._secret = secrets.token_bytes(32)
        self._shared = share_across_keys

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
