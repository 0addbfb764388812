"""Rows of a cache in a folder, where they outlive their memory and the process."""

from outrider.cache.sessions.place import SessionPlace
from outrider.cache.sessions.store import SessionStore

__all__ = ["SessionPlace", "SessionStore"]
