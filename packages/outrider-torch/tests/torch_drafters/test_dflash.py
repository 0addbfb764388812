"""The block drafter: one pass a step, blocks that do not depend on their length, and a selector that is followed."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from outrider.config import SamplingParams
from outrider.engine.engine import Engine
from outrider.verify.draft import Draft
from outrider_torch.heads.dflash import BlockHead
from tests import small_models
from tests.small_engines import generate, request, run
from tests.torch_drafters.heads import random_head, served

TARGET = small_models.llama("fp32", tie_embeddings=False, max_seq_len=64)


def block_head(**changes: Any) -> BlockHead:
    head = random_head("dflash", **changes)
    assert isinstance(head, BlockHead)
    return head


def recorded(engine: Engine, *requests: Any, source: str = "dflash") -> list[tuple[tuple[int, ...], Draft]]:
    """Every draft, with the text it was made for."""
    drafter: Any = engine.drafters[source]
    propose, said = drafter.propose, list[tuple[tuple[int, ...], Draft]]()

    def recording(views: Any, budgets: Any) -> Any:
        drafts = propose(views, budgets)
        said.extend((tuple(view.tokens), draft) for view, draft in zip(views, drafts, strict=True) if draft)
        return drafts

    drafter.propose = recording
    run(engine, *requests)
    assert [r.stats.draft_error for r in requests] == [None] * len(requests)
    return said


@pytest.mark.parametrize("target", [TARGET, small_models.torch_llama(tie_embeddings=False, max_seq_len=64)])
def test_a_short_block_is_the_beginning_of_a_long_one(target: Any) -> None:
    found = [
        dict(recorded(served(target, block_head()), request(small_models.ids(9), draft="dflash", spec_length=length)))
        for length in (1, 3)
    ]
    assert len(found[1]) > 3
    shared = found[0].keys() & found[1].keys()
    assert shared
    for text in shared:
        assert found[1][text].tokens[:1] == found[0][text].tokens
    assert any(len(draft) == 3 for draft in found[1].values())


@pytest.mark.parametrize("tree", [None, (2, 1, 1), "dynamic"])
def test_a_step_is_one_pass_for_all_requests(tree: Any) -> None:
    engine = served(TARGET, block_head())
    drafter: Any = engine.drafters["dflash"]
    counts: Counter[str] = Counter()

    def counted(name: str, call: Any) -> Any:
        def calling(*args: Any) -> Any:
            counts[name] += 1
            return call(*args)

        return calling

    drafter._runner.run = counted("passes", drafter._runner.run)
    drafter.propose = counted("steps", drafter.propose)
    options: dict[str, Any] = {"draft": "dflash", "spec_length": 3, "tree": tree, "tree_nodes": 6}
    run(engine, *(request(small_models.ids(5 + i), id=str(i), **options) for i in range(3)))
    assert 3 < counts["passes"] <= counts["steps"]


@pytest.mark.parametrize("target", [TARGET, small_models.torch_llama(tie_embeddings=False, max_seq_len=64)])
def test_the_selector_is_followed(target: Any) -> None:
    """One that raises the next token of a cycle above all others, within the 32 tokens that the head scores."""
    head = block_head(selector_rank=32, draft_vocab_size=32)
    head.set_draft_ids(torch.arange(0, 64, 2))
    assert head.before is not None
    assert head.after is not None
    assert head.gate is not None
    head.gate.zero_()
    head.before.copy_(torch.eye(32))
    head.after.copy_(1e3 * torch.eye(32).roll(1, dims=0))
    drafts = [d for _, d in recorded(served(target, head), request(small_models.ids(9), draft="dflash", spec_length=3))]
    assert any(len(draft) == 3 for draft in drafts)
    for draft in drafts:
        assert all((a + 2) % 64 == b for a, b in zip(draft.tokens, draft.tokens[1:], strict=False))


def test_a_head_of_one_row_or_without_a_selector_drafts() -> None:
    variants: list[dict[str, Any]] = [{"heads": 1}, {"selector_rank": 0, "num_layers": 1}, {"draft_vocab_size": None}]
    for changes in variants:
        engine = served(TARGET, block_head(**changes))
        r = request(small_models.ids(9), draft="dflash", spec_length=3)
        drafts = recorded(engine, r)
        assert max(len(draft) for _, draft in drafts) == min(3, changes.get("heads", 3))
        assert list(r.output) == generate(engine, small_models.ids(9))


def test_requests_near_the_end_of_the_context_are_drafted_for_with_others() -> None:
    """Blocks of different depths in one pass: none reaches beyond the last position."""
    engine = served(TARGET, block_head())
    params = SamplingParams(max_tokens=40)
    prompts = [small_models.ids(n, seed=n) for n in (58, 20)]
    plain = [generate(engine, prompt, params) for prompt in prompts]
    requests = [request(p, params, id=str(i), draft="dflash", spec_length=3) for i, p in enumerate(prompts)]
    drafts = recorded(engine, *requests)
    assert [list(r.output) for r in requests] == plain
    assert {len(draft) for _, draft in drafts} >= {1, 3}


def test_rows_are_given_back() -> None:
    engine = served(TARGET, block_head())
    (cache,) = engine.drafters["dflash"].caches
    before = cache.free_tokens()
    run(engine, *(request(small_models.ids(9), id=str(i), draft="dflash", tree="dynamic") for i in range(6)))
    assert cache.free_tokens() == before
    cache.check()
