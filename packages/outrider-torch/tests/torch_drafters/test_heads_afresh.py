"""Every draft in the course of a generation is what the head says when it reads the whole text afresh."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from outrider.cache import CacheSpec
from outrider.drafters.api import RequestView
from outrider.drafters.trained.heads import source_of_head
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.draft import Draft
from outrider.verify.tree import path_to
from outrider_torch.drafters.torch_target import torch_target
from outrider_torch.heads.dflash import BlockHead
from outrider_torch.heads.diffusion import DiffusionHead
from outrider_torch.heads.dspark import DSparkHead
from outrider_torch.heads.eagle import Attend, EagleLayer
from tests import small_models
from tests.pairwise import pairwise, slow_unless
from tests.small_engines import Scripted, generate, request, run
from tests.torch_drafters.heads import random_head, served

TARGET = small_models.llama("fp32", tie_embeddings=False, max_seq_len=64)
HEADED: Any = torch_target(TARGET)  # as heads read it: with tensors


def features(tokens: Sequence[int], layers: tuple[int, ...], inputs: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The target's features and logits [n, ...] of a text, in one run."""
    cache = TARGET.new_cache(CacheSpec(max_seq_len=64))
    slot = cache.allocate()
    cache.extend(slot, len(tokens))
    span = (Span(slot, 0, len(tokens)),)
    batch = ForwardBatch(tokens, range(len(tokens)), span, None, features=layers, inputs=inputs)
    out = HEADED.forward(batch, cache)
    assert out.features is not None
    return out.features, out.logits


def causal(head: EagleLayer) -> Attend:
    """[n, heads, d] over [n, kv_heads, d], each row over the window of ``head``."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        n = len(q)
        seen = torch.ones(n, n, dtype=torch.bool).tril().triu(1 - (head.config.window or n))
        q, k, v = (t.transpose(0, 1) for t in (q, k, v))
        out = F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=seen, enable_gqa=True)
        return out[0].transpose(0, 1)

    return attend


def eagle_row(head: EagleLayer, tokens: Sequence[int], path: Sequence[int]) -> Tensor:
    """Logits [vocab] behind ``path``: the layer over the whole text, then node by node with its own outputs."""
    layers = head.config.feature_layers
    inner, _ = features(tokens, layers or (2,))
    known = head.fuse(inner if layers else HEADED.final_norm(inner))[: len(tokens) - 1]
    text = [*tokens, *path]
    while True:
        rows = len(known)
        embeddings = HEADED.embed(torch.tensor(text[1 : 1 + rows]))
        out = head(embeddings, known, torch.arange(rows), causal(head))
        if rows == len(text) - 1:
            break
        known = torch.cat([known, out[-1:]])
    hidden, ids = head.scorable(out[-1:]), head.draft_ids
    row = torch.full((64,), -1e4)
    if ids is None:
        found: Tensor = HEADED.compute_logits(hidden)[0]
        return found
    row[ids] = (hidden @ HEADED.lm_head_rows(ids).T)[0]
    return row


def dflash_row(head: BlockHead, tokens: Sequence[int], path: Sequence[int]) -> Tensor:
    """Logits [vocab] behind ``path``: the layers over the whole text, and over a block as long as the path."""
    known = head.fuse(features(tokens, head.config.feature_layers)[0])[: len(tokens) - 1]
    embeddings = HEADED.embed(torch.tensor(tokens[1:]))
    block = [head.block_row(embeddings[-1], known[-1], offset) for offset in range(1, len(path) + 1)]
    rows = len(known) + len(block)
    inputs = (torch.cat([part, *(row[i][None] for row in block)]) for i, part in enumerate((embeddings, known)))
    out, ids = head(*inputs, torch.arange(rows), causal(head))[-1], head.draft_ids
    assert ids is not None
    assert head.before is not None
    assert head.after is not None
    assert head.gate is not None
    row = torch.full((64,), -1e4)
    row[ids] = HEADED.lm_head_rows(ids) @ head.scorable(out)
    if path and path[-1] in ids.tolist():
        gate = 1 + head.gate @ (out / (out.square().mean() + head.config.rms_norm_eps).sqrt())
        row[ids] += head.after @ (gate * head.before[ids.tolist().index(path[-1])])
    return row


def behind(context: Sequence[tuple[Tensor, Tensor]], windows: Sequence[int]) -> Attend:
    """The attention of a block, layer by layer, to keys and values [T, kv_heads, d] before it and to all of itself."""
    layers = zip(context, windows, strict=True)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (keys, values), window = next(layers)
        first = max(0, len(keys) - window) if window else 0
        keys, values = (
            torch.cat(parts).repeat_interleave(3, dim=1) for parts in ((keys[first:], k), (values[first:], v))
        )
        weights = (torch.einsum("qhd,khd->hqk", q, keys) / q.shape[-1] ** 0.5).softmax(-1)
        return torch.einsum("hqk,khd->qhd", weights, values)

    return attend


def diffusion_row(head: DiffusionHead, tokens: Sequence[int], path: Sequence[int]) -> Tensor:
    """Logits [vocab] behind ``path``: keys and values of all features anew, and a whole block behind them."""
    c, last = head.config, len(tokens) - 1
    context = head.context(head.fuse(features(tokens, c.feature_layers)[0])[:last], torch.arange(last))
    assert c.mask_token_id is not None
    assert head.candidate_selector is not None
    block = HEADED.embed(torch.tensor([tokens[-1], *[c.mask_token_id] * c.heads]))
    out = head(block, torch.arange(last, last + len(block)), behind(context, c.layer_windows))[1 + len(path)]
    row: Tensor = HEADED.compute_logits(out[None])[0]
    best = row.topk(c.selector_top_k).indices
    before = torch.tensor([[tokens[-1], *path][-1]])
    gained = head.candidate_selector(out[None], before, best[None])[0]
    return (row - 1e4).index_copy(0, best, row[best] + gained)


def dspark_row(head: DSparkHead, tokens: Sequence[int], path: Sequence[int]) -> Tensor:
    """As ``diffusion_row`` without a selector, and what the token before adds; the last token's row guesses too."""
    c, last = head.config, len(tokens) - 1
    context = head.context(head.fuse(features(tokens, c.feature_layers)[0])[:last], torch.arange(last))
    assert c.mask_token_id is not None
    assert head.markov is not None
    block = HEADED.embed(torch.tensor([tokens[-1], *[c.mask_token_id] * (c.heads - 1)]))
    out = head(block, torch.arange(last, last + len(block)), behind(context, c.layer_windows))[len(path)]
    row: Tensor = HEADED.compute_logits(out[None])[0]
    return row + head.markov.after.weight @ head.markov.before.weight[[*tokens, *path][-1]]


