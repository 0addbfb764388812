"""Where sessions are kept: ``session_dir``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from outrider.cache.sessions.sealing import read_master_key
from outrider.errors import ConfigError

__all__ = ["SessionPlace"]

_KEY = ",key="


@dataclass(frozen=True)
class SessionPlace:
    """A folder, and the key of its files if they are encrypted."""

    folder: Path
    key: bytes | None = None

    @classmethod
    def parse(cls, text: str) -> SessionPlace:
        """Of ``FOLDER``, or ``FOLDER,key=FILE``.

        Raises ConfigError if the key cannot be read, or the library that encrypts is missing.
        """
        folder, separator, file = text.partition(_KEY)
        if not folder or (separator and not file):
            raise ConfigError(f"session_dir={text!r} is not valid: use FOLDER, or FOLDER{_KEY}FILE")
        return cls(Path(folder).expanduser(), read_master_key(Path(file)) if separator else None)
