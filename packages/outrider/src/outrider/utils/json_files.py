"""Reading the small JSON files of a model folder. Imports nothing heavy."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from reprlib import Repr
from typing import Any

from outrider.errors import ModelFormatError

_SHORT = Repr()
_SHORT.maxstring = _SHORT.maxother = 100
_MOST_BYTES = 1 << 27  # far more than any tokenizer; it takes ten times as much in memory
_LONGEST = 300  # of nested values


def shown(value: object) -> str:
    """``repr`` on one line of at most 300 letters, for values out of files that may hold anything."""
    text = _SHORT.repr(value)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 3] + "..."


def read_json_object(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``; ``ModelFormatError`` if the file is missing, unreadable or something else."""
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is no file")
        if found.st_size > _MOST_BYTES:
            raise ValueError(f"it has {found.st_size:,} bytes, and at most {_MOST_BYTES:,} are taken")
        value = json.loads(path.read_text(encoding="utf-8"))
        _check_text(value)
    except FileNotFoundError:
        raise ModelFormatError(f"{path.parent} has no {path.name}: a model folder needs one") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFormatError(f"{path} cannot be read as JSON ({error}): download the model again") from None
    if not isinstance(value, dict):
        raise ModelFormatError(f"{path} holds a {type(value).__name__}, not a JSON object: download the model again")
    return value


def _check_text(value: object) -> None:
    """Refuse strings that JSON can spell and no text can hold: ``"\\ud800"`` would fail wherever it is used."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has lone surrogates") from None


def merge_ids(*values: object) -> tuple[int, ...]:
    """Token ids given as an int, a list or None, joined in order without repeats.

    Raises ``ModelFormatError`` for anything else.
    """
    ids: dict[int, None] = {}
    for value in values:
        for item in value if isinstance(value, list) else [value]:
            if item is None:
                continue
            if not isinstance(item, int) or isinstance(item, bool) or item < 0:
                raise ModelFormatError(
                    f"token id {shown(item)} is not an integer of at least 0: correct the model's configuration"
                )
            ids[item] = None
    return tuple(ids)
