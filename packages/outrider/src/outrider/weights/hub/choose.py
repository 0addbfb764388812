"""Chooses a GGUF file of a repository of the hub whose type nobody named: the best that fits this machine's memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.weights.gguf.brief import type_in_name
from outrider.weights.gguf.shards import is_shard, shard_pattern
from outrider.weights.hub.stores.found import is_companion

__all__ = ["Choice", "choose"]

SHARE = 0.7
"""Of the free memory, for weights; the rest is for the cache and for other programs."""
_WIDE = ("F32", "F16", "FP16", "BF16")  # twice as large as 8 bits, and hardly better: where there is nothing else


@dataclass(frozen=True)
class Choice:
    """A model of a repository: its file, the first of several, their bytes together, and the type in their names."""

    file: str
    bytes: int
    type: str | None
    fits: bool
    among: int
    """The number of models of the repository."""
    name: str
    """The type, by which companions of the same type are fetched too; the file where another's name ends so too."""


def choose(files: Iterable[tuple[str, int]], free: int) -> Choice | None:
    """The largest model that fits ``free`` bytes, else the smallest; None: there is no model.

    ``files``: names and bytes of all files of the repository.
    """
    models: dict[str, list[tuple[str, int]]] = {}
    for name, size in files:
        if name.endswith(".gguf") and not is_companion(name):
            models.setdefault(shard_pattern(name), []).append((name, size))
    sizes = {min(group)[0]: sum(size for _, size in group) for group in models.values()}
    if not sizes:
        return None
    types = {name: type_in_name(_stem(name)) for name in sizes}
    narrow = [name for name in sizes if types[name] not in _WIDE] or list(sizes)
    fitting = [name for name in narrow if sizes[name] <= SHARE * free]
    file = _largest(fitting, sizes) if fitting else min(sizes, key=lambda name: (sizes[name], name))
    kind = types[file]
    alone = kind is not None and sum(_stem(name).upper().endswith(kind) for name in sizes) == 1
    return Choice(file, sizes[file], kind, bool(fitting), len(sizes), kind if alone and kind is not None else file)


def _largest(names: Sequence[str], sizes: dict[str, int]) -> str:
    return max(names, key=lambda name: (sizes[name], name))


def _stem(name: str) -> str:
    """A file's name without its ending and the number of its part."""
    stem = name.removesuffix(".gguf")
    return stem[: -len("-00001-of-00001")] if is_shard(name.rsplit("/", 1)[-1]) else stem
