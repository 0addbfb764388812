"""Names of models on the Hugging Face hub."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["HubRef", "is_hub_id", "parse_hub_ref"]

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
# The hub's address as users copy it from a browser, from Ollama or from llama.cpp.
_ADDRESS = re.compile(r"(?:https?://)?(?:www\.)?(?:hf\.co|huggingface\.co)/|hf://(?:models/)?", re.IGNORECASE)
_REF = re.compile(
    rf"(?P<repo>{_HUB_ID.pattern}?)"
    r"(?:/(?:blob|resolve)/[\w.-]+/(?P<file>[\w./-]+\.gguf)|/tree/[\w.-]+)?(?::(?P<type>[\w.-]+))?/?(?:\?.*)?"
)


@dataclass(frozen=True)
class HubRef:
    """A model of the hub. ``gguf``: the type of its weights, or the name of the file; empty: any; None: safetensors."""

    repo: str
    gguf: str | None


def is_hub_id(ref: str) -> bool:
    """Whether ``ref`` has the form ``org/name``."""
    return _HUB_ID.fullmatch(ref) is not None


def parse_hub_ref(ref: str) -> HubRef | None:
    """The repository and file of ``org/name`` or ``org/name:Q4_K_M``, perhaps behind the hub's address; else None."""
    address = _ADDRESS.match(ref)
    found = _REF.fullmatch(ref[address.end() :] if address else ref)
    if found is None or (found["repo"].endswith(".gguf") and address is None):
        return None
    repo = found["repo"]
    return HubRef(repo, found["file"] or found["type"] or ("" if repo.lower().endswith("gguf") else None))
