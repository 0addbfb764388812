"""``system_fingerprint``: a name of everything but seed and request that decides the text."""

from __future__ import annotations

import hashlib
import platform
import sys

from outrider import __version__
from outrider.llm import LLM
from outrider.native.processor import processor_name
from outrider.recording.model_files import add_model_files


def fingerprint(llm: LLM) -> str:
    """``fp_`` and 16 digits of a hash of the model's files, adapters, precision, this version, torch and processor."""
    digest = hashlib.sha256()
    for part in (__version__, _torch_version(), platform.machine(), processor_name()):
        digest.update(f"{part}\n".encode())
    digest.update(f"{llm.config.dtype} {llm.model.dtype} {llm.model.cache_dtype} {llm.model.device}\n".encode())
    if llm.speculation.verifier != "matching":  # matching gives the same text however it drafts
        digest.update(repr(llm.speculation).encode())
    for name, key in sorted(llm.adapters.keys.items()):
        digest.update(f"{name} {key}\n".encode())
    add_model_files(digest, llm.config.model, llm.weights_digest)
    return f"fp_{digest.hexdigest()[:16]}"


def _torch_version() -> str:
    """Of the torch that computes, if it does: its kernels round in their own way."""
    return str(getattr(sys.modules.get("torch"), "__version__", ""))
