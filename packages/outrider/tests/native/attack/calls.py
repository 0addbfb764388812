"""Each function of the library with the arguments of a ``World``; an argument may be replaced by its position."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from tests.native.attack.world import HEAD_DIM, HEADS, HIDDEN, KV_HEADS, ROWS, VOCABULARY, World, at, floats

Arguments = list[Any]


def _forward(w: World) -> Arguments:
    return [w.context, at(w.model), at(w.cache), at(w.batch)]


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


def _hybrid(w: World) -> Arguments:
    w.model.layers = w.batch.layers = 2
    w.model.layer, w.cache.states = at(w.hybrid), at(w.states)
    w.batch.span, w.batch.rows, w.batch.logit_rows = at(w.settled_span), 2, 0
    return _forward(w)


def _attend(w: World) -> Arguments:
    out = w.keep(floats(ROWS * HEADS * HEAD_DIM))
    return [w.context, at(w.cache), 0, HEADS, KV_HEADS, HEAD_DIM, 1.0, 1, at(w.spans), at(w.x), out]


def _fixed(w: World) -> Arguments:
    return [w.context, at(w.fixed), ROWS, 1.0, at(w.x), w.keep(floats(ROWS * HIDDEN))]


def _norm(w: World) -> Arguments:
    out = w.keep(floats(ROWS * HIDDEN))
    return [w.context, ROWS, HIDDEN, at(w.x), w.model.final_norm.weight, None, 1e-5, out]


def _search(w: World) -> Arguments:
    return [4, at(w.order), 24, at(w.text), 3, at(w.tail), 4, at(w.places), at(w.matches)]


def _most_likely(w: World) -> Arguments:
    width = VOCABULARY
    return [w.context, 1, width, width, at(w.logits), 1.0, 3, at(w.index), at(w.score), at(w.counts)]


def _sample(w: World) -> Arguments:
    return [
        *(w.context, VOCABULARY, at(w.logits), at(w.sampling)),
        *(w.sampling_keys, at(w.index), at(w.score)),
    ]


CALLS: dict[str, Callable[[World], Arguments]] = {
    "forward": _forward,
    "adapted": _adapted,
    "sparse": _sparse,
    "shard": _shared,
    "hybrid": _hybrid,
    "attend": _attend,
    "attend_fixed": _fixed,
    "linear": lambda w: [w.context, at(w.head), ROWS, at(w.x), at(w.y)],
    "norm": _norm,
    "draft_chain": lambda w: [w.context, at(w.feature_head), at(w.cache), at(w.chain)],
    "first_largest": lambda w: [w.context, 1, VOCABULARY, VOCABULARY, at(w.logits), at(w.index), at(w.score)],
    "most_likely": _most_likely,
    "gumbel": lambda w: [w.context, VOCABULARY, w.sampling_keys, at(w.weights_out)],
    "gumbel_of": lambda w: [w.context, 4, at(w.x), at(w.score)],
    "gumbel_of_tokens": lambda w: [w.context, 3, at(w.tokens), w.sampling_keys, at(w.weights_out)],
    "log_weights": lambda w: [w.context, VOCABULARY, at(w.logits), at(w.sampling), at(w.weights_out), at(w.score)],
    "draw": lambda w: [w.context, VOCABULARY, at(w.logits), w.sampling_keys, at(w.index), at(w.score)],
    "sample": _sample,
    "rows": lambda w: [at(w.head), 3, at(w.tokens), at(w.x)],
    "rotations": lambda w: [4, 4, at(w.frequencies), w.keep(floats(4 * 2 * 4))],
    "suffix_array_search": _search,
    "occurrences": lambda w: [24, at(w.text), 3, at(w.tail), 4, at(w.places), at(w.matches)],
    "copied": lambda w: [24, at(w.text), 0, 20, at(w.index)],
    "suffix_draft": lambda w: [at(w.retrieval), at(w.drafted), at(w.parents), at(w.shares), at(w.used)],
    "shared_gather": lambda w: [at(w.shared), at(w.x), at(w.y), 100, 0],
    "plan_weight": lambda w: [at(w.source), at(w.weight_out)],
    "pack": lambda w: [at(w.source), 0, 1, at(w.panels), HIDDEN * 64],
    "checksum": lambda w: [at(w.x), 40, at(w.index)],
    "create": lambda w: [2, b"portable", at(w.context_out)],
    "destroy": lambda w: [w.context],
    "threads": lambda w: [w.context],
    "syncs": lambda w: [w.context],
    "isa_state": lambda _: [b"portable"],
}
"""Arguments of ``outrider_NAME``; those of ``forward`` in several situations."""
_FORWARD = ("adapted", "sparse", "shard", "hybrid")


def call(library: ctypes.CDLL, world: World, name: str, changes: dict[str, Any]) -> int:
    """Make the changes (``"batch.rows": -1``, or ``"2": None`` for the third argument), call, and return the status."""
    function: Any = getattr(library, f"outrider_{'forward' if name in _FORWARD else name}")
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
