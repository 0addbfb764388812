"""The memory of recurrent states in the plan of an engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.config import AUTO_LENGTH, EngineConfig, SpeculationParams
from outrider.config.sampling import MAX_WIDTH
from outrider.engine.memory_plan import MemoryPlan, plan_memory, row_bytes
from outrider.engine.read_plan import TAIL
from outrider.engine.state_plan import MOST_CHECKPOINTS
from outrider.models.base import LoadedModel
from tests.hybrid_toy import HybridToy
from tests.small_models import config

TOY = HybridToy(max_seq_len=64)


def loaded(model_config: Any, cache_dtype: Any = "float32") -> LoadedModel:
    return cast(
        LoadedModel, SimpleNamespace(config=model_config, weight_bytes=1, cache_dtype=cache_dtype, dtype="float32")
    )


HYBRID, PLAIN = loaded(TOY.config), loaded(config(max_seq_len=64))


def plan(available: int = 10**9, target: LoadedModel = HYBRID, drafts: Any = (), **options: Any) -> MemoryPlan:
    return plan_memory(target, drafts, EngineConfig(model="m", **{"max_batch_size": 4} | options), available)


def place_bytes(pending: int) -> int:
    assert TOY.config.states is not None
    return TOY.config.states.sequence_bytes(pending)


def test_a_token_takes_rows_of_the_layers_with_attention_alone() -> None:
    assert row_bytes(HYBRID) == 2 * 1 * TOY.config.head_dim * 4


def test_states_of_a_batch_and_their_copies_are_counted() -> None:
    found, own = plan(), place_bytes(TAIL + AUTO_LENGTH)
    assert found.states.nbytes == (4 + MOST_CHECKPOINTS) * own
    assert found.total - plan(prefix_reuse=False).total == MOST_CHECKPOINTS * own
    assert f"recurrent states, 4 and {MOST_CHECKPOINTS} copies" in "".join(found.lines())
    spec = found.cache_spec(EngineConfig(model="m", max_batch_size=4), 64)
    assert (spec.slots, spec.pending, spec.checkpoints) == (4, TAIL + AUTO_LENGTH, MOST_CHECKPOINTS)
    assert spec.branches == MAX_WIDTH


def test_beams_take_no_context_from_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of arrays, whose memory is taken by the first search; tensors are made whole."""
    many: dict[str, Any] = {"max_batch_size": 900, "max_batched_tokens": 900}
    little = int((plan(**many).activations + 40 * place_bytes(TAIL + AUTO_LENGTH)) / 0.6)
    tensors = loaded(TOY.config, SimpleNamespace(itemsize=4))
    found, counted = (plan(little, target, **many) for target in (HYBRID, tensors))
    monkeypatch.setattr("outrider.engine.state_plan.MAX_WIDTH", 0)
    without = plan(little, **many)
    assert found.states.branches == counted.states.branches > without.states.branches == 0
    assert (found.kv_tokens, found.total) == (without.kv_tokens, without.total)
    assert counted.kv_tokens < found.kv_tokens
    extra = (counted.states.nbytes - found.states.nbytes) // place_bytes(TAIL + AUTO_LENGTH)
    assert extra == found.states.branches
    assert f"recurrent states, {found.states.places + extra} and" in "".join(counted.lines())


def test_arrays_have_room_for_all_states() -> None:
    found = plan()
    cache = TOY.new_cache(found.cache_spec(EngineConfig(model="m", max_batch_size=4), 64))
    assert cache.states is not None
    arrays = [*cache.states.state, *cache.states.inputs, *cache.states.updates]
    assert sum(array.nbytes for array in arrays) == (4 + MAX_WIDTH) * place_bytes(TAIL + AUTO_LENGTH)


def test_room_is_made_for_larger_trees() -> None:
    wide = SpeculationParams(draft="model", tree=(5, 4, 2))
    assert plan(speculation=wide, draft_model="d").states.pending == TAIL + 5 + 20 + 40


def test_little_memory_has_fewer_places_and_copies() -> None:
    own = place_bytes(TAIL + AUTO_LENGTH)
    activations = plan(max_batched_tokens=8).activations
    found = plan(int((activations + 6 * own) / 0.6), max_batched_tokens=8)
    assert (found.states.places, found.states.checkpoints, found.states.branches) == (3, 1, 0)
    assert found.cache_spec(EngineConfig(model="m", max_batch_size=4), 64).slots <= 3


def test_a_draft_model_has_states_too() -> None:
    found = plan(target=PLAIN, drafts=[HYBRID])
    assert found.states.nbytes == 4 * place_bytes(TAIL + AUTO_LENGTH)
    assert found.states.checkpoints == found.states.branches == 0


def test_models_without_states_are_planned_as_ever() -> None:
    found = plan(target=PLAIN)
    assert found.states.nbytes == 0
    assert "recurrent" not in found.line() + "".join(found.lines())
