"""What Ollama's store says of a model beside its weights."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.weights.hub.stores.found import FoundModel, size_of

__all__ = ["StoredSettings", "settings_of"]

_MOST_BYTES = 1 << 20


@dataclass(frozen=True)
class StoredSettings:
    """Parameters and system prompt of a Modelfile, or of the model as Ollama publishes it."""

    params: Mapping[str, Any] = field(default_factory=dict)
    """By Ollama's names: ``temperature``, ``stop``, ``num_ctx``, ..."""
    system: str | None = None
    has_template: bool = False
    has_messages: bool = False

    def notice(self, name: str) -> str | None:
        """A line that says which of them apply; None: there are none."""
        given = [*sorted(self.params), *(["a system prompt"] if self.system else [])]
        unused = ["template"] * self.has_template + ["first messages"] * self.has_messages
        said = f"{', '.join(given)} are defaults of /api/chat and /api/generate alone" if given else ""
        left = f"its {' and '.join(unused)} are not used: the chat template is the GGUF file's own" if unused else ""
        return f"{name} in Ollama's store: {'; '.join(filter(None, (said, left)))}" if said or left else None


def settings_of(found: FoundModel) -> StoredSettings:
    """The settings of a model; those that cannot be read are left out."""
    extras = dict(found.extras)
    try:
        params = json.loads(_text(found, "params") or "{}")
    except (ValueError, RecursionError):
        params = {}
    known = params if isinstance(params, dict) else {}
    return StoredSettings(known, _text(found, "system") or None, "template" in extras, "messages" in extras)


def _text(found: FoundModel, kind: str) -> str:
    path = dict(found.extras).get(kind)
    size = None if path is None else size_of(path)
    if path is None or not isinstance(size, int) or size > _MOST_BYTES:
        return ""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""
