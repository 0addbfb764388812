"""Steps are planned in seconds while several tenants share an engine. Time is a clock that a model moves on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from outrider.cache import CacheSpec, KVCache
from outrider.config import SamplingParams
from outrider.drafters.api import Drafter
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.model.model import ModelDrafter
from outrider.drafters.text.ngram import NgramDrafter
from outrider.engine.engine import Engine
from outrider.engine.pace import ALONE_SECONDS, STEP_SECONDS, DraftTime
from outrider.engine.request import PROMPT_LOGITS_COST, Request
from outrider.models.batch import ForwardBatch, ForwardOutput
from outrider.models.toy import TableModel
from outrider.utils.row_cost import RowCost
from outrider_drafters.hierarchical import HierarchicalDrafter
from outrider_drafters.layer_skip import LayerSkipDrafter
from tests.small_engines import request

VOCAB, CONTEXT = 6, 2000
LEVEL, PASS, ROW = 0.06, 0.02, 0.004  # seconds of a draft level, of a pass, and of each of its rows


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Timed(TableModel):
    """Moves the clock on by what its passes cost."""

    clock: Clock
    each_level: Callable[[], None] = staticmethod(lambda: None)
    levels = 0

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        if batch.layers is None:
            scored = len(batch.token_ids if batch.logit_rows is None else batch.logit_rows)
            self.clock.now += PASS + ROW * (len(batch.token_ids) + (PROMPT_LOGITS_COST - 1) * scored)
        else:
            self.levels += 1
            self.clock.now += LEVEL
            self.each_level()
        return super().forward(batch, cache)


def timed(clock: Clock) -> Timed:
    model = Timed(TableModel.random(VOCAB, seed=2).table, max_seq_len=CONTEXT)
    model.clock = clock
    return model


class Draft(Timed):
    """A draft model: each of its passes is a level, and each of its rows takes as long as the target's."""

    def forward(self, batch: ForwardBatch, cache: KVCache) -> ForwardOutput:
        self.levels += 1
        self.clock.now += LEVEL + ROW * len(batch.token_ids)
        return TableModel.forward(self, batch, cache)


class Served:
    """An engine on a clock, and the seconds of each of its steps."""

    def __init__(self, slots: int = 8) -> None:
        self.clock = clock = Clock()
        self.model, spec = timed(clock), CacheSpec(slots=slots, max_seq_len=CONTEXT)
        self.draft = Draft(TableModel.random(VOCAB, seed=3).table, max_seq_len=CONTEXT)
        self.draft.clock = clock
        cache, small = self.model.new_cache(spec), DraftModel(self.draft, vocab_size=VOCAB, cache=spec, clock=clock)
        drafters: dict[str, Drafter] = {
            "layer_skip": LayerSkipDrafter(self.model, cache, layers=1, vocab_size=VOCAB),
            "model": ModelDrafter(small),
            "hierarchical": HierarchicalDrafter(small, NgramDrafter(VOCAB)),
        }
        self.engine = Engine(
            self.model, drafters=drafters, eos_token_ids=(), vocab_size=VOCAB, cache=spec, kv_cache=cache, clock=clock
        )
        self.seconds: list[float] = []

    def step(self) -> None:
        began = self.clock.now
        self.engine.step()
        self.seconds.append(self.clock.now - began)

    def wait_of(self, victim: Request) -> float:
        """Seconds from its arrival to its end."""
        began = self.clock.now
        self.seconds.clear()
        self.engine.add(victim)
        while victim.finish_reason is None:
            self.step()
        return self.clock.now - began


def one(id: str, tenant: str, prompt: int = 3, **options: Any) -> Request:
    params = {"max_tokens": 100} | {
        name: options.pop(name) for name in ("max_tokens", "prompt_logprobs") if name in options
    }
    made = request([(i * i) % VOCAB for i in range(prompt)], SamplingParams(**params), id=id, **options)
    made.tenant = tenant
    return made


def alone(**options: Any) -> list[int]:
    served, r = Served(), one("alone", "", **options)
    served.engine.add(r)
    while r.finish_reason is None:
        served.step()
    return list(r.output)


