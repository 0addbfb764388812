"""The per-user folders. Of the cache: its place, its locks, and folders that appear whole or not at all.

models/NAME/   built-in models, ready to load        gguf/NAME-HASH/   converted GGUF files
downloads/     finished parts of unfinished pulls    locks/            one lock file per name
packed/        weights in the layouts of the native library
answers/       datastores of the answers that come with the package
"""

from __future__ import annotations

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs

from outrider.errors import CapacityError, ConfigError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_UNUSABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST)


def cache_root() -> Path:
    """``OUTRIDER_CACHE`` if set, else the user's cache folder for Outrider."""
    chosen = os.environ.get("OUTRIDER_CACHE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_cache_path("outrider")


def state_root() -> Path:
    """``OUTRIDER_STATE`` if set, else the user's folder for what cannot be fetched again."""
    chosen = os.environ.get("OUTRIDER_STATE")
    return Path(chosen).expanduser() if chosen else platformdirs.user_state_path("outrider")


@contextmanager
def locked(name: str, *, announce: bool = False) -> Iterator[None]:
    """Hold the lock of ``name`` against other processes; waits for it, saying so on stderr if ``announce``."""
    import filelock  # half of what else a start imports, and not needed by one that finds its model ready

    with _explained():
        path = cache_root() / "locks" / f"{name}.lock"
        _make(path.parent)
        lock = filelock.FileLock(path)
        try:
            lock.acquire(blocking=False)
        except filelock.Timeout:
            if announce:
                print(f"waiting for another process that prepares {name}", file=sys.stderr)
            lock.acquire()
    try:
        yield
    finally:
        lock.release()


@contextmanager
def building(target: Path) -> Iterator[Path]:
    """A temporary sibling of ``target`` to fill; it takes the place of ``target`` when the block ends well.

    Hold the lock of ``target`` meanwhile. Whatever an earlier, killed process left behind is removed.
    Raises ``CapacityError`` when the disk fills up.
    """
    with _explained():
        _make(target.parent)
        for left in target.parent.glob(f".{target.name}.tmp*"):
            shutil.rmtree(left)
        fresh = target.parent / f".{target.name}.tmp"
        fresh.mkdir()
        try:
            yield fresh
            if target.exists():
                target.rename(target.parent / f".{target.name}.tmp-old")
            fresh.rename(target)
        finally:
            for left in target.parent.glob(f".{target.name}.tmp*"):
                shutil.rmtree(left, ignore_errors=True)


def require_space(needed: int, what: str) -> None:
    """Raise ``CapacityError`` unless the cache folder's disk has ``needed`` bytes free."""
    root = cache_root()
    with _explained():
        _make(root)
        free = shutil.disk_usage(root).free
    if free < needed:
        raise CapacityError(
            f"{what} needs {needed / 1e9:.2f} GB in {root}, {free / 1e9:.2f} GB are free: "
            "free some, or point OUTRIDER_CACHE at a larger disk"
        )


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError as error:  # where no folders can be made, as in /proc
        raise ConfigError(f"{folder}: {error.strerror}; correct it, or set OUTRIDER_CACHE") from None


@contextmanager
def _explained() -> Iterator[None]:
    """Turn a full disk or an unusable folder into the error a user can act on."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise CapacityError(f"the disk of {cache_root()} is full: free some, or set OUTRIDER_CACHE") from None
        if error.errno in _UNUSABLE:
            where = error.filename or cache_root()
            raise ConfigError(f"{where}: {error.strerror}; correct it, or set OUTRIDER_CACHE") from None
        raise
