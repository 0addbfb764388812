"""The draft head of a model's own files drafts as transformers' does."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from outrider.cache import CacheSpec, KVCache
from outrider.config import SamplingParams
from outrider.drafters.api import Drafter, RequestView
from outrider.drafters.context import DrafterContext
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.trained.mtp_head import mtp_head
from outrider.drafters.trained.native_mtp import NativeMtp
from outrider.engine.engine import Engine
from outrider.errors import ConfigError
from outrider.models.batch import ForwardBatch, Span
from outrider.native.library import library
from outrider.verify.draft import Draft
from outrider.verify.noise import Noise
from outrider.verify.shaping import log_weights
from outrider.verify.tree import path_to
from tests import small_models
from tests.drafters.mtp_models import FAMILIES, VOCABULARY, reference, target
from tests.small_engines import Scripted, engine, generate, request, run

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

TEXT = small_models.ids(12)


def features(tokens: list[int], family: str) -> Any:
    """The residual stream behind the last layer of the target [n, d]."""
    model = target(family)
    cache = model.new_cache(CacheSpec(max_seq_len=64))
    slot = cache.allocate()
    cache.extend(slot, len(tokens))
    batch = ForwardBatch(tokens, range(len(tokens)), (Span(slot, 0, len(tokens)),), None, features=(2,))
    return model.forward(batch, cache).features


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_every_level_are_those_of_transformers(family: str) -> None:
    head = mtp_head(target(family))
    assert head is not None
    runner = NativeMtp(head, target(family), CacheSpec(max_seq_len=64))
    slot, rows, path = runner.cache.allocate(), len(TEXT) - 1, list[int]()
    runner.cache.extend(slot, rows)
    fed = runner.fuse(features(TEXT, family)[:-1])
    tokens, positions, spans = TEXT[1:], [*range(rows)], [Span(slot, 0, rows)]
    for level in range(4):
        out, logits = runner.run(fed, tokens, positions, spans, [len(tokens) - 1])
        expected = reference(family).row(TEXT, path).numpy()
        assert np.abs(logits[0] - expected).max() <= 2e-6 * np.abs(expected).max()
        path.append(int(expected.argmax()))
        runner.cache.extend(slot, 1)
        fed, tokens, positions, spans = out[-1:], path[-1:], [rows + level], [Span(slot, rows + level, 1)]


def served(lowest: int = VOCABULARY, **options: Any) -> Engine:
    """An engine with the source ``mtp``, and one that now and then knows the next tokens.

    ``lowest``: ids below are always scored.
    """
    model = target()
    head = mtp_head(model)
    assert head is not None
    spec: dict[str, Any] = {"slots": 3, "max_seq_len": 64} | options

    def more(cache: KVCache) -> dict[str, Drafter]:
        context = DrafterContext(
            vocab_size=VOCABULARY, cache=CacheSpec(**spec), heads={"mtp": replace(head, lowest=lowest)}, target=model,
            target_cache=cache,
        )  # fmt: skip
        return {"mtp": DrafterRegistry(context)["mtp"], "knowing": Scripted(knowing)}

    return engine(model, more=more, max_batched_tokens=24, **spec)


PROMPTS = [small_models.ids(n, seed=n) for n in (5, 30)]


def plain(prompt: list[int]) -> list[int]:
    return generate(engine(target(), max_seq_len=64), prompt)


def knowing(view: RequestView, budget: int) -> Draft:
    """Two right tokens behind every other text."""
    n = len(view.tokens)
    right = [*PROMPTS[int(view.id)], *plain(PROMPTS[int(view.id)])]
    return Draft.chain(right[n : n + min(2, budget)] if n % 2 else ())


@pytest.mark.parametrize("lowest", [16, VOCABULARY], ids=["part", "whole"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in company"])
@pytest.mark.parametrize("paged", [False, True], ids=["contiguous", "paged"])
@pytest.mark.parametrize("tree", [None, (2, 2, 1), "dynamic"], ids=str)
def test_every_draft_of_a_generation_is_that_of_transformers(tree: Any, paged: bool, alone: bool, lowest: int) -> None:
    serving = served(lowest, kind="paged" if paged else "contiguous")
    drafter: Any = serving.drafters["mtp"]
    propose, said = drafter.propose, list[tuple[list[int], Draft, set[int]]]()

    def recording(requests: Any, budgets: Any) -> Any:
        drafts = propose(requests, budgets)
        for r, draft in zip(requests, drafts, strict=True):
            if draft:  # the cache holds a row for each hidden state, and none of the draft
                assert drafter.caches[0].length(drafter._sequences[r.id].slot) == len(r.tokens) - 1
        part = drafter.runner.vocabulary
        scored = range(VOCABULARY) if part is None else part.columns.tolist()
        said.extend((list(r.tokens), draft, set(scored)) for r, draft in zip(requests, drafts, strict=True) if draft)
        return drafts

    drafter.propose = recording
    options = {"draft": "knowing+mtp", "tree": tree, "tree_nodes": 8, "spec_length": 3}
    requests = [request(prompt, id=str(i), **options) for i, prompt in enumerate(PROMPTS)]
    for group in [[r] for r in requests] if alone else [requests]:
        run(serving, *group)
    assert [list(r.output) for r in requests] == [plain(prompt) for prompt in PROMPTS]
    assert all(r.stats.draft_error is None for r in requests)
    assert len(said) > 6
    assert (lowest == VOCABULARY) == all(len(scored) == VOCABULARY for _, _, scored in said)
    for tokens, draft, scored in said:
        assert scored >= {*range(lowest), *tokens}
        for node in range(len(draft)):
            path = path_to(draft.parents, node)
            row = reference().row(tokens, [draft.tokens[i] for i in path[:-1]])
            row = row.clone()
            row[[token for token in range(VOCABULARY) if token not in scored]] = -math.inf
            siblings = [i for i, parent in enumerate(draft.parents) if parent == draft.parents[node]]
            best = row.topk(len(siblings)).indices[siblings.index(node)]
            assert draft.tokens[node] == int(best)
            assert draft.scores is not None
            assert math.isclose(draft.scores[node], float(row.softmax(-1)[best]), rel_tol=1e-4)


@pytest.mark.parametrize("lowest", [16, VOCABULARY], ids=["part", "whole"])
@pytest.mark.parametrize("options", [{}, {"top_k": 9}, {"top_p": 0.8}, {"min_p": 0.05}], ids=str)
def test_a_sampled_chain_is_the_race_of_the_tokens_that_the_options_leave(options: Any, lowest: int) -> None:
    serving = served(lowest)
    drafter: Any = serving.drafters["mtp"]
    propose, chain, said = drafter.propose, drafter.runner.chain.run, list[tuple[list[int], Draft, Any]]()
    calls: list[int] = []

    def counting(*arguments: Any) -> Any:
        calls.append(1)
        return chain(*arguments)

    def recording(requests: Any, budgets: Any) -> Any:
        draft = propose(requests, budgets)[0]
        part = drafter.runner.vocabulary
        said.append((list(requests[0].tokens), draft, range(VOCABULARY) if part is None else part.columns.tolist()))
        return [draft]

    drafter.propose, drafter.runner.chain.run = recording, counting
    params = SamplingParams(temperature=0.7, seed=5, max_tokens=12, **options)
    asked = request(PROMPTS[0], params, draft="mtp", spec_length=3)
    run(serving, asked)
    assert asked.stats.draft_error is None
    said = [each for each in said if each[1]]
    assert len(calls) == len(said) > 4  # a chain is one call of the library
    for tokens, draft, scored in said:
        for depth, token in enumerate(draft.tokens):
            row = reference().row(tokens, list(draft.tokens[:depth])).numpy()
            left = np.full(VOCABULARY, -np.inf, np.float32)
            left[scored] = row[scored]
            scores = log_weights(left, params) + Noise(5).gumbel(len(tokens) + depth, VOCABULARY)
            assert token == int(scores.argmax())
            assert draft.scores is not None
            assert math.isclose(draft.scores[depth], math.exp(scores[token]) / np.exp(scores).sum(), rel_tol=1e-4)


def test_a_model_without_a_head_is_refused() -> None:
    assert mtp_head(small_models.llama()) is None
    cache = CacheSpec(max_seq_len=64)
    bare = DrafterContext(vocab_size=64, cache=cache, target=target(), target_cache=target().new_cache(cache))
    assert "mtp" not in list(DrafterRegistry(bare))
    with pytest.raises(ConfigError, match="draft='mtp' needs a model whose files have a draft head"):
        DrafterRegistry(bare)["mtp"]
