"""Conversations on disk: a JSON list of messages in OpenAI's format."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.errors import CapacityError, InvalidRequestError
from outrider.utils.system import private_file
from outrider.utils.user_cache import state_root

Message = dict[str, str]


def last_path() -> Path:
    """The file of the last conversation."""
    return state_root() / "last-chat.json"


def read(path: Path | None) -> list[Message]:
    """The messages of a file: a list of them, or an object with the key ``messages``.

    Raises:
        InvalidRequestError: the file is unreadable, or no conversation.
    """
    assert path is not None
    try:
        found = json.loads(path.expanduser().read_text(encoding="utf-8"))
    except FileNotFoundError:
        if path == last_path():
            raise InvalidRequestError("there is no last conversation yet: leave out --resume") from None
        raise InvalidRequestError(f"there is no file {str(path)!r}: check the path") from None
    except OSError as error:
        raise InvalidRequestError(f"{str(path)!r} cannot be read: {error.strerror}") from None
    except ValueError:
        raise InvalidRequestError(f"{str(path)!r} is not JSON: give a file that /save wrote") from None
    messages = found.get("messages") if isinstance(found, dict) else found
    if not isinstance(messages, list) or not all(map(_is_message, messages)):
        raise InvalidRequestError(
            f"{str(path)!r} is no conversation: it must be a JSON list of objects with the texts role and content"
        )
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def _is_message(found: Any) -> bool:
    return isinstance(found, dict) and all(isinstance(found.get(key), str) for key in ("role", "content"))


def write(path: Path, messages: Sequence[Message]) -> None:
    """Write the messages atomically, readable by the user alone.

    Raises:
        CapacityError: the file cannot be written.
    """
    path = path.expanduser()
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(private_file(fresh, "w"), "w", encoding="utf-8") as file:
            json.dump(list(messages), file, ensure_ascii=False, indent=1)
            file.write("\n")
        fresh.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise CapacityError(f"{str(path)!r} cannot be written: {error.strerror}; name another file") from None


def may_replace(path: Path) -> bool:
    """Whether ``path`` is missing or a conversation."""
    if not path.expanduser().exists():
        return True
    try:
        read(path)
    except InvalidRequestError:
        return False
    return True
