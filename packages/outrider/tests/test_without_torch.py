"""Where the native library computes, torch is not needed: neither to start nor to decode."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from outrider.config import ModelOptions
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint, target_fingerprint
from outrider.native.compile import checksum_path
from outrider.native.library import library, loaded
from outrider.weights.loader import load_model
from outrider_torch.heads import make_head, save_head
from tests.model_folders import model_folder
from tests.weights.gguf_models import write_case

needs_native = pytest.mark.skipif(library() is None, reason="no native library")

ALONE = """
import importlib.metadata, sys
for name in ("torch", "transformers", "scipy", "fastapi", "uvicorn", "matplotlib", "gguf.quants"):
    sys.modules[name] = None  # importing it is an error
for name in ("server", "torch", "transformers", "drafters", "train", "lab", "multimodal", "fleet"):
    sys.modules["outrider_" + name] = None
importlib.metadata.entry_points = lambda **chosen: ()
"""
"""The core as it is where nothing else is installed."""

SCRIPT = (
    ALONE
    + """
import json
from outrider import LLM, SamplingParams, SpeculationParams
llm = LLM(sys.argv[1], draft_model=sys.argv[1], draft="eagle,model", **json.loads(sys.argv[2]))
found = []
for draft in ("none", "suffix", "lookup", "ngram", "suffix,model", "eagle", "dflash", "model"):
    for verifier in ("matching", "sequoia"):
        for length in (3, "auto"):
            params = SamplingParams(max_tokens=9, temperature=0.8, seed=1, logprobs=2)
            how = SpeculationParams(draft=draft, verifier=verifier, spec_length=length)
            out = llm.generate("hello world hello", params, speculation=how)
            drafted = out.stats.num_draft_tokens
            found.append([draft, verifier, out.token_ids, out.stats.draft_error, drafted if length == 3 else None])
print(json.dumps(found))
"""
)

LAYER = {"num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "intermediate_size": 16}
KINDS: dict[str, dict[str, Any]] = {
    "eagle3": LAYER | {"feature_layers": (1, 2), "draft_vocab_size": 30},
    "dflash": LAYER | {"heads": 3, "num_layers": 2, "selector_rank": 4, "feature_layers": (2,), "draft_vocab_size": 30},
}


def head(path: Path, kind: str, target: TargetFingerprint) -> str:
    config = HeadConfig(
        kind=kind, target=target, hidden_size=target.hidden_size, vocab_size=target.vocab_size, **KINDS[kind]
    )
    save_head(path, make_head(config), config)
    return str(path)


def run_alone(script: str, *arguments: str, given: str = "", cache: Path | None = None) -> str:
    environment = os.environ | ({} if cache is None else {"OUTRIDER_CACHE": str(cache)})
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True, text=True, check=False, input=given, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_native
@pytest.mark.parametrize("options", [{}, {"dtype": "q8_0", "kv_cache": "paged"}], ids=["as stored", "q8_0, paged"])
def test_a_native_model_and_its_heads_run_where_the_core_is_alone(options: dict[str, Any], tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "target")
    target = target_fingerprint(load_model(folder, ModelOptions(dtype=options.get("dtype", "auto"))))
    heads = [head(tmp_path / kind, kind, target) for kind in KINDS]
    found = json.loads(run_alone(SCRIPT, str(folder), json.dumps(options | {"heads": heads})))
    assert found
    assert all(error is None for _, _, _, error, _ in found), found
    matched = [tokens for _, verifier, tokens, _, _ in found if verifier == "matching"]
    assert all(tokens == matched[0] for tokens in matched)
    assert {draft for draft, *_, drafted in found if drafted} >= {"eagle", "dflash", "model"}


COMMAND = ALONE + "from outrider.cli.main import main\nsys.argv[0] = 'outrider'\nmain()\n"


def _copy_library(folder: Path) -> None:
    """Compiling it would take most of the first start."""
    found = loaded()
    assert found is not None
    folder.mkdir(parents=True)
    for path in (found.path, checksum_path(found.path)):
        if path.exists():
            shutil.copy(path, folder)


@needs_native
def test_the_first_start_of_a_gguf_file_and_a_chat_need_the_core_alone(tmp_path: Path) -> None:
    write_case(tmp_path / "m.gguf", "llama")
    _copy_library(tmp_path / "cache" / "native")
    asked = ("generate", "-m", str(tmp_path / "m.gguf"), "hello", "--raw", "-n", "4", "--ignore-eos", "--json")
    first = json.loads(run_alone(COMMAND, *asked, cache=tmp_path / "cache"))
    again = json.loads(run_alone(COMMAND, *asked, cache=tmp_path / "cache"))
    assert first["token_ids"] == again["token_ids"]
    assert len(first["token_ids"]) == 4
    folder = model_folder(tmp_path / "target")
    said = run_alone(COMMAND, "chat", "-m", str(folder), "-n", "5", given="hello\n", cache=tmp_path / "cache")
    assert said.strip()


NAMED = (
    ALONE
    + """
from outrider import LLM
from outrider.errors import MissingExtensionError
for options in json.loads(sys.argv[2]):
    try:
        LLM(sys.argv[1], **options)
    except MissingExtensionError as error:
        print(error)
"""
)


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "target")
    asked = [{"implementation": "torch"}, {"device": "cuda"}, {"implementation": "transformers"}]
    said = run_alone("import json" + NAMED, str(folder), json.dumps(asked)).splitlines()
    extras = ["torch", "torch", "transformers"]
    assert [line.rpartition("pip install ")[2] for line in said] == [f"'outrider[{extra}]'" for extra in extras]


THREADS = """
import sys
from outrider import LLM
assert "torch" not in sys.modules
llm = LLM(sys.argv[1], threads=1, implementation=sys.argv[2])
import torch
print(llm.model.implementation, torch.get_num_threads())
"""


@pytest.mark.parametrize("implementation", ["torch", pytest.param("transformers", marks=pytest.mark.slow)])
def test_threads_that_were_asked_for_hold_where_torch_comes_later(implementation: str, tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "target"))
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    done = subprocess.run(
        [sys.executable, "-c", THREADS, folder, implementation],
        capture_output=True, text=True, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(implementation)
    assert done.stdout.split()[-1] == "1"