@pytest.mark.parametrize("draft", ["layer_skip", "model", "hierarchical"])
@pytest.mark.parametrize("tree", [None, "dynamic"])
def test_no_step_drafts_beyond_its_time_while_another_tenant_waits(draft: str, tree: str | None) -> None:
    if draft == "hierarchical" and tree:
        draft = "layer_skip+hierarchical"
    options: dict[str, Any] = {"draft": draft, "spec_length": 64, "tree": tree, "tree_nodes": 64}
    served = Served()
    crowd = [one(f"a{i}", "a", **options) for i in range(4)]
    for r in crowd:
        served.engine.add(r)
    for _ in range(3):
        served.step()
    wait = served.wait_of(one("b", "b", max_tokens=2))
    assert max(served.seconds) <= STEP_SECONDS + LEVEL
    assert wait <= 4 * STEP_SECONDS
    assert all(r.stats.draft_error is None for r in crowd)
    while served.engine.busy:
        served.step()
    assert {tuple(r.output) for r in crowd} == {tuple(alone())}


@pytest.mark.parametrize("kind", ["prompt", "prompt_logprobs", "embedding", "draft model"])
def test_no_step_reads_beyond_its_time_while_another_tenant_waits(kind: str) -> None:
    served = Served()
    options: dict[str, Any] = {"prompt": 900, "max_tokens": 8}
    if kind == "prompt_logprobs":
        options["prompt_logprobs"] = 0
    if kind == "draft model":
        options |= {"draft": "model", "spec_length": 4}
    crowd = [one(f"a{i}", "a", **options) for i in range(4)]
    for r in crowd:
        r.prompt_report.final_norm = served.model.final_norm if kind == "embedding" else None
        served.engine.add(r)
    for _ in range(3):
        served.step()
    assert max(served.seconds) <= 2 * ALONE_SECONDS  # none is asked to learn more slowly what passes take
    for i in range(5):
        wait = served.wait_of(one(f"b{i}", "b", max_tokens=2))
        assert max(served.seconds) <= 1.5 * STEP_SECONDS + LEVEL  # the first drafts of all come unexpected
        assert wait <= 5 * STEP_SECONDS
    while served.engine.busy:
        served.step()
    assert all(list(r.output) == alone(**options) for r in crowd)
    assert all(r.prompt_report.hidden_sum is not None for r in crowd if kind == "embedding")


def test_without_tenants_steps_are_as_large_as_they_may_be() -> None:
    served = Served()
    served.engine.add(one("a", "", prompt=900, draft="layer_skip", spec_length=64))
    served.step()
    assert served.seconds == [pytest.approx(PASS + 900 * ROW + (PROMPT_LOGITS_COST - 1) * ROW)]
    served.step()
    assert served.model.levels == 64


def test_who_arrives_amid_drafting_ends_it() -> None:
    served = Served()
    served.engine.add(one("a", "a", draft="layer_skip", spec_length=64))
    served.step()
    before = served.model.levels

    def third() -> None:
        if served.model.levels - before == 3:
            served.engine.expect("a")  # its own tenant's do not count
        if served.model.levels - before == 5:
            served.engine.expect("b")

    served.model.each_level = third
    served.step()
    assert served.model.levels - before == 5


def test_tenants_are_charged_the_seconds_that_steps_took_for_them() -> None:
    served = Served()
    drafting, plain = one("d", "a", draft="layer_skip", spec_length=8), one("p", "b")
    for r in (drafting, plain):
        served.engine.add(r)
    for _ in range(4):
        served.step()
    share = served.engine._scheduler._waiting
    assert share.served("a") - share.served("b") > 0.8 * sum(served.seconds)
    assert share.served("a") + share.served("b") == pytest.approx(sum(served.seconds))


def test_rows_within_some_seconds() -> None:
    cost = RowCost()
    unknown = cost.rows_within(1.0)
    assert 8 <= unknown <= 256
    for rows in (1, 1, 30, 200, 1000):
        cost.observe(rows, 0.1 + 0.001 * rows)
    assert 300 <= cost.rows_within(0.5) <= 400  # 400 are right, and nothing between 200 and 1000 is known
    assert cost.rows_within(0.001) == 8
    for _ in range(30):  # contexts have grown, say
        rows = cost.rows_within(0.5)
        cost.observe(rows, 0.1 + 0.004 * rows)
    assert 0.1 + 0.004 * cost.rows_within(0.5) <= 0.6


def test_a_disturbed_pass_does_not_shrink_those_to_come_for_long() -> None:
    cost = RowCost()
    for _ in range(5):
        cost.observe(100, 0.1)
    cost.observe(100, 60.0)
    assert cost.rows_within(0.5) > 300


def test_a_level_that_would_end_too_late_is_not_begun() -> None:
    clock = Clock()
    time = DraftTime(clock)
    assert time.left() == math.inf
    assert time.has_level("r")
    time.begin(1.0)
    begun = 0
    while time.has_level("r"):
        clock.now += 0.3
        begun += 1
    assert begun == 3
    time.begin(math.inf)
    time.cut()
    assert not time.has_level("r")
    assert time.left() < 0
