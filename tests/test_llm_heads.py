"""``LLM`` with trained heads: named, shipped or missing, and what it refuses."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.config import ModelOptions
from outrider.drafters.heads import find
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint, target_fingerprint
from outrider.errors import ConfigError, IncompatibleDraftError, ModelFormatError, OutriderError
from outrider.native.library import library
from outrider.weights.hub import trained
from outrider.weights.loader import load_model
from outrider_torch.heads import make_head, save_head
from tests.model_folders import model_folder

PARAMS = SamplingParams(max_tokens=16, temperature=0.7, seed=5, ignore_eos=True)
LAYER = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "intermediate_size": 16}
KINDS: dict[str, dict[str, Any]] = {
    "medusa": {"heads": 2, "draft_vocab_size": 20},
    "blockwise": {"heads": 2},
    "pass": {"heads": 2},
    "eagle": LAYER,
    "dflash": LAYER | {"heads": 3, "num_layers": 2, "selector_rank": 4, "feature_layers": (2,), "draft_vocab_size": 30},
    "eagle3": LAYER | {"feature_layers": (1, 2), "draft_vocab_size": 30},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target")


@pytest.fixture(scope="module")
def target(folder: Path) -> TargetFingerprint:
    return target_fingerprint(load_model(folder, ModelOptions(dtype="float32")), "somebody's copy")


@pytest.fixture(scope="module")
def heads(target: TargetFingerprint, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A folder for a random head of each kind."""
    parent = tmp_path_factory.mktemp("heads")
    return {kind: save(parent / kind, kind, target) for kind in KINDS}


def save(path: Path, kind: str, target: TargetFingerprint) -> Path:
    torch.manual_seed(1)
    config = HeadConfig(
        kind=kind, target=target, hidden_size=target.hidden_size, vocab_size=target.vocab_size, **KINDS[kind]
    )
    save_head(path, make_head(config), config)
    return path


def test_every_kind_drafts_and_changes_nothing(folder: Path, heads: dict[str, Path]) -> None:
    named = [str(heads[kind]) for kind in ("eagle3", "dflash", "medusa", "blockwise", "pass")]
    llm = LLM(str(folder), heads=named, threads=1, spec_length=3)
    assert llm.speculation.draft == "eagle"  # the first there is
    plain = llm.generate("hello world", PARAMS, speculation=SpeculationParams(draft="none"))
    for draft in ("eagle", "dflash", "medusa", "blockwise", "pass", "eagle+suffix", "suffix,dflash"):
        output = llm.generate("hello world", PARAMS, speculation=SpeculationParams(draft=draft, spec_length=3))
        assert output.token_ids == plain.token_ids
        assert output.stats.draft_error is None
        assert output.stats.num_draft_tokens > 0


def test_memory_counts_heads(folder: Path, heads: dict[str, Path]) -> None:
    without = LLM(str(folder), draft="none", threads=1).memory_plan
    llm = LLM(str(folder), heads=str(heads["eagle"]), threads=1)
    plan = llm.memory_plan
    assert (without.draft_weights, without.draft_pool) == (0, 0)
    (cache,) = llm.drafters["eagle"].caches
    held = sum(rows[0].nbytes for rows in (*cache.pool.k, *cache.pool.v))
    assert plan.draft_pool == plan.kv_tokens * held
    parameters = sum(tensor.numel() for tensor in load_file(heads["eagle"] / "model.safetensors").values())
    a_weight = 4 if library() is None else 34 / 32
    assert plan.draft_weights == math.ceil(parameters * a_weight)


def listed(folder: Path) -> tuple[trained.TrainedDraft, ...]:
    """The heads of ``<model>/<kind>/`` folders as trained drafts."""
    return tuple(
        trained.TrainedDraft(path.parts[-3], path.parts[-2], json.loads(path.read_text())["target"], {})
        for path in sorted(folder.glob("*/*/config.json"))
    )


