"""The memory of recurrent states: of running sequences, and of the copies for later ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.cache.protocol import CacheSpec
from outrider.config import AUTO_LENGTH, EngineConfig
from outrider.config.sampling import MAX_WIDTH
from outrider.engine.read_plan import TAIL
from outrider.models.base import LoadedModel
from outrider.verify.shapes import max_depth, max_nodes

MOST_CHECKPOINTS = 16


@dataclass(frozen=True)
class StatePlan:
    """The memory of recurrent states."""

    places: int  # sequences
    pending: int  # as in ``CacheSpec``
    checkpoints: int
    nbytes: int  # of the target's states, their copies, and the draft models' states
    branches: int = 0  # states of beams
    branches_wait: bool = False  # whether these take memory, and are counted, only when a search comes


NO_STATES = StatePlan(places=0, pending=CacheSpec.pending, checkpoints=0, nbytes=0)


def plan_states(target: LoadedModel, drafts: Sequence[LoadedModel], config: EngineConfig, room: int) -> StatePlan:
    """The states of a full batch, or of as many sequences as half of ``room`` holds, and a quarter for copies.

    Beams have as many as an eighth of ``room`` would hold. Arrays of NumPy take memory where they are written, so the
    first search takes it from what the plan leaves to the system; tensors are made whole, so ``room`` is less.
    """
    speculation = config.speculation
    nodes = max(AUTO_LENGTH, max_nodes(speculation, max_depth(speculation, adaptive=True)))
    pending = TAIL + nodes
    own, *others = [
        0 if (shape := model.config.states) is None else shape.sequence_bytes(pending) for model in (target, *drafts)
    ]
    if own + sum(others) == 0:
        return NO_STATES
    places = max(1, min(config.max_batch_size, room // 2 // (own + sum(others))))
    checkpoints = min(MOST_CHECKPOINTS, room // 4 // own) if own and config.prefix_reuse else 0
    branches = min(MAX_WIDTH, room // 8 // own) if own else 0
    waits = isinstance(target.cache_dtype, str)
    nbytes = places * (own + sum(others)) + (checkpoints + (0 if waits else branches)) * own
    return StatePlan(places, pending, checkpoints, nbytes, branches, waits)
