"""A trainer with the operator's key replaces the weights that are served, and nobody else does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider import LLM
from tests.server.conftest import load
from tests.server.live import Live

UPDATE = "/update_weights_from_disk"
ASKED = {"prompt": "hello world", "max_tokens": 8, "temperature": 0, "seed": 1, "ignore_eos": True, "logprobs": 1}


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


@pytest.fixture
def llm(folder: Path) -> Iterator[LLM]:
    with load(folder) as made:
        yield made


@pytest.fixture
def trained(folder: Path, tmp_path: Path) -> Path:
    weights = load_file(folder / "model.safetensors")
    generator = torch.Generator().manual_seed(1)
    path = tmp_path / "trained.safetensors"
    save_file(
        {k: (w.float() + 0.1 * torch.randn(w.shape, generator=generator)).to(w.dtype) for k, w in weights.items()}, path
    )
    return path


def test_weights_are_replaced_with_the_operator_s_key(
    llm: LLM, folder: Path, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_WEIGHTS_KEY", "sk-trainer")
    record = tmp_path / "record.jsonl"
    with Live(llm, api_keys=("sk-one",), record=str(record)) as server:
        before = server.post("/v1/completions", ASKED, headers=bearer("sk-one"))
        for key in ("sk-one", "sk-traine", "sk-trainer2"):
            refused = server.client.post(UPDATE, json={"model_path": str(trained)}, headers=bearer(key))
            assert refused.status_code == 401
        damaged = server.client.post(UPDATE, json={"model_path": str(tmp_path)}, headers=bearer("sk-trainer"))
        assert damaged.status_code == 400
        assert damaged.json()["error"]["param"] == "model_path"
        same = server.post("/v1/completions", ASKED, headers=bearer("sk-one"))
        assert same["choices"] == before["choices"]
        assert same["system_fingerprint"] == before["system_fingerprint"]
        told = server.post(UPDATE, {"model_path": str(trained)}, headers=bearer("sk-trainer"))
        after = server.post("/v1/completions", ASKED, headers=bearer("sk-one"))
        assert after["choices"] != before["choices"]
        assert before["system_fingerprint"] != after["system_fingerprint"] == told["system_fingerprint"]
        assert server.client.post("/v1/completions", json=ASKED, headers=bearer("sk-trainer")).status_code == 401
    lines = [json.loads(line) for line in record.read_text().splitlines()]
    digests = [line["model_digest"] for line in lines]
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.slow
def test_without_the_operator_s_key_there_is_no_such_route(llm: LLM, trained: Path) -> None:
    with Live(llm) as server:
        assert server.client.post(UPDATE, json={"model_path": str(trained)}).status_code == 404
