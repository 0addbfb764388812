"""Encryption of a store's files: AES-256-GCM, in chunks, under keys of their domains.

::

    mark | salt of the file | domain, length of the head | head | 1 MiB | 1 MiB | ... | the rest
                              '------------------ each of these is sealed ---------------------'

All keys come from the operator's master key by HKDF-SHA-256. A file has keys of its own, by its salt, so that a chunk's
number can be its nonce. The last chunk's nonce is marked, so a file that was cut is not opened. Each chunk is bound to
the file's name and to the model. The domain has a key that does not depend on it: so an index of the files can be made
when a process starts, which knows no domain yet.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from outrider.errors import ConfigError, MissingExtensionError, ModelFormatError

__all__ = ["DOMAIN_BYTES", "Sealer", "derive", "domain_id", "read_master_key"]

DOMAIN_BYTES = 32
_MARK = b"outrider-sealed-1\n"
_SALT, _TAG, _LENGTH = 32, 16, 4  # bytes
_CHUNK = 1 << 20  # bytes before sealing: the interpreter waits for each, for a fifth of a millisecond
_LEAST = 32  # bytes of a master key


def domain_id(salt: str) -> bytes:
    """The domain of requests with this cache salt, as files name it under encryption."""
    return hashlib.blake2b(salt.encode(), digest_size=DOMAIN_BYTES, person=b"session-domain").digest()


def read_master_key(path: Path) -> bytes:
    """The operator's key. Raises ConfigError if it cannot be used, or the library that encrypts is missing."""
    try:
        key = path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"session_dir: the key {str(path)!r} cannot be read: {error.strerror or error}") from None
    if len(key) < _LEAST:
        raise ConfigError(
            f"session_dir: the key {str(path)!r} has {len(key)} bytes: use a file of {_LEAST} random bytes"
        )
    _library(path)
    return key


def _library(path: Path) -> None:
    try:
        import cryptography.hazmat.primitives.ciphers.aead  # noqa: F401
    except ImportError:
        raise MissingExtensionError(
            f"session_dir with the key {str(path)!r} needs the cryptography library: pip install 'outrider[encryption]'"
        ) from None


def derive(key: bytes, purpose: bytes, salt: bytes = b"", length: int = 32) -> bytes:
    """HKDF-SHA-256: another key for each purpose and salt."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    info = b"outrider sessions 1: " + purpose
    return HKDF(algorithm=SHA256(), length=length, salt=salt or None, info=info).derive(key)


class Sealer:
    """Seals and opens the files of one model."""

    def __init__(self, master: bytes, model: str) -> None:
        self.key_id = derive(master, b"id", length=8).hex()
        """Names the key, and tells nothing of it."""
        self._names, self._heads, self._domains = (derive(master, each) for each in (b"names", b"heads", b"rows"))
        self._model = model.encode()

    def name(self, digest: bytes) -> str:
        """The name of the file of a digest: nobody without the key can tell the text that belongs to it."""
        return hashlib.blake2b(digest, digest_size=16, key=self._names).hexdigest()

    def write(self, file: BinaryIO, name: str, domain: bytes, head: bytes, body: memoryview) -> None:
        """Write a file's sealed contents. Raises OSError."""
        salt = os.urandom(_SALT)
        file.write(_MARK + salt)
        facts = domain + len(head).to_bytes(_LENGTH, "little")
        file.write(self._cipher(self._heads, salt).encrypt(_nonce(0, last=True), facts, self._bound(name)))
        cipher, bound = self._of_domain(domain, salt), self._bound(name)
        file.write(cipher.encrypt(_nonce(0, last=not body), head, bound))
        for number, start in enumerate(range(0, len(body), _CHUNK), start=1):
            end = start + _CHUNK
            file.write(cipher.encrypt(_nonce(number, last=end >= len(body)), body[start:end], bound))

    def read(self, file: BinaryIO, name: str, domain: bytes | None = None, *, whole: bool) -> tuple[bytes, bytearray]:
        """The domain of a file, and its head, with its body if ``whole``.

        ``domain``: the file must be of this one; None: of any. Raises ModelFormatError unless the file is as it was
        written, under this name, for this model and with this key. Raises OSError.
        """
        from cryptography.exceptions import InvalidTag

        if file.read(len(_MARK)) != _MARK:
            raise ModelFormatError(f"{name} is of another version, or not encrypted")
        salt, bound = file.read(_SALT), self._bound(name)
        try:
            sealed = file.read(DOMAIN_BYTES + _LENGTH + _TAG)
            facts = self._cipher(self._heads, salt).decrypt(_nonce(0, last=True), sealed, bound)
            found, length = facts[:DOMAIN_BYTES], int.from_bytes(facts[DOMAIN_BYTES:], "little")
            if domain not in (None, found):
                raise ModelFormatError(f"{name} belongs to another domain")
            cipher, content = self._of_domain(found, salt), bytearray()
            sealed, later = file.read(length + _TAG), file.read(_CHUNK + _TAG)
            content += cipher.decrypt(_nonce(0, last=not later), sealed, bound)
            for number, (chunk, last) in enumerate(_chunks(file, later) if whole else (), start=1):
                content += cipher.decrypt(_nonce(number, last=last), chunk, bound)
        except (InvalidTag, ValueError):
            raise ModelFormatError(f"{name} was changed, or belongs to another key, name or model") from None
        return found, content

    def _bound(self, name: str) -> bytes:
        return _MARK + self._model + b"\0" + name.encode()

    def _of_domain(self, domain: bytes, salt: bytes) -> Any:
        return self._cipher(derive(self._domains, domain), salt)

    def _cipher(self, key: bytes, salt: bytes) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        return AESGCM(derive(key, b"file", salt))


def _chunks(file: BinaryIO, chunk: bytes) -> Iterator[tuple[bytes, bool]]:
    """The sealed chunks of a body from ``chunk`` on, and whether each is the last."""
    while chunk:
        later = file.read(_CHUNK + _TAG)
        yield chunk, not later
        chunk = later


def _nonce(number: int, *, last: bool) -> bytes:
    return number.to_bytes(11, "little") + bytes([last])