def test_shipped_heads_are_found_by_their_target(
    folder: Path, target: TargetFingerprint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trained, "CHECKOUT", tmp_path)
    monkeypatch.setattr(find, "trained_drafts", lambda: listed(tmp_path))
    monkeypatch.setattr(trained, "trained_drafts", lambda: listed(tmp_path))
    save(tmp_path / "another" / "medusa", "medusa", replace(target, digest="0" * 16))
    with pytest.raises(ConfigError, match="none is shipped"):
        LLM(str(folder), draft="pass", threads=1)
    named = r"draft='medusa': the head that is shipped for somebody's copy was trained for other weights"
    with pytest.raises(ConfigError, match=rf"{named} than dtype='q8_0' gives: use dtype='auto' \(as stored\) or"):
        LLM(str(folder), draft="medusa", threads=1, dtype="q8_0")
    with pytest.raises(ConfigError, match=f"{named}: name its folder"):
        LLM(str(folder), draft="medusa", threads=1)
    save(tmp_path / "this" / "pass", "pass", target)
    save(tmp_path / "this" / "blockwise", "blockwise", target)
    assert LLM(str(folder), draft="blockwise", threads=1, spec_length=3).speculation.draft == "blockwise"
    save(tmp_path / "this" / "eagle", "eagle", target)
    save(tmp_path / "this" / "eagle3", "eagle3", target)
    llm = LLM(str(folder), draft="eagle", threads=1, spec_length=3)
    assert llm.drafters["eagle"].feature_layers == (1, 2)  # type: ignore[attr-defined]  # eagle3 goes first
    assert LLM(str(folder), draft="pass,suffix", threads=1, spec_length=3).drafters["pass"]
    assert LLM(str(folder), threads=1, spec_length=3).speculation.draft == "suffix", "a shipped head has to be named"


def test_a_source_without_a_head(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"draft='medusa' needs a head trained for .*--heads.*outrider train medusa"):
        LLM(str(folder), draft="medusa", threads=1)
    llm = LLM(str(folder), draft="none", threads=1)
    with pytest.raises(ConfigError, match="'eagle' is not loaded"):
        llm.generate("hello", speculation=SpeculationParams(draft="eagle"))


def test_two_heads_for_one_source(folder: Path, heads: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match="has two for draft='eagle': name one"):
        LLM(str(folder), heads=[str(heads["eagle"]), str(heads["eagle3"])], threads=1)


def test_a_head_of_another_target(target: TargetFingerprint, heads: dict[str, Path], tmp_path: Path) -> None:
    other = model_folder(tmp_path / "other", num_hidden_layers=1)
    with pytest.raises(
        IncompatibleDraftError, match=r"another target \(somebody's copy, .*2 layers.*other, .*1 layers"
    ):
        LLM(str(other), heads=str(heads["eagle"]), threads=1)


def _wrong(what: str, source: Path, path: Path) -> None:
    """A copy of a head's folder with one thing wrong."""
    path.mkdir()
    config: dict[str, Any] = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    if what == "hidden size":
        config["hidden_size"] = 7
    elif what == "shape":
        tensors["fc.weight"] = tensors["fc.weight"][:-1].clone()
    elif what == "missing":
        del tensors["norm.weight"]
    elif what == "vocabulary":
        tensors["d2t"][-1] = config["vocab_size"]
    elif what == "layers":
        config["feature_layers"] = [1, 99]
    (path / "config.json").write_text(json.dumps(config))
    if what != "no weights":
        save_file(tensors, path / "model.safetensors")


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("hidden size", "hidden_size=7 is not the target's"),
        ("shape", r"fc.weight has shape \["),
        ("missing", "norm.weight is missing"),
        ("vocabulary", "d2t names token"),
        ("layers", "the target has 2 layers"),
        ("no weights", "has no model.safetensors"),
    ],
)
def test_damaged_heads_are_refused(
    folder: Path, heads: dict[str, Path], tmp_path: Path, what: str, message: str
) -> None:
    _wrong(what, heads["eagle3"], tmp_path / "head")
    with pytest.raises(ModelFormatError, match=message) as caught:
        LLM(str(folder), heads=str(tmp_path / "head"), threads=1)
    assert str(tmp_path / "head") in str(caught.value)


def test_a_folder_that_is_not_there(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OutriderError, match=r"config\.json"):
        LLM(str(folder), heads=str(tmp_path / "nowhere"), threads=1)
