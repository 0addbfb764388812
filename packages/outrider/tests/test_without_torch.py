"""Where the native library computes, torch is not needed: neither to start nor to decode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from outrider.native.library import library
from tests.model_folders import model_folder

SCRIPT = """
import json, sys
for name in ("torch", "transformers", "scipy", "fastapi"):
    sys.modules[name] = None  # importing it is an error
from outrider import LLM, SamplingParams, SpeculationParams
llm = LLM(sys.argv[1], draft_model=sys.argv[1], **json.loads(sys.argv[2]))
found = []
for draft in ("none", "suffix", "lookup", "ngram", "recycling+suffix", "lookahead", "layer_skip", "model"):
    for verifier in ("matching", "sequoia"):
        params = SamplingParams(max_tokens=6, temperature=0.8, seed=1, logprobs=2)
        out = llm.generate("hello world hello", params, speculation=SpeculationParams(draft=draft, verifier=verifier))
        found.append([draft, verifier, out.token_ids, out.stats.draft_error])
print(json.dumps(found))
"""


@pytest.mark.skipif(library() is None, reason="no native library")
@pytest.mark.parametrize("options", [{}, {"dtype": "q8_0", "kv_cache": "paged"}], ids=["as stored", "q8_0, paged"])
def test_a_native_model_runs_where_there_is_no_torch(options: dict[str, str], tmp_path: Path) -> None:
    folder = str(model_folder(tmp_path / "target"))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, folder, json.dumps(options)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found
    assert all(error is None for *_, error in found), found
    matched = [tokens for _, verifier, tokens, _ in found if verifier == "matching"]
    assert all(tokens == matched[0] for tokens in matched)


THREADS = """
import sys
from outrider import LLM
assert "torch" not in sys.modules
llm = LLM(sys.argv[1], threads=1, implementation=sys.argv[2])
import torch
print(llm.model.implementation, torch.get_num_threads())
"""


@pytest.mark.parametrize("implementation", ["torch", "transformers"])
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
