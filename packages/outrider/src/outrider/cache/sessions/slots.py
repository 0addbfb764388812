"""Lists of tokens under names that callers gave: llama.cpp's saved slots. Their rows are those of the segments."""

from __future__ import annotations

import json
from collections.abc import Sequence

from outrider.cache.sessions.files import SegmentFiles
from outrider.cache.sessions.sealing import domain_id

__all__ = ["SavedSlots"]

_MOST = 256  # files that are kept, of all callers


class SavedSlots:
    """The last slots that were saved under a name."""

    def __init__(self, files: SegmentFiles) -> None:
        self._files = files

    def save(self, name: bytes, salt: str, tokens: Sequence[int]) -> None:
        """Keep the tokens of a sequence, and the salt of its domain. Raises OSError."""
        content = json.dumps([salt, list(tokens)]).encode()
        self._files.write_note(name, domain_id(salt), content)
        for old in sorted(self._files.notes(), key=lambda path: path.stat().st_mtime)[:-_MOST]:
            old.unlink(missing_ok=True)

    def load(self, name: bytes) -> tuple[str, list[int]] | None:
        """The salt and the tokens that ``save`` kept; None if there are none, or their file was changed."""
        content = self._files.read_note(name)
        if content is None:
            return None
        try:
            salt, tokens = json.loads(content)
            return str(salt), [int(token) for token in tokens]
        except (ValueError, TypeError):
            return None
