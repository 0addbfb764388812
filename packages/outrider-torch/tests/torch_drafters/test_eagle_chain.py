"""One request's chain in one call of the library is the chain that goes level by level, as for several requests."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from outrider.cache import CacheSpec
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.trained.eagle import EagleDrafter
from outrider.drafters.trained.heads import source_of_head
from outrider.engine.request import Request
from outrider.errors import NumericalError
from outrider.models.base import HeadTarget
from outrider.native.library import library
from outrider.verify.draft import Draft
from outrider_torch.heads import head_weights
from outrider_torch.heads.eagle import EagleLayer
from tests import small_models
from tests.drafters.views import request
from tests.torch_drafters.heads import random_head

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

FIT = ((2.0, -0.5, 1.5, -1.0), (0.7, 0.3, 0.6, 0.1))
HEADS: list[dict[str, Any]] = [
    {},
    {"own_lm_head": True},
    {"draft_vocab_size": None},
    {"window": 3},
    {"fc_norm": True, "norm_output": True},
    {"calibration": FIT},
]
PROMPT = small_models.ids(12)


def drafter(head: dict[str, Any], *, tied: bool, cache: str = "paged", kind: str = "eagle3") -> Any:
    target = small_models.llama("int8", tie_embeddings=tied, max_seq_len=64)
    spec = CacheSpec(slots=3, max_seq_len=64, kind=cache, block_size=4)  # type: ignore[arg-type]
    return made(random_head(kind, **head), target, spec)


def made(head: nn.Module, target: HeadTarget, spec: CacheSpec) -> Any:
    """The drafter of a head, in the native library."""
    assert isinstance(head, EagleLayer)
    source, size = source_of_head(head), target.config.vocab_size
    held, cache = {source: head_weights(head)}, target.new_cache(spec)
    return DrafterRegistry(DrafterContext(vocab_size=size, cache=spec, heads=held, target=target, target_cache=cache))[
        source
    ]


def ask(source: EagleDrafter, *views: Request, seed: int = 0) -> list[Draft]:
    """Drafts for requests that have all been read up to their last token."""
    for view in views:
        source.start(view)
        generator = torch.Generator().manual_seed(seed)
        width = len(source.feature_layers) * small_models.llama("int8").config.hidden_size
        rows = torch.randn(len(view.tokens) - 1, width, generator=generator).numpy()
        source.read(view, 0, rows[:7])
        source.read(view, 7, rows[7:])
    drafts = source.propose(views, [5] * len(views))
    for cache in source.caches:
        cache.check()
    return drafts


def view(id: str, **params: Any) -> Request:
    own = {"draft": "eagle", "spec_length": 5}
    return request(PROMPT, id=id, speculation=own, **params)


@pytest.mark.parametrize("params", [{}, {"temperature": 0.8, "seed": 3}], ids=["greedy", "sampled"])
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("head", HEADS, ids=str)
def test_a_chain_is_the_same_alone_and_in_company(head: dict[str, Any], tied: bool, params: dict[str, Any]) -> None:
    (alone,) = ask(drafter(head, tied=tied), view("a", **params))
    first, other = ask(drafter(head, tied=tied), view("a", **params), view("b", **params))
    assert len(alone) == 5
    assert (alone.tokens, alone.parents) == (first.tokens, first.parents) == (other.tokens, other.parents)
    assert alone.scores == pytest.approx(first.scores, rel=1e-5)


@pytest.mark.parametrize("cache", ["paged", "contiguous"])
def test_rows_of_a_draft_are_given_back_and_the_next_one_goes_on(cache: str) -> None:
    """A second draft, after one of five tokens of which two were committed, is that of a text read at once."""
    source, whole = drafter({}, tied=True, cache=cache), drafter({}, tied=True, cache=cache)
    first = view("a")
    (draft,) = ask(source, first)
    width = len(source.feature_layers) * small_models.llama("int8").config.hidden_size
    more = torch.randn(2, width, generator=torch.Generator().manual_seed(9)).numpy()
    first.tokens += draft.tokens[:2]
    source.read(first, len(PROMPT) - 1, more)
    (then,) = source.propose([first], [5])
    again = view("b")
    again.tokens += draft.tokens[:2]
    whole.start(again)
    rows = torch.randn(len(PROMPT) - 1, width, generator=torch.Generator().manual_seed(0)).numpy()
    whole.read(again, 0, np.concatenate([rows, more]))
    (at_once,) = whole.propose([again], [5])
    assert (then.tokens, then.scores) == (at_once.tokens, at_once.scores)


@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_rows_behind_a_window_are_not_run(kind: str) -> None:
    """A prompt read row by row, with a draft after each, and one of which only the last rows are run."""
    own = {"window": 3} | ({"num_layers": 2} if kind == "dflash" else {})
    layers, drafts, rows_held = own.get("num_layers", 1), list[Draft](), list[int]()
    for step in (1, len(PROMPT) - 1):
        target, head = small_models.llama("int8", max_seq_len=64), random_head(kind, **own)
        source = made(head, target, CacheSpec(slots=1, max_seq_len=64))
        r = request(PROMPT, id="a", speculation={"draft": source_of_head(head), "spec_length": 3})
        width = len(source.feature_layers) * target.config.hidden_size
        rows = torch.randn(len(PROMPT) - 1, width, generator=torch.Generator().manual_seed(0)).numpy()
        source.start(r)
        for at in range(0, len(rows), step):
            r.tokens[:] = PROMPT[: min(at + step, len(rows)) + 1]
            source.read(r, at, rows[at : at + step])
            (draft,) = source.propose([r], [3])
        drafts.append(draft)
        rows_held.append(source.caches[0].length(0))
    assert len(drafts[0]) == 3
    assert drafts[0].tokens == drafts[1].tokens
    assert drafts[0].scores == pytest.approx(drafts[1].scores, rel=1e-5)
    assert rows_held == [len(PROMPT) - 1, layers * 2 + 1]


def test_a_chain_ends_where_its_policy_says_so() -> None:
    asked: list[int] = []

    class Hesitant(Request):
        def should_continue(self, source: str, paths: Any) -> bool:
            asked.append(len(paths[0]))
            return len(asked) < 2

    r = view("a")
    r.__class__ = Hesitant
    (draft,) = ask(drafter({}, tied=True), r)
    (whole,) = ask(drafter({}, tied=True), view("b"))
    assert draft.tokens == whole.tokens[:2]
    assert asked == [1, 2]


def test_an_error_between_levels_is_raised() -> None:
    class Broken(Request):
        def should_continue(self, source: str, paths: Any) -> bool:
            raise RuntimeError("no policy")

    r = view("a")
    r.__class__ = Broken
    with pytest.raises(RuntimeError, match="no policy"):
        ask(drafter({}, tied=True), r)


def test_logits_that_are_no_numbers_are_an_error() -> None:
    source = drafter({}, tied=True)
    r = view("a")
    source.start(r)
    width = len(source.feature_layers) * small_models.llama("int8").config.hidden_size
    source.read(r, 0, np.full((len(PROMPT) - 1, width), np.nan, np.float32))
    with pytest.raises(NumericalError, match="not finite"):
        source.propose([r], [5])


def test_a_draft_leaves_nothing_to_the_search_for_garbage() -> None:
    source, r = drafter({}, tied=True), view("a", temperature=0.8, seed=3)
    ask(source, r)
    width = len(source.feature_layers) * small_models.llama("int8").config.hidden_size
    gc.collect()
    gc.disable()
    found = []
    try:
        for _ in range(3):
            source.read(r, len(r.tokens) - 1, np.zeros((1, width), np.float32))
            r.tokens.append(1)
            assert source.propose([r], [5])[0]
            found.append(gc.collect())
        assert min(found) == 0  # other tests' threads may leave something in between
    finally:
        gc.enable()
