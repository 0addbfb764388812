"""Models that run through transformers' own code: its logits and tokens, drafts or not; wrong ways are noticed."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from outrider.cache import CacheSpec
from outrider.config import SamplingParams
from outrider.errors import ConfigError, ModelFormatError
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.arrays import Floats, host
from outrider_drafters.recycling import RecyclingDrafter
from outrider_transformers import BridgedModel, check, packed
from outrider_transformers.errors import NotBridgedError
from tests import bridge_checks, small_models
from tests.beams.reference import search
from tests.beams.test_transformers import requests as beam_requests
from tests.bridge.test_bridge_docs import table_rows
from tests.bridge_checks import TEXT, apart, examine, invariant, like_generate, with_drafts
from tests.bridge_members import bridge, build, like
from tests.small_engines import engine, run

FAST = {
    "gpt2": "packed",  # learned positions, layer norms, Conv1D
    "gpt_oss": "packed",  # sinks, windows, experts
    "deepseek_v3": "packed",  # keys longer than values
    "bloom": "text by text",  # ALiBi, in its own attention
    "lfm2": "text by text",  # convolutions and attention
    "mamba": "row by row",  # no attention at all
}


@cache
def model(name: str) -> BridgedModel:
    return bridge(build(name))


@pytest.mark.parametrize("name", FAST)
def test_logits_are_those_of_transformers(name: str) -> None:
    assert model(name).way == FAST[name]
    assert apart(model(name)) < 1e-5


@pytest.mark.parametrize("name", [name for name in FAST if name != "mamba"])
def test_drafts_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge_checks, "NEW", 6)
    same, accepted = with_drafts(model(name), like(model(name), build(name, share=0.1)))
    assert same
    assert accepted > 0


@pytest.mark.parametrize("name", ["gpt_oss", "lfm2"])
def test_tokens_are_those_of_generate(name: str) -> None:
    assert like_generate(model(name))


@pytest.mark.parametrize("name", ["bloom", "lfm2"])
def test_rows_are_the_same_in_any_company(name: str) -> None:
    assert invariant(model(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", [row[0] for row in table_rows()])
def test_every_row_of_the_table(name: str) -> None:
    found = examine(name)
    assert (found.exact, found.invariant) == (True, True)
    row = next(row for row in table_rows() if row[0] == name)
    assert row[1] == found.way
    assert row[3] == {True: "yes", False: "**no**"}[found.like_generate]


class Mixed(nn.Module):
    """A linear layer whose rows have something in common: what a kernel chosen by shape does, made visible."""

    def __init__(self, own: nn.Module) -> None:
        super().__init__()
        self.own = own

    def forward(self, x: Tensor) -> Tensor:
        return self.own(x) + 1e-6 * self.own(x).sum(-2, keepdim=True)  # type: ignore[no-any-return]


def test_rows_that_have_something_in_common_are_noticed() -> None:
    module = build("gpt2")
    module.transformer.h[1].mlp.c_fc = Mixed(module.transformer.h[1].mlp.c_fc)
    with pytest.raises(ModelFormatError, match="21 of 21 rows depend on the rest of the batch"):
        bridge(module, "packed")


def test_a_window_that_is_not_looked_through_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_visible", lambda function, device: lambda at, columns: columns <= at)
    with pytest.raises(ModelFormatError, match="logits differ from those of transformers by"):
        bridge(build("gpt_oss"), "packed")


def test_positions_of_the_wrong_text_are_noticed() -> None:
    module = build("bart")  # counts positions itself, from the tokens before
    with pytest.raises(ModelFormatError, match="packed: "):
        bridge(module, "packed")


def test_a_state_that_is_not_rolled_back_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_transformers.texts.copied", lambda state: state)
    target = model("lfm2")
    with pytest.raises(NotBridgedError, match=r"depend on the rest|differ"):
        check.check(target)


def test_states_far_back_are_found_again() -> None:
    """A cache that is cut further back than states are kept is filled again from its tokens."""
    target, text = model("lfm2"), (TEXT * 3)[:118]
    kv = target.new_cache(CacheSpec(max_seq_len=128))
    slot = kv.allocate()
    wanted = small_models.feed(target, kv, (slot, text))[0]
    kv.truncate_to(slot, 21)
    assert small_models.identical(small_models.feed(target, kv, (slot, text[21:40]))[0], wanted[21:40])


@pytest.mark.parametrize("name", ["gpt2", "bloom"])
def test_shared_prefixes(name: str) -> None:
    """Rows that another request left are read, and none of them is written."""
    target = model(name)
    kv = target.new_cache(CacheSpec(slots=2, max_seq_len=64, kind="paged", block_size=8))
    first = kv.allocate()
    wanted = small_models.feed(target, kv, (first, TEXT[:40]))[0]
    kv.publish_prefix(first, TEXT[:40])
    second = kv.allocate(TEXT[:40])
    held = kv.length(second)
    assert held > 0
    assert small_models.identical(small_models.feed(target, kv, (second, TEXT[held:40]))[0], wanted[held:])
    kv.check()


def test_llama_through_either_code() -> None:
    """The same folder by our torch code and by transformers' gives nearly the same logits."""
    module = build("llama")
    assert apart(bridge(module)) < 1e-5


