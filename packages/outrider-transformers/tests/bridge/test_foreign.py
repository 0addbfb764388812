"""Folders of families that are not ours: they load through transformers, or are refused with one clear line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPT2Config, GPT2LMHeadModel

from outrider import LLM, SamplingParams
from outrider.config import ModelOptions
from outrider.errors import ConfigError, ModelFormatError, OutriderError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.hub.inventory import describe
from outrider.weights.loader import load_model
from tests.model_folders import model_folder
from tests.server.live import Live
from tests.tokenizer.vocabularies import byte_level

OPTIONS = ModelOptions(dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small GPT-2 as transformers writes it, with a tokenizer."""
    folder = tmp_path_factory.mktemp("gpt2")
    byte_level(folder)
    size = Tokenizer.from_folder(folder).vocab_size
    torch.manual_seed(0)
    dims: dict[str, Any] = {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128, "vocab_size": size}
    module = GPT2LMHeadModel(GPT2Config(**dims, bos_token_id=0, eos_token_id=1, initializer_range=0.3))
    module.save_pretrained(folder)
    return folder


def test_drafts_from_the_command_line_change_nothing(gpt2: Path) -> None:
    texts = ["abcabcabcabc", "hello hello hell"]
    found = []
    for options in (
        {"draft": "none"},
        {"draft": "ngram", "spec_length": 4},
        {"draft_model": str(gpt2), "spec_length": 4},
    ):
        chosen: dict[str, Any] = {"dtype": "float32", "draft_dtype": "float32", "threads": 1, **options}
        with LLM(str(gpt2), **chosen) as llm:
            assert llm.model.implementation == "transformers, packed"
            outputs = llm.generate(texts, SamplingParams(max_tokens=16, temperature=0.8, seed=4, ignore_eos=True))
            found.append([output.token_ids for output in outputs])
            accepted = sum(output.stats.num_accepted_draft_tokens for output in outputs)
            assert accepted > 0 or "draft_model" not in options
    assert found[0] == found[1] == found[2]


def test_the_server_says_what_computes_a_model(gpt2: Path) -> None:
    with Live(LLM(str(gpt2), dtype="float32", draft="none", threads=1)) as server:
        listed = server.client.get("/v1/models").json()["data"][0]
        assert listed["implementation"] == "transformers, packed"
        body = {"model": listed["id"], "prompt": "abc", "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        assert server.post("/v1/completions", body)["usage"]["completion_tokens"] == 4


def test_info_describes_it(gpt2: Path) -> None:
    facts = describe(str(gpt2))
    assert (facts["family"], facts["hidden_size"], facts["layers"], facts["context"]) == ("gpt2", 32, 2, 128)
    assert facts["parameters"] == sum(w.numel() for w in load_file(gpt2 / "model.safetensors").values())


def copy(source: Path, target: Path, **changes: Any) -> Path:
    """A copy of a folder whose ``config.json`` differs."""
    target.mkdir()
    for path in source.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text()) | changes
    (target / "config.json").write_text(json.dumps(config))
    return target


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "evil.Evil"}}, "brings its own code, which is never run"),
        ({"quantization_config": {"quant_method": "gptq"}}, "quantised checkpoints .* are not supported"),
        ({"suppress_tokens": [3]}, "suppress_tokens=.* is not applied here"),
        ({"n_layer": 10**9}, "n_layer=1000000000, but the files hold"),
        ({"n_head": 5}, "transformers cannot load it: "),
        ({"n_embd": 48, "n_head": 2}, "has no tensor .* of the right shape|transformers cannot load it"),
        ({"model_type": "gpt_nonsense"}, "model_type='gpt_nonsense' is not supported"),
    ],
)
def test_refused(gpt2: Path, tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFormatError, match=message):
        load_model(copy(gpt2, tmp_path / "m", **changes), OPTIONS)


def test_a_missing_tensor_is_no_random_number(gpt2: Path, tmp_path: Path) -> None:
    folder = copy(gpt2, tmp_path / "m")
    weights = load_file(folder / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelFormatError, match=r"has no tensor 'transformer\.h\.1\.mlp\.c_fc\.weight'"):
        load_model(folder, OPTIONS)


def test_pickles_and_adapters_are_refused(gpt2: Path, tmp_path: Path) -> None:
    folder = copy(gpt2, tmp_path / "m")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somewhere/else"}')
    with pytest.raises(ModelFormatError, match="merge the adapter"):
        load_model(folder, OPTIONS)
    (folder / "adapter_config.json").unlink()
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelFormatError):
        load_model(folder, ModelOptions(dtype="float32", device="cpu", implementation="transformers"))


def test_a_damaged_file_is_refused(gpt2: Path, tmp_path: Path) -> None:
    folder = copy(gpt2, tmp_path / "m")
    (folder / "model.safetensors").write_bytes((folder / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(ModelFormatError):
        load_model(folder, OPTIONS)


def test_options_of_the_native_library_are_refused(gpt2: Path) -> None:
    for options in (ModelOptions(dtype="q8_0", device="cpu"), ModelOptions(kv_cache_dtype="int8", device="cpu")):
        with pytest.raises(ConfigError, match="which transformers does not use"):
            load_model(gpt2, options)
    with pytest.raises(ConfigError, match="max_seq_len=999 is more than the 128 positions"):
        load_model(gpt2, ModelOptions(dtype="float32", device="cpu", max_seq_len=999))
    llm = LLM(str(gpt2), dtype="float32", draft="layer_skip", threads=1)
    with llm, pytest.raises(OutriderError, match=r"layer_skip.*use another source"):
        llm.generate("abc")


def test_a_family_of_ours_runs_through_either(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    names = {}
    for choice in ("auto", "torch", "transformers"):
        options = ModelOptions(dtype="float32", device="cpu", implementation=choice)
        names[choice] = load_model(folder, options).implementation
    assert names["torch"] == "torch"
    assert names["transformers"] == "transformers, packed"
    assert names["auto"] in ("native", "torch")
    with pytest.raises(ConfigError, match="implementation='vllm' is unknown: use one of auto, native"):
        ModelOptions(implementation="vllm")  # type: ignore[arg-type]
