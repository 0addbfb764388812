"""The library says how many distinct experts a pass read, and how many of them neighbours share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from outrider.cache import CacheSpec
from outrider.config import SamplingParams
from outrider.engine.draft_length.policy import DraftLength
from outrider.engine.request import Request
from outrider.models.base import LoadedModel
from outrider.models.batch import ForwardBatch, Span
from outrider.models.config import Experts
from outrider.models.experts import ExpertReads
from outrider.models.factory import make_model
from outrider.verify.draft import Draft
from tests import small_models
from tests.small_engines import engine, request, run

COUNT, USED, LAYERS, LONGEST = 16, 3, 2, 128


def small(**more: object) -> tuple[LoadedModel, np.ndarray]:
    """A model whose layers add nothing to the residual stream, and by layer and token the experts it chooses."""
    experts = Experts(count=COUNT, used=USED, size=32, normalised=True, **more)  # type: ignore[arg-type]
    c = small_models.config(experts=experts, intermediate_size=32, num_layers=LAYERS, max_seq_len=LONGEST)
    weights = small_models.tensors(c)
    for name, w in weights.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            w.zero_()
    x = weights["model.embed_tokens.weight"]
    x = x / (x.square().mean(1, keepdim=True) + c.rms_norm_eps).sqrt()
    chosen = [
        (x * weights[f"model.layers.{i}.post_attention_layernorm.weight"])
        @ weights[f"model.layers.{i}.mlp.gate.weight"].T
        for i in range(LAYERS)
    ]
    best = torch.stack([numbers.topk(USED).indices for numbers in chosen]).numpy()
    return make_model(c, weights, dtype="float32"), best


def reads(model: LoadedModel, tokens: Sequence[int]) -> ExpertReads | None:
    cache = model.new_cache(CacheSpec(max_seq_len=LONGEST))
    slot, rows = cache.allocate(), len(tokens)
    cache.extend(slot, rows)
    return model.forward(ForwardBatch(tokens, range(rows), (Span(slot, 0, rows),), None), cache).experts


def distinct(chosen: np.ndarray, tokens: Sequence[int]) -> int:
    return sum(len({*layer[list(tokens)].ravel().tolist()}) for layer in chosen)


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 32, 71])
@pytest.mark.parametrize("shared", [0, 32])
def test_experts_of_a_pass_and_of_neighbours_are_counted_once_each(rows: int, shared: int) -> None:
    model, chosen = small(shared_size=shared)
    tokens = small_models.ids(rows)
    found = reads(model, tokens)
    assert found is not None
    assert found.count == distinct(chosen, tokens)
    assert list(found.by_rows) == [n for n in (1, 2, 4, 8, 16, 32) if n <= rows]
    for n, mean in found.by_rows.items():
        windows = [tokens[i : i + n] for i in range(0, rows - n + 1, n)]
        assert mean == pytest.approx(np.mean([distinct(chosen, own) for own in windows]))


def test_equal_tokens_read_one_row_s_experts() -> None:
    model, _ = small()
    found = reads(model, [5] * 8)
    assert found is not None
    assert found.count == LAYERS * USED


def test_a_model_without_experts_says_nothing() -> None:
    assert reads(small_models.llama(), [1, 2, 3]) is None


class Heard(DraftLength):
    """What the engine says of experts."""

    def __init__(self) -> None:
        self.prompts: list[ExpertReads] = []
        self.passes: list[tuple[int, int]] = []  # rows, experts

    def observe_prompt(self, reads: ExpertReads) -> None:
        self.prompts.append(reads)

    def observe_forward_pass(
        self, requests: Sequence[Request], drafts: Sequence[Draft], seconds: float, experts: int = 0
    ) -> None:
        self.passes.append((sum(1 + len(draft) for draft in drafts), experts))


def heard(prompts: int) -> Heard:
    """Of an engine that serves so many requests at once."""
    heard, running = Heard(), engine(small()[0], slots=prompts)
    running.use(heard)
    params = SamplingParams(max_tokens=4)
    run(running, *(request(small_models.ids(40, seed=i), params, id=str(i)) for i in range(prompts)))
    return heard


def test_the_engine_tells_of_a_prompt_and_of_passes_that_decode() -> None:
    alone, two = heard(1), heard(2)
    (prompt,) = alone.prompts
    assert prompt == reads(small()[0], small_models.ids(40, seed=0))
    assert alone.passes == [(1, LAYERS * USED)] * 3
    assert two.prompts == []
    assert all(rows == 2 and LAYERS * USED <= experts <= 2 * LAYERS * USED for rows, experts in two.passes)