def pass_row(head: nn.Module, tokens: Sequence[int], path: Sequence[int]) -> Tensor:
    """The target over the text and as many look-ahead embeddings as the path is long."""
    ahead: Tensor = head()[: len(path)]
    inputs = torch.cat([HEADED.embed(torch.tensor(tokens)), ahead])
    return features([*tokens, *path], (2,), inputs)[1][-1]


def medusa_row(head: nn.Module, tokens: Sequence[int], path: Sequence[int]) -> Tensor:
    hidden = HEADED.final_norm(features(tokens, (2,))[0])[len(tokens) - 2]
    row: Tensor = HEADED.compute_logits(head(hidden[None])[len(path)])[0]
    return row


ROWS: dict[str, Any] = {
    "eagle": eagle_row, "eagle3": eagle_row, "dflash": dflash_row, "pass": pass_row, "medusa": medusa_row,
    "blockwise": medusa_row, "eagle3.1": eagle_row, "dflash, window": dflash_row, "diffusion": diffusion_row,
    "dspark": dspark_row,
    "eagle3, published": eagle_row,
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
CHANGES: dict[str, dict[str, Any]] = {
    "eagle3.1": {"fc_norm": True, "norm_output": True, "window": 6},
    "dflash, window": {"window": 6},
    "eagle3, published": {"norm_before_fc": True, "norm_before_residual": True, "rope_scaling": LLAMA3},
}


FACTORS = (tuple(ROWS), (None, (2, 2, 1), "dynamic"), (False, True))


@pytest.mark.parametrize(("kind", "tree", "paged"), slow_unless(itertools.product(*FACTORS), pairwise(*FACTORS)))
@torch.inference_mode()
def test_drafts_are_what_the_head_says_afresh(kind: str, tree: Any, paged: bool) -> None:
    """Two requests at once; a source that knows beside the head, so that now two tokens are accepted and now none."""
    head = random_head("eagle3" if kind == "eagle3.1" else kind.split(",")[0], **CHANGES.get(kind, {}))
    prompts = [small_models.ids(5, seed=5), small_models.ids(30, seed=30)]
    plain = [[*prompt, *generate(served(TARGET), prompt)] for prompt in prompts]

    def knowing(view: RequestView, budget: int) -> Draft:
        n = len(view.tokens)
        return Draft.chain(plain[int(view.id)][n : n + min(2, budget)] if n % 2 else ())

    engine = served(
        TARGET, copy.deepcopy(head), kind="paged" if paged else "contiguous", max_batched_tokens=24,
        more={"knowing": Scripted(knowing)},
    )  # fmt: skip
    drafter: Any = engine.drafters[source_of_head(head)]
    propose, said = drafter.propose, list[tuple[list[int], Draft]]()

    def recording(requests: Any, budgets: Any) -> Any:
        drafts = propose(requests, budgets)
        said.extend((list(r.tokens), draft) for r, draft in zip(requests, drafts, strict=True) if draft)
        return drafts

    drafter.propose = recording
    options: dict[str, Any] = {
        "draft": f"knowing+{source_of_head(head)}",
        "tree": tree,
        "tree_nodes": 8,
        "spec_length": 3,
    }
    requests = [request(prompt, id=str(i), **options) for i, prompt in enumerate(prompts)]
    run(engine, *requests)
    assert all(r.stats.draft_error is None for r in requests)
    assert len({accepted for r in requests for _, accepted in r.stats.rounds}) > 1
    assert len(said) > 6
    for tokens, draft in said:
        for node in range(len(draft)):
            path = path_to(draft.parents, node)
            row = ROWS[kind](head, tokens, [draft.tokens[i] for i in path[:-1]])
            siblings = [i for i, parent in enumerate(draft.parents) if parent == draft.parents[node]]
            best = row.topk(len(siblings)).values[siblings.index(node)]
            assert float(row[draft.tokens[node]]) == pytest.approx(float(best), abs=1e-3)
