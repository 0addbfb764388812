"""``outrider models``: what it prints for people and for scripts."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gguf import GGMLQuantizationType
from huggingface_hub import scan_cache_dir
from typer.testing import CliRunner

from outrider.cli.models import app
from outrider.config import ModelOptions
from outrider.engine.memory_plan import row_bytes
from outrider.engine.pass_times import measured_once
from outrider.errors import InvalidRequestError, ModelFormatError, ModelNotFoundError
from outrider.models.native_llama import NativeLlamaModel
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import load_model
from tests.tokenizer.vocabularies import sentencepiece
from tests.weights import hybrids
from tests.weights.files import write_folder, write_gguf
from tests.weights.stores import empty_home


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    empty_home(tmp_path, monkeypatch)
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("huggingface_hub.scan_cache_dir", partial(scan_cache_dir, tmp_path / "hub"))
    return tmp_path / "cache"


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def run_json(*arguments: str) -> Any:
    return json.loads(run(*arguments, "--json"))


def test_list_shows_built_in_and_converted_models(tmp_path: Path) -> None:
    names = [entry["name"] for entry in run_json("list")]
    assert names == ["smollm2-135m-instruct", "tinyllama-1.1b-chat", "stories15m"]
    write_gguf(tmp_path / "m.gguf")
    run("pull", str(tmp_path / "m.gguf"))
    entry = run_json("list")[-1]
    assert (entry["name"], entry["kind"], entry["pulled"]) == (str(tmp_path / "m.gguf"), "gguf", True)
    assert entry["parameters"] > 10_000
    table = run("list")
    assert "Apache-2.0" in table
    assert "MIT" in table
    assert "135 M" in table


def test_list_shows_hub_models_with_safetensors(tmp_path: Path) -> None:
    for name, file in (("good", "model.safetensors"), ("pickled", "pytorch_model.bin")):
        snapshot = tmp_path / "hub" / f"models--org--{name}" / "snapshots" / "abc"
        write_folder(snapshot)
        (snapshot / "model.safetensors").rename(snapshot / file)
    entry = run_json("list")[-1]
    assert (entry["name"], entry["kind"], entry["licence"]) == ("org/good", "hub", None)
    assert entry["folder"].endswith("abc")


def test_pull_tells_where(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    (pulled,) = run_json("pull", str(tmp_path / "m.gguf"))
    assert Path(pulled["folder"]).is_dir()
    assert pulled["folder"] in run("pull", str(tmp_path / "m.gguf"))


def test_info_of_a_converted_model(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    facts = run_json("info", str(tmp_path / "m.gguf"), "--verify")
    expected = {"family": "llama", "layers": 2, "hidden_size": 64, "heads": 4, "kv_heads": 2, "head_dim": 16}
    expected |= {"context": 128, "dtype": "F32", "vocabulary": 277, "eos_token_ids": [2], "chat_template": True}
    assert facts.items() >= expected.items()
    assert facts["sha256"] == hashlib.sha256((tmp_path / "m.gguf").read_bytes()).hexdigest()
    assert facts["verified"] == "every byte of 5 files"
    weights = Path(facts["folder"]) / "model.gguf"
    content = weights.read_bytes()
    weights.unlink()  # it is a link to the source
    weights.write_bytes(content[:-1] + b"\x7f")
    with pytest.raises(ModelFormatError, match="not what was written"):
        run("info", str(tmp_path / "m.gguf"), "--verify")


def test_info_of_a_folder(tmp_path: Path) -> None:
    write_folder(tmp_path / "m", "qwen3")
    sentencepiece(tmp_path / "m")
    text = run("info", str(tmp_path / "m"), "--verify")
    assert "family          qwen3" in text
    assert "chat template   no" in text
    assert "no manifest" in text


def test_info_of_a_built_in_model_does_not_pull_it(cache: Path) -> None:
    facts = run_json("info", "tinyllama-1.1b-chat")
    assert (facts["licence"], facts["pulled"], facts["download_bytes"]) == ("Apache-2.0", False, 322_591_712)
    assert not (cache / "models").exists()


def test_unknown_names_are_outrider_errors() -> None:
    with pytest.raises(ModelNotFoundError, match="did you mean stories15m"):
        run("info", "stories15")


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys, outrider.cli.models; "
        "print({'torch', 'transformers', 'tokenizers', 'huggingface_hub', 'gguf'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_removed_models_are_gone_and_files_of_the_user_stay(tmp_path: Path, cache: Path) -> None:
    gguf = tmp_path / "m.gguf"
    write_gguf(gguf)
    run("pull", str(gguf))
    (entry,) = [entry for entry in run_json("list") if entry["kind"] == "gguf"]
    assert f"1 in Outrider's cache, 0 MB: {cache}" in run("list")
    (gone,) = run_json("rm", str(gguf))
    assert gone["bytes"] >= entry["bytes"] > 0
    assert not Path(gone["folder"]).exists()
    assert gguf.exists()
    assert [entry["kind"] for entry in run_json("list")] == ["built-in"] * 3
    built_in = cache / "models" / "stories15m"
    built_in.mkdir(parents=True)
    (built_in / "config.json").write_text("{")  # damaged, and removed all the same
    assert "stories15m: 0 MB freed" in run("rm", "stories15m")
    assert not built_in.exists()


@pytest.mark.parametrize("ref", ["stories15m", "org/none", "nowhere.gguf", "nonsense"])
def test_what_no_cache_holds_cannot_be_removed(ref: str) -> None:
    with pytest.raises(ModelNotFoundError, match="no cache holds"):
        CliRunner().invoke(app, ["rm", ref], catch_exceptions=False)


def test_a_folder_of_the_user_is_not_removed(tmp_path: Path) -> None:
    write_folder(tmp_path / "mine")
    with pytest.raises(InvalidRequestError, match="a folder of your own"):
        CliRunner().invoke(app, ["rm", str(tmp_path / "mine")], catch_exceptions=False)
    assert (tmp_path / "mine" / "config.json").exists()


def test_a_hub_model_is_removed_from_the_hub_s_cache(tmp_path: Path) -> None:
    folder = tmp_path / "hub" / "models--org--good"
    snapshot = folder / "snapshots" / ("a" * 40)
    write_folder(snapshot)
    (folder / "refs").mkdir()
    (folder / "refs" / "main").write_text("a" * 40)
    assert "in the hub's cache" in run("list")
    run("rm", "org/good")
    assert not folder.exists()


def test_check_of_a_gguf_file_prepares_nothing_and_counts_what_a_load_takes(tmp_path: Path, cache: Path) -> None:
    weights = write_gguf(tmp_path / "m.gguf", kind=GGMLQuantizationType.Q8_0, hidden_size=64)
    facts = run_json("check", str(tmp_path / "m.gguf"))
    expected = {"format": "GGUF", "architecture": "llama", "runs": "native", "draft": "suffix", "heads": []}
    assert facts.items() >= (expected | {"chat_template": True, "context": 128, "why": None}).items()
    assert facts["parameters"] == sum(weight.numel() for weight in weights.values())
    assert not cache.exists()
    vectors = 4 * sum(weight.numel() for weight in weights.values() if weight.ndim == 1)
    loaded = load_model(resolve(str(tmp_path / "m.gguf")), ModelOptions(device="cpu"))
    assert facts["weight_bytes"] == loaded.weight_bytes - vectors == facts["bytes_read_per_token"]
    assert facts["cache_bytes_per_token"] == row_bytes(loaded)
    assert facts["bytes_with_whole_context"] == facts["weight_bytes"] + 128 * facts["cache_bytes_per_token"]
    seconds = facts["bytes_read_per_token"] / (1e9 * facts["read_gb_s"])
    assert facts["tokens_per_s_at_most"] == pytest.approx(1 / seconds, rel=1e-3)
    text = run("check", str(tmp_path / "m.gguf"))
    assert "runs           natively" in text
    assert "128 tokens need" in text


def test_check_tells_what_an_earlier_start_measured(tmp_path: Path, cache: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    assert "tokens_per_s" not in run_json("check", str(tmp_path / "m.gguf"))
    loaded = load_model(resolve(str(tmp_path / "m.gguf")), ModelOptions(device="cpu"))
    assert isinstance(loaded, NativeLlamaModel)
    times: dict[tuple[int, ...], float] = {(64, 1): 0.5, (64, 8): 0.75, (64, 4): 0.6, (512, 1): 0.8}
    measured_once(loaded, ((64, 1),), lambda _: 1.0, lambda: times)
    facts = run_json("check", str(tmp_path / "m.gguf"))
    assert facts["tokens_per_s"] == 2.0
    assert facts["measured_ms_by_rows"] == {"1": 500.0, "4": 600.0, "8": 750.0}
    assert facts["measured_threads"] == loaded.context.threads
    shown = run("check", str(tmp_path / "m.gguf"))
    assert "2.0 tokens/s without drafts" in shown
    assert "1.20 times as long for 4 rows, 1.50 times as long for 8 rows" in shown
    (place,) = (cache / "timings" / "models").iterdir()
    said = json.loads(place.read_text())
    for damage in ({"processor": "another"}, {"times": [[[64, 1], -1.0]]}, {"times": 5}, {"threads": None}):
        place.write_text(json.dumps(said | damage))
        assert "tokens_per_s" not in run_json("check", str(tmp_path / "m.gguf"))


def test_check_counts_the_experts_that_a_token_uses(tmp_path: Path) -> None:
    shape = {"head_dim": 16, "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
    write_folder(tmp_path / "m", "qwen3_moe", **shape)
    facts = run_json("check", str(tmp_path / "m"))
    assert (facts["format"], facts["architecture"], facts["types"]) == ("safetensors", "qwen3_moe", {"BF16": 1.0})
    experts = 8 * 2 * 3 * 64 * 96 * 2  # experts, layers, matrices, their size, bytes
    assert facts["weight_bytes"] - facts["bytes_read_per_token"] == experts * 6 // 8


def test_check_of_a_model_with_a_draft_head_and_states(tmp_path: Path) -> None:
    tensors = hybrids.converted("qwen35", hybrids.save(hybrids.build("qwen35"), tmp_path / "own"))
    hybrids.write_gguf(tmp_path / "m.gguf", "qwen35", tensors)
    facts = run_json("check", str(tmp_path / "m.gguf"))
    assert (facts["architecture"], facts["draft"]) == ("qwen35", "suffix,mtp")
    assert facts["state_bytes_per_sequence"] > 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"general.architecture": "rwkv6"}, "architecture 'rwkv6' is not supported"),
        ({"expert_count": 4}, "expert_count=4"),
    ],
)
def test_check_of_a_model_that_does_not_run_says_why(tmp_path: Path, change: dict[str, Any], why: str) -> None:
    write_gguf(tmp_path / "m.gguf", metadata=change)
    result = CliRunner().invoke(app, ["check", str(tmp_path / "m.gguf"), "--json"], catch_exceptions=False)
    facts = json.loads(result.stdout)
    assert (result.exit_code, facts["runs"], facts["format"]) == (1, None, "GGUF")
    assert why in facts["why"]
    shown = CliRunner().invoke(app, ["check", str(tmp_path / "m.gguf")], catch_exceptions=False)
    assert shown.exit_code == 1
    assert "runs           no: " in shown.stdout


def test_check_of_a_damaged_file_says_so(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    result = CliRunner().invoke(app, ["check", str(tmp_path / "m.gguf")], catch_exceptions=False)
    assert result.exit_code == 1
    assert "damaged" in result.stdout
    with pytest.raises(ModelNotFoundError, match="no such file"):
        run("check", str(tmp_path / "none.gguf"))
