"""The words of a server about itself: engine, version, models. A server need not have any."""

from __future__ import annotations

from typing import Any

from outrider.errors import ConfigError
from outrider_lab.certify.client import ask, root

KEPT = 4000  # characters of an answer; llama.cpp's properties hold whole templates


def about(*urls: str | None) -> dict[str, Any]:
    """For each URL, the answers of its informing paths."""
    return {url: _of(url) for url in dict.fromkeys(urls) if url is not None}


def _of(url: str) -> dict[str, Any]:
    top = root(url)
    found: dict[str, Any] = {}
    for path in (f"{top}/models", f"{top.removesuffix('/v1')}/version", f"{top.removesuffix('/v1')}/props"):
        try:
            answer = ask(path)
        except ConfigError:
            continue
        name = path.rsplit("/", 1)[-1]
        found[name] = answer if len(str(answer)) <= KEPT else f"{str(answer)[:KEPT]} ..."
    return found
