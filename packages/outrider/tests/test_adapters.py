"""Low-rank adapters: what a model with merged weights says, each request its own, whatever drafts and company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider import LLM, LoRARequest, SamplingParams, SpeculationParams
from outrider.errors import ConfigError, InvalidRequestError, ModelNotFoundError
from tests.model_folders import model_folder
from tests.server.live import Live

PARTS = ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.gate_proj",
         "mlp.up_proj", "mlp.down_proj")  # fmt: skip
PROMPT = "hello world and hello world and hello"
PARAMS = SamplingParams(max_tokens=24, ignore_eos=True)


def weights(folder: Path) -> dict[str, Tensor]:
    return load_file(folder / "model.safetensors")


def adapter(
    folder: Path, base: Path, *, seed: int, rank: int = 4, parts: tuple[str, ...] = PARTS, **changes: Any
) -> dict[str, Tensor]:
    """Write an adapter of strong influence; its unscaled products B A, by the name of the weight."""
    generator = torch.Generator().manual_seed(seed)
    tensors: dict[str, Tensor] = {}
    products: dict[str, Tensor] = {}
    for name, weight in weights(base).items():
        module = name.removesuffix(".weight")
        if module.endswith(parts):
            outputs, inputs = weight.shape
            a = torch.randn(rank, inputs, generator=generator) / inputs**0.5
            b = torch.randn(outputs, rank, generator=generator) / rank**0.5
            tensors[f"base_model.model.{module}.lora_A.weight"] = a
            tensors[f"base_model.model.{module}.lora_B.weight"] = b
            products[name] = b @ a
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    modules = [part.split(".")[1] for part in parts]
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": modules, "bias": "none",
              "modules_to_save": None, "use_dora": False, "task_type": "CAUSAL_LM"}  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))
    return products


def merged(folder: Path, base: Path, products: dict[str, Tensor], scale: float) -> Path:
    model_folder(folder)
    own = weights(base)
    save_file({name: w.float() + scale * products.get(name, torch.zeros(())) for name, w in own.items()},
              folder / "model.safetensors")  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters")
    model_folder(folder / "base")
    return folder


@pytest.fixture(scope="module")
def llm(home: Path) -> LLM:
    adapter(home / "a", home / "base", seed=1)
    adapter(home / "b", home / "base", seed=2, rank=70, parts=PARTS[:3])
    return LLM(str(home / "base"), dtype="float32", lora_modules={"a": str(home / "a"), "b": str(home / "b")})


def tokens(llm: LLM, name: str | None, draft: str = "none", params: SamplingParams = PARAMS) -> list[int]:
    lora = None if name is None else LoRARequest(name)
    output = llm.generate([PROMPT], params, speculation=SpeculationParams(draft=draft), lora_request=lora)[0]
    return output.token_ids


@pytest.mark.parametrize(
    ("changes", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True, "lora_alpha": 3}, 1.5),
        ({"lora_alpha": 1, "alpha_pattern": {"layers.0.self_attn.q_proj": 4}}, 0.25),
    ],
)
def test_an_adapter_is_what_merged_weights_are(
    home: Path, tmp_path: Path, changes: dict[str, Any], scale: float
) -> None:
    products = adapter(tmp_path / "a", home / "base", seed=7, **changes)
    if "alpha_pattern" in changes:
        products["model.layers.0.self_attn.q_proj.weight"] *= 4
    whole = merged(tmp_path / "merged", home / "base", products, scale)
    params = SamplingParams(max_tokens=8, logprobs=5, ignore_eos=True)
    with LLM(str(home / "base"), dtype="float32", enable_lora=True) as own, LLM(str(whole), dtype="float32") as other:
        lora = LoRARequest("x", lora_path=str(tmp_path / "a"))
        mine = own.generate([PROMPT], params, lora_request=lora)[0]
        theirs = other.generate([PROMPT], params)[0]
        assert mine.token_ids == theirs.token_ids
        for one, two in zip(mine.steps, theirs.steps, strict=True):
            assert one.logprobs is not None
            assert one.logprobs == pytest.approx(two.logprobs, abs=1e-3)
        assert own.generate([PROMPT], params)[0].token_ids != mine.token_ids


def test_drafts_and_beams_change_nothing(llm: LLM) -> None:
    found = {name: tokens(llm, name) for name in (None, "a", "b")}
    assert len({tuple(each) for each in found.values()}) == 3
    for name, plain in found.items():
        assert tokens(llm, name, "suffix+recycling") == plain
        assert tokens(llm, name, "ngram") == plain
        beams = SamplingParams(beam_width=3, max_tokens=12)
        assert tokens(llm, name, "lookup", beams) == tokens(llm, name, "none", beams)


def test_beams_with_an_adapter_are_those_of_merged_weights(home: Path, tmp_path: Path) -> None:
    whole = merged(tmp_path / "merged", home / "base", adapter(tmp_path / "a", home / "base", seed=3), 2.0)
    params = SamplingParams(beam_width=4, n=4, max_tokens=10)
    with LLM(str(home / "base"), dtype="float32", enable_lora=True) as own, LLM(str(whole), dtype="float32") as other:
        lora = LoRARequest("x", lora_path=str(tmp_path / "a"))
        mine, theirs = own.generate([PROMPT], params, lora_request=lora), other.generate([PROMPT], params)
        assert [one.token_ids for one in mine] == [two.token_ids for two in theirs]
        assert [one.score for one in mine] == pytest.approx([two.score for two in theirs], abs=1e-4)
        assert own.generate([PROMPT], params)[0].token_ids != mine[0].token_ids


def test_a_batch_of_different_adapters_is_each_alone(llm: LLM) -> None:
    params = SamplingParams(max_tokens=20, logprobs=3, ignore_eos=True)
    names = [None, "a", "b", "a", None]

    def requests(name: str | None) -> Any:
        lora = None if name is None else LoRARequest(name)
        return llm.requests(PROMPT, params, SpeculationParams(draft="ngram", spec_length=4), lora_request=lora)

    alone = {name: llm._run(requests(name))[0] for name in dict.fromkeys(names)}
    together = llm._run([request for name in names for request in requests(name)])
    for name, one in zip(names, together, strict=True):
        assert one.token_ids == alone[name].token_ids
        assert [step.logprobs for step in one.steps] == [step.logprobs for step in alone[name].steps]  # to the last bit


@pytest.mark.usefixtures("small_blocks")
def test_caches_are_never_shared_between_adapters(llm: LLM, home: Path, tmp_path: Path) -> None:
    """Not even between those of one shape."""
    adapter(tmp_path / "alike", home / "base", seed=4)
    modules = {"a": str(home / "a"), "alike": str(tmp_path / "alike")}
    with LLM(str(home / "base"), kv_cache="paged", lora_modules=modules) as own:

        def cached(name: str | None) -> int:
            lora = None if name is None else LoRARequest(name)
            return own.generate([PROMPT], PARAMS, lora_request=lora)[0].stats.cached_prompt_tokens

        assert cached(None) == 0
        assert cached(None) > 0
        assert cached("a") == 0
        assert cached("a") > 0
        assert cached("alike") == 0
        assert cached(None) > 0


def test_errors_name_the_adapter(llm: LLM, home: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"'c' is not loaded.*enable_lora"):
        llm.generate(PROMPT, lora_request=LoRARequest("c", lora_path="x"))
    with pytest.raises(InvalidRequestError, match="was loaded from"):
        llm.generate(PROMPT, lora_request=LoRARequest("a", lora_path="elsewhere"))
    with pytest.raises(ModelNotFoundError, match="adapter_config"):
        llm.adapters.load({"d": str(home / "base")})
    with pytest.raises(ConfigError, match="NAME=FOLDER"):
        LLM(str(home / "base"), lora_modules=["a"])


def test_a_server_gives_each_model_name_its_adapter(llm: LLM) -> None:
    mine = {name: tokens(llm, name) for name in (None, "a", "b")}
    with Live(llm) as server:
        body = {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
        for name, expected in mine.items():
            answer = server.post("/v1/completions", body | ({} if name is None else {"model": name}))
            assert answer["choices"][0]["token_ids"] == expected
            assert name in (None, answer["model"])
        listed = [model["id"] for model in server.client.get("/v1/models").json()["data"]]
        assert listed[-2:] == ["a", "b"]
        assert server.client.post("/v1/completions", json=body | {"model": "c"}).status_code == 404
