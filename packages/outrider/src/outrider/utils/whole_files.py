"""Files that appear whole or not at all, under names that a user gave."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

from outrider.errors import CapacityError, ConfigError
from outrider.utils.json_files import shown
from outrider.utils.system import put_on_disk

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_SAID = ("No space left", "os error 28", "os error 122", "os error 27")
"""How libraries that know no error numbers say the same."""


def write_whole(path: Path, write: Callable[[Path], object], remedy: str = "free some space, then try again") -> None:
    """Let ``write(temporary path)`` make the file, put it on the disk, then give it its name.

    An existing path that is no regular file, as a pipe or ``/dev/stdout``, is written in place.

    Raises:
        CapacityError: the disk is full.
        ConfigError: the file cannot be written.
    """
    path = Path(os.path.realpath(path))  # a link stays one
    direct = path.exists() and not path.is_file()
    fresh = path if direct else path.with_name(f".{path.name}.tmp")
    try:
        write(fresh)
        if not direct:
            put_on_disk(fresh)
            os.replace(fresh, path)
    except BaseException as error:
        if not direct:
            fresh.unlink(missing_ok=True)
        if not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        if getattr(error, "errno", None) in _FULL or any(text in str(error) for text in _SAID):
            raise CapacityError(f"the disk of {path.parent} is full: {remedy}") from None
        reason = getattr(error, "strerror", None) or shown(str(error))
        raise ConfigError(f"cannot write {path}: {reason}") from None


def check_place(*paths: Path | None) -> None:
    """Refuse, before long work, places that nothing can be written to after it. None is no place.

    Raises:
        ConfigError: a path is a folder, its folder is not there, or it is not the user's to write in.
    """
    for path in paths:
        if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
            continue  # a pipe, or /dev/stdout
        folder = Path(os.path.realpath(path)).parent
        if path.is_dir():
            raise ConfigError(f"cannot write {path}: it is a folder, give a file")
        if not folder.is_dir():
            raise ConfigError(f"cannot write {path}: there is no folder {folder}")
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"cannot write {path}: {folder} is not yours to write in")


def write_text(path: Path, text: str) -> None:
    """UTF-8 text. Errors as for ``write_whole``."""
    write_whole(path, lambda fresh: fresh.write_text(text, encoding="utf-8"))