def test_features_are_refused_and_hidden_states_are_not() -> None:
    target = model("gpt2")
    kv = target.new_cache(CacheSpec(max_seq_len=64))
    slot = kv.allocate()
    kv.extend(slot, 3)
    batch = ForwardBatch([1, 2, 3], [0, 1, 2], (Span(slot, 0, 3),), (2,))
    found = target.forward(replace(batch, features=(target.config.num_layers,)), kv)
    assert found.features is not None
    assert torch.equal(found.features[2], found.hidden[0])
    for more in ({"features": (1,)}, {"layers": 1}):
        wrong: dict[str, Any] = more
        with pytest.raises(ConfigError, match="gpt2 runs through transformers, which shows no layers"):
            target.forward(replace(batch, **wrong), kv)


def test_states_that_are_gone_are_found_again() -> None:
    """A row far behind the last one that was fed: as when passes are timed at a context that nobody has read."""
    target = model("lfm2")
    kv = target.new_cache(CacheSpec(max_seq_len=96))
    read = kv.allocate()
    wanted = small_models.feed(target, kv, (read, [*[0] * 80, 7]))[0][-1]
    kv.free(read)
    unread = kv.allocate()
    kv.extend(unread, 81)
    found = target.forward(ForwardBatch([7], [80], (Span(unread, 80, 1),), (0,)), kv).logits[0]
    assert np.array_equal(host(found), wanted)


@pytest.mark.parametrize("name", ["bloom", "lfm2"])
def test_beams_of_models_that_read_one_text_at_a_time(name: str) -> None:
    """A tree of beams as chains: their states move with the rows that are kept."""
    params = SamplingParams(beam_width=3, n=3, max_tokens=8)
    found = []
    for more in ({}, {"recycling": RecyclingDrafter(model(name).config.vocab_size)}):
        beams = beam_requests(list(TEXT), params, [], "recycling" if more else "none")
        run(engine(model(name), max_seq_len=96, more=more), *beams)
        found.append([(list(beam.output), beam.ranked) for beam in beams])
    assert found[0] == found[1]

    def row(output: tuple[int, ...]) -> Floats:
        ids = torch.tensor([[*TEXT, *output]])
        with model(name).network.attention("eager"), torch.inference_mode():
            logits: Tensor = (
                model(name).network.module(ids, attention_mask=torch.ones_like(ids), use_cache=False).logits
            )
        return host(logits[0, -1].float().log_softmax(-1))

    assert [output for output, _ in found[0]] == [list(best.output) for best in search(row, params, [])[:3]]
