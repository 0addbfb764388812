"""Each function of the library with the arguments of a ``World``; an argument may be replaced by its position."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tests.native.attack.world import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, ROWS, VOCABULARY, World, at, floats

Arguments = list[Any]


def _forward(w: World) -> Arguments:
    return [at(w.model), at(w.cache), at(w.batch)]


def _adapted(w: World) -> Arguments:
    w.batch.adapters = at(w.adapters)
    return _forward(w)


def _sparse(w: World) -> Arguments:
    w.model.layer = at(w.sparse)
    return _forward(w)


def _shared(w: World) -> Arguments:
    w.model.shard = at(w.shard)
    w.batch.inputs = at(w.x)
    return _forward(w)


def _attend(w: World) -> Arguments:
    out = w.keep(floats(ROWS * HEADS * HEAD_DIM))
    return [at(w.cache), 0, HEADS, KV_HEADS, HEAD_DIM, 1.0, 1, at(w.spans), at(w.x), out]


def _fixed(w: World) -> Arguments:
    return [at(w.fixed), ROWS, 1.0, at(w.x), w.keep(floats(ROWS * HIDDEN))]


def _norm(w: World) -> Arguments:
    return [ROWS, HIDDEN, at(w.x), w.model.final_norm.weight, None, 1e-5, w.keep(floats(ROWS * HIDDEN))]


def _nearest(w: World) -> Arguments:
    return [4, at(w.order), 24, at(w.text), 3, at(w.tail), 4, at(w.places), at(w.matches)]


def _most_likely(w: World) -> Arguments:
    width = VOCABULARY
    return [1, width, width, at(w.logits), 1.0, 3, at(w.index), at(w.score), at(w.counts)]


CALLS: dict[str, Callable[[World], Arguments]] = {
    "forward": _forward,
    "adapted": _adapted,
    "sparse": _sparse,
    "shard": _shared,
    "attend": _attend,
    "attend_fixed": _fixed,
    "linear": lambda w: [at(w.head), ROWS, at(w.x), at(w.y)],
    "rows": lambda w: [at(w.head), 3, at(w.tokens), at(w.x)],
    "norm": _norm,
    "rotations": lambda w: [4, 4, at(w.frequencies), w.keep(floats(4 * 2 * 4))],
    "draft_chain": lambda w: [at(w.feature_head), at(w.cache), at(w.chain)],
    "nearest": _nearest,
    "shared_gather": lambda w: [at(w.shared), at(w.x), at(w.y), 100, 0],
    "plan_weight": lambda w: [at(w.source), at(w.weight_out)],
    "pack": lambda w: [at(w.source), at(w.panels), HIDDEN * 64],
    "first_largest": lambda w: [1, VOCABULARY, VOCABULARY, at(w.logits), at(w.index), at(w.score)],
    "most_likely": _most_likely,
    "gumbel": lambda w: [VOCABULARY, at(w.sampling_keys), at(w.weights_out)],
    "gumbel_of": lambda w: [4, at(w.x), at(w.score)],
    "gumbel_of_tokens": lambda w: [3, at(w.tokens), at(w.sampling_keys), at(w.weights_out)],
    "log_weights": lambda w: [VOCABULARY, at(w.logits), at(w.sampling), at(w.weights_out), at(w.score)],
    "draw": lambda w: [VOCABULARY, at(w.logits), at(w.sampling_keys), at(w.index), at(w.score)],
    "sample": lambda w: [VOCABULARY, at(w.logits), at(w.sampling), at(w.sampling_keys), at(w.index), at(w.score)],
    "set_threads": lambda _: [2],
    "set_isa": lambda _: [b"portable"],
    "has_isa": lambda _: [b"portable"],
    "isa_failed": lambda _: [b"portable"],
}
"""Arguments of ``outrider_NAME``; those of ``forward`` in several situations."""
_FORWARD = ("adapted", "sparse", "shard")
_LONGS = {"n": ctypes.c_int64, "i": ctypes.c_int, "f": ctypes.c_float, "p": ctypes.c_void_p, "s": ctypes.c_char_p}
_SAMPLING = {
    "first_largest": "nnnppp", "most_likely": "nnnpfnppp", "gumbel": "npp", "gumbel_of": "npp",
    "gumbel_of_tokens": "nppp", "log_weights": "npppp", "draw": "npppp", "sample": "nppppp",
}  # fmt: skip


def call(library: ctypes.CDLL, world: World, name: str, changes: dict[str, Any]) -> int:
    """Make the changes (``"batch.rows": -1``, or ``"2": None`` for the third argument), call, and return the status."""
    function: Any = getattr(library, f"outrider_{'forward' if name in _FORWARD else name}")
    if name in _SAMPLING:
        function.argtypes = [_LONGS[kind] for kind in _SAMPLING[name]]
    if name == "shard":
        world.shard.gather = ctypes.cast(library.outrider_shared_gather, ctypes.c_void_p)
    for path, value in changes.items():
        if not path.isdecimal():
            world.change(path, value)
    arguments = CALLS[name](world)
    for path, value in changes.items():
        if path.isdecimal():
            i = int(path)
            arguments[i] = value(arguments[i]) if callable(value) else value
    return int(function(*arguments))
