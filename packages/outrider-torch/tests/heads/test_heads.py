"""Heads: shapes, what their first weights mean, and folders that load or say why not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from outrider.drafters.heads.config import HEAD_KINDS, HeadConfig
from outrider.drafters.heads.masked import MASKED
from outrider.errors import IncompatibleDraftError, ModelFormatError, OutriderError
from outrider.models.frequencies import inverse_frequencies
from outrider_torch.heads import load_head, make_head, save_head
from outrider_torch.heads.checkpoint import write_tensors
from outrider_torch.heads.eagle import EagleLayer, apply_rotary, rotary
from outrider_torch.heads.medusa import MedusaHeads
from outrider_torch.heads.vocabulary import ScoringHead
from outrider_torch.kernels.rope import rotations
from tests import small_models
from tests.heads import heads

D = 48


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Plain attention of [L, heads, head_dim], written out."""
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], dim=1) for t in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(torch.ones(len(q), len(q)).triu(1).bool(), -torch.inf)
    return torch.einsum("hij,jhd->ihd", scores.softmax(-1), v)


def run(head: Any, kind: str, rows: int = 5) -> Tensor:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(rows, D, generator=generator)
    features = torch.randn(rows, D * max(1, len(getattr(head.config, "feature_layers", ()))), generator=generator)
    out: Tensor
    if kind == "pass":
        out = head()
    elif kind in MASKED:
        out = head(x[: head.block_size], torch.arange(head.block_size), causal)
    elif kind.startswith("eagle") or kind == "dflash":
        out = head.scorable(head(x, head.fuse(features), torch.arange(rows), causal))
    else:
        out = head(x)
    return out


NEW = {"fc_norm": True, "norm_output": True, "window": 4}  # EAGLE-3.1, with a window


@pytest.mark.parametrize(("kind", "own"), [*((kind, {}) for kind in HEAD_KINDS), ("eagle3", NEW)], ids=str)
def test_a_saved_head_computes_the_same(kind: str, own: dict[str, Any], tmp_path: Path) -> None:
    head, config = heads.random(kind, **own)
    if isinstance(head, ScoringHead) and head.draft_ids is not None:
        head.set_draft_ids(torch.arange(0, 64, 2))
    save_head(tmp_path, head.to(torch.bfloat16), config)
    again, config_again = load_head(tmp_path)
    assert config_again == config
    assert torch.equal(run(again, kind), run(head.float(), kind))
    if isinstance(again, ScoringHead) and again.draft_ids is not None:
        assert again.draft_ids.tolist() == list(range(0, 64, 2))


@pytest.mark.parametrize(("kind", "shape"), [("medusa", (3, 5, D)), ("blockwise", (3, 5, D)), ("pass", (3, D))])
def test_shapes(kind: str, shape: tuple[int, ...]) -> None:
    assert run(heads.random(kind)[0], kind).shape == shape


@pytest.mark.parametrize("kind", ["medusa", "blockwise"])
def test_fresh_heads_pass_the_hidden_state_through(kind: str) -> None:
    x = torch.randn(2, 5, D)
    assert torch.equal(make_head(heads.config(kind))(x), x.expand(3, 2, 5, D))


def test_medusa_is_the_papers_block() -> None:
    head, _ = heads.random("medusa")
    assert isinstance(head, MedusaHeads)
    x, block = torch.randn(D), head.blocks[1]
    z = block(x)
    torch.testing.assert_close(head(x)[1], x + z / (1 + (-z).exp()))


@pytest.mark.parametrize("kind", ["eagle", "eagle3"])
def test_a_row_of_eagle_depends_on_the_rows_it_sees(kind: str) -> None:
    head, _ = heads.random(kind)
    assert isinstance(head, EagleLayer)
    embeddings, features = torch.randn(2, 6, D)
    before = head(embeddings, features, torch.arange(6), causal)
    embeddings[4] += 1
    after = head(embeddings, features, torch.arange(6), causal)
    assert torch.equal(before[:4], after[:4])
    assert not torch.allclose(before[5], after[5])


@torch.no_grad()
def test_eagle31_norms_what_is_fused_and_what_is_fed_on() -> None:
    """Whatever the size of a tapped layer, and whatever the size of the output before."""
    head, _ = heads.random("eagle3", **NEW)
    assert isinstance(head, EagleLayer)
    features = torch.randn(5, 2 * D)
    scaled = torch.cat([features[:, :D] * 50, features[:, D:]], dim=1)
    torch.testing.assert_close(head.fuse(features), head.fuse(scaled), atol=1e-4, rtol=1e-4)
    out = head(torch.randn(5, D), head.fuse(features), torch.arange(5), causal)
    torch.testing.assert_close(out.square().mean(-1), torch.ones(5), atol=1e-3, rtol=0)  # norms weigh 1 here
    assert torch.equal(head.scorable(out), out)


def test_rotary_positions_are_the_targets() -> None:
    x = torch.randn(7, 2, 8)
    cos, sin = rotary(torch.arange(7), heads.config("eagle"))
    config = small_models.config()
    by = rotations(inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling), 7)
    pairs = torch.view_as_complex(x.unflatten(-1, (2, 4)).transpose(-1, -2).contiguous()) * by
    expected = torch.view_as_real(pairs).transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(apply_rotary(x, cos, sin), expected)


