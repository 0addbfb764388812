"""Adapters that are damaged, hostile or not understood: each is refused in one short line, before it costs anything."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import LLM, LoRARequest
from outrider.adapters import Adapters
from outrider.errors import ModelFormatError
from outrider.weights.adapters import AdapterOptions
from tests.model_folders import model_folder
from tests.test_adapters import adapter


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    model_folder(folder / "base")
    return folder


@pytest.fixture(scope="module")
def llm(home: Path) -> Iterator[LLM]:
    with LLM(str(home / "base"), dtype="float32", enable_lora=True) as own:
        yield own


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"use_dora": True}, "use_dora"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"bias": "all"}, "bias"),
        ({"peft_type": "IA3"}, "IA3"),
        ({"something_new": 3}, "something_new"),
        ({"r": 5}, "rank is 5"),
        ({"r": 0}, "r=0"),
        ({"r": True}, "r=True"),
        ({"r": 4.0}, "r=4.0"),
        ({"lora_alpha": None}, "lora_alpha=None"),
        ({"lora_alpha": "8"}, "lora_alpha='8'"),
        ({"lora_alpha": [8]}, "lora_alpha="),
        ({"lora_alpha": True}, "lora_alpha=True"),
        ({"lora_alpha": 10**400}, "lora_alpha=1000"),
        ({"lora_alpha": float("nan")}, "lora_alpha=nan"),
        ({"use_rslora": "yes"}, "use_rslora='yes'"),
        ({"rank_pattern": ["q_proj"]}, "rank_pattern="),
        ({"rank_pattern": "q_proj"}, "rank_pattern='q_proj'"),
        ({"rank_pattern": {"q_proj": 1025}}, "rank_pattern=1025"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern=0"),
        ({"rank_pattern": {"q_proj": "4"}}, "rank_pattern='4'"),
        ({"rank_pattern": {"(.*)*(.*)*(.*)*x": 4}}, "regular expressions"),
        ({"rank_pattern": {"(": 4}}, "regular expressions"),
        ({"rank_pattern": {r"layers\.\d+\.q_proj": 4}}, "regular expressions"),
        ({"rank_pattern": {"": 4}}, "regular expressions"),
        ({"rank_pattern": {f"a{i}": 4 for i in range(3000)}}, "at most 2048"),
        ({"alpha_pattern": {"(a+)+$": 4}}, "regular expressions"),
        ({"alpha_pattern": {"q_proj": None}}, "alpha_pattern=None"),
        ({"alpha_pattern": 3}, "alpha_pattern=3"),
        ({"x" * 5000: 1}, "not supported"),
        ({"modules_to_save": ["y" * 5000] * 50}, "modules_to_save"),
    ],
)
def test_what_is_not_understood_is_refused(
    llm: LLM, home: Path, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    adapter(tmp_path / "x", home / "base", seed=3, **changes)
    with pytest.raises(ModelFormatError, match=message) as refused:
        llm.adapters.load({"x": str(tmp_path / "x")})
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("pattern", "right"),
    [
        ("q_proj", True),
        ("self_attn.q_proj", True),
        (r"self_attn\.q_proj", True),
        ("model.layers.1.self_attn.q_proj", True),
        ("^model.layers.1.self_attn.q_proj$", True),
        (r"^model\.layers\.1\.self_attn\.q_proj", True),
        ("v_proj|q_proj", True),
        ("q.proj", True),  # a dot is any letter, as PEFT's regular expressions have it
        (r"q\.proj", False),
        ("proj", False),
        ("^q_proj", False),
        ("1", False),
        (".q_proj", False),
        ("model.layers.11.self_attn.q_proj", False),
        ("base_model.model.model.layers.1.self_attn.q_proj", False),
    ],
)
def test_patterns_mean_what_they_do_for_peft(pattern: str, right: bool) -> None:
    module = "model.layers.1.self_attn.q_proj"
    assert right == bool(re.match(rf"(.*\.)?({pattern})$", module))  # PEFT's own rule
    options = AdapterOptions("x", {"peft_type": "LORA", "r": 2, "lora_alpha": 6, "rank_pattern": {pattern: 3}})
    assert options.rank(module) == (3 if right else 2)
    assert options.scale(module) == (2 if right else 3)


def test_an_adapter_that_is_loaded_is_found_while_another_loads(
    llm: LLM, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def load(*_: object) -> object:
        begun.set()
        assert ended.wait(60)
        return None

    monkeypatch.setattr("outrider.weights.adapters.load_adapter", load)
    adapters = Adapters(llm.adapters._model, enabled=True)
    adapters._found["a"] = "", None  # type: ignore[assignment]
    loader = threading.Thread(target=adapters.find, args=(LoRARequest("slow", lora_path="x"),))
    loader.start()
    assert begun.wait(60)
    finder = threading.Thread(target=adapters.find, args=(LoRARequest("a"),))
    finder.start()
    finder.join(10)
    stuck = finder.is_alive()
    ended.set()
    loader.join()
    assert not stuck


def test_tensors_of_other_layers_or_shapes_are_refused(llm: LLM, home: Path, tmp_path: Path) -> None:
    adapter(tmp_path / "x", home / "base", seed=3)
    path = tmp_path / "x" / "adapter_model.safetensors"
    whole = load_file(path)
    first = next(iter(whole))
    for broken in (
        whole | {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 8)},
        {name.replace("layers.0.", "layers.99."): tensor for name, tensor in whole.items()},
        whole | {first.replace("layers.0.", "layers.00."): whole[first].clone()},  # a layer that is there twice
        whole | {first.replace("layers.0.", f"layers.{'9' * 5000}."): whole[first].clone()},
        whole | {first.replace(".mlp.", ".self_attn."): whole[first].clone()},  # the same layer by another name
        {name: tensor for name, tensor in whole.items() if name != first},
        whole | {first: torch.zeros(4, 3)},
        whole | {first: whole[first] * torch.nan},
    ):
        save_file({name: tensor.contiguous() for name, tensor in broken.items()}, path)
        with pytest.raises(ModelFormatError):
            llm.adapters.load({"x": str(tmp_path / "x")})