def test_a_head_of_another_target_is_refused_by_name() -> None:
    config = heads.config("medusa")
    config.check_target(heads.target_of(small_models.config()))
    with pytest.raises(IncompatibleDraftError, match=r"tiny.*another"):
        config.check_target(heads.other_target(config))
    with pytest.raises(IncompatibleDraftError, match="hidden size"):
        config.check_target(heads.target_of(small_models.config(), seed=1))


TARGET = heads.config("eagle3").to_json()["target"]


def _break(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kind": "hydra"}, "hydra"),
        ({"hidden_size": 64}, "hidden_size=64"),
        ({"draft_vocab_size": 16}, "d2t has shape"),
        ({"draft_vocab_size": 640}, "draft_vocab_size=640"),
        ({"feature_layers": [1, 9]}, "2 layers"),
        ({"num_heads": 0}, "num_heads=0"),
        ({"intermediate_size": 10**9}, "shape"),
        ({"format": 2}, "format=2"),
        ({"colour": "red"}, "colour"),
        ({"target": 3}, "configuration"),
        ({"target": {**TARGET, "hidden_size": [[{"a": 1}] * 40]}}, r"hidden_size=\[\["),
        ({"target": {**TARGET, "digest": 3}}, "digest=3"),
        ({"rope_theta": "x"}, "rope_theta='x'"),
        ({"rms_norm_eps": -1.0}, r"rms_norm_eps=-1\.0"),
        ({"heads": 10**6}, "heads=1000000"),
        ({"acceptance": [[2.0]]}, "no probabilities"),
        ({"own_lm_head": 1}, "own_lm_head"),
        ({"fc_norm": "yes"}, "fc_norm='yes'"),
        ({"fc_norm": True}, r"fc_norm\.0\.weight is missing"),
        ({"window": -1}, "window=-1"),
        ({"rope_scaling": {"rope_type": "llama3"}}, "rope_scaling"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 0.0}}, "rope_scaling"),
        ({"rope_scaling": 3}, "rope_scaling"),
        ({"norm_before_fc": True, "fc_norm": True}, "norm_before_fc"),
        ({"calibration": [[1.0, 0.0, -1.0, 0.0]]}, "slopes are above 0"),
        ({"calibration": [[1.0, 0.0]]}, "configuration"),
    ],
)
def test_a_wrong_configuration_is_refused_by_name(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    save_head(tmp_path, *heads.random("eagle3"))
    _break(tmp_path, **changes)
    with pytest.raises(ModelFormatError, match=says):
        load_head(tmp_path)


def test_fields_that_a_kind_does_not_need_are_checked_too(tmp_path: Path) -> None:
    save_head(tmp_path, *heads.random("medusa"))
    _break(tmp_path, max_seq_len="long")
    with pytest.raises(ModelFormatError, match="max_seq_len='long'"):
        load_head(tmp_path)


def test_names_in_messages_are_short() -> None:
    own = heads.target_of(small_models.config())
    assert len(replace(own, name="n" * 9000, family="f" * 9000, digest="d" * 9000).facts()) < 300


def test_wrong_tensors_are_refused_by_name(tmp_path: Path) -> None:
    head, config = heads.random("eagle3")
    good = head.state_dict()
    wrong = {
        "norm.weight is missing": {k: v for k, v in good.items() if k != "norm.weight"},
        "token 64": good | {"d2t": torch.arange(33, 65)},
        "ascending": good | {"d2t": torch.zeros(32, dtype=torch.int64)},
        "stranger": good | {"stranger": torch.zeros(1)},
        "not numbers": good | {"fc.weight": torch.full_like(good["fc.weight"], torch.nan)},
        "dtype": good | {"d2t": torch.zeros(32)},
    }
    for says, tensors in wrong.items():
        save_head(tmp_path, head, config)
        write_tensors(tmp_path / "model.safetensors", tensors)
        with pytest.raises(ModelFormatError, match=says):
            load_head(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(OutriderError, match=r"model\.safetensors"):
        load_head(tmp_path)


def test_configurations_check_themselves() -> None:
    with pytest.raises(ModelFormatError, match="heads=0"):
        heads.config("medusa", heads=0)
    with pytest.raises(ModelFormatError, match="feature_layers"):
        heads.config("medusa", feature_layers=(1,))
    with pytest.raises(ModelFormatError, match="fc_norm=True: only eagle3 and dflash"):
        heads.config("eagle", fc_norm=True)
    with pytest.raises(ModelFormatError, match="window=8: only eagle and"):
        heads.config("medusa", window=8)
    with pytest.raises(ModelFormatError, match="num_layers=2"):
        heads.config("eagle3", num_layers=2)
    with pytest.raises(ModelFormatError, match="selector_rank=4096"):
        heads.config("dflash", selector_rank=4096)
    with pytest.raises(ModelFormatError, match="num_layers=0"):
        heads.config("dflash", num_layers=0)
    assert HeadConfig.from_json(json.loads(json.dumps(heads.config("eagle3").to_json()))) == heads.config("eagle3")
