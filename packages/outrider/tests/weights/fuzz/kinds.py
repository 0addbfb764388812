"""The things that are opened: sound files of each kind, which of them change and how, and what opens them."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from outrider import LLM, LoRARequest, SamplingParams
from outrider.drafters.datastore import collect
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint, fingerprint_rows
from outrider.weights.folder import open_checkpoint
from outrider_drafters.draft_table import count
from outrider_torch.heads import make_head
from outrider_torch.heads.checkpoint import save_head
from outrider_torch.models.stored import torch_tensors
from tests.heads import heads
from tests.model_folders import model_folder
from tests.test_adapters import adapter
from tests.weights import hybrids
from tests.weights.files import write_gguf
from tests.weights.fuzz.mutate_files import mutate_gguf, mutate_safetensors
from tests.weights.fuzz.mutate_json import mutate

HEADS = ("eagle", "eagle3", "dflash", "medusa", "blockwise", "pass")
NAMES = ("folder", "index", "gguf", "hybrid", *HEADS, "adapter", "datastore", "table")
_SOURCES = {"eagle3": "eagle"}

Change = Callable[[bytes, random.Random], bytes]


@dataclass(frozen=True)
class Kind:
    """One kind of thing to open: its files, which of them change and how, and how it is opened."""

    name: str
    folder: Path
    files: dict[str, Change]
    open: Callable[[Path], object]


def run(llm: LLM, lora: LoRARequest | None = None) -> None:
    with llm:
        output = llm.generate(["hello world"], SamplingParams(max_tokens=4), lora_request=lora)[0]
        if not isinstance(output.text, str):
            raise TypeError(f"{output.text!r} is no text")


def as_json(content: bytes, rng: random.Random) -> bytes:
    return mutate(json.loads(content), rng)


def kinds(place: Path) -> list[Kind]:
    """The sound files, made in ``place``."""
    folder, gguf, hybrid = place / "folder", place / "gguf", place / "hybrid"
    model_folder(folder)
    (folder / "generation_config.json").write_text(
        '{"eos_token_id": [1], "temperature": 0.6, "transformers_version": "5"}'
    )
    sharded = shutil.copytree(folder, place / "sharded")
    os.rename(sharded / "model.safetensors", sharded / "one.safetensors")
    (sharded / "model.safetensors.index.json").write_text('{"metadata": {}, "weight_map": {"a": "one.safetensors"}}')
    gguf.mkdir()
    write_gguf(gguf / "m.gguf", rope_divisors=torch.ones(8).numpy())
    hybrid.mkdir()
    recurrent = hybrids.save(hybrids.build("qwen35"), place / "recurrent")
    hybrids.write_gguf(hybrid / "m.gguf", "qwen35", hybrids.converted("qwen35", recurrent), kind="Q8_0")
    for kind in HEADS:
        save_head(place / kind, *_head(folder, kind))
    _write_drafts(place, folder)
    names = ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json")
    weights: dict[str, Change] = {"model.safetensors": mutate_safetensors}
    texts: dict[str, Change] = dict.fromkeys(names, as_json)
    return [
        Kind("folder", folder, texts | weights, lambda at: run(LLM(str(at), draft="none"))),
        Kind("index", sharded, {"model.safetensors.index.json": as_json}, lambda at: run(LLM(str(at), draft="none"))),
        Kind("gguf", gguf, {"m.gguf": mutate_gguf}, lambda at: run(LLM(str(at / "m.gguf"), draft="none"))),
        Kind("hybrid", hybrid, {"m.gguf": mutate_gguf}, lambda at: run(LLM(str(at / "m.gguf"), draft="mtp"))),
        *(
            Kind(kind, place / kind, weights | {"config.json": as_json}, partial(_run_head, folder, kind))
            for kind in HEADS
        ),
        Kind(
            "adapter",
            place / "adapter",
            {"adapter_config.json": as_json, "adapter_model.safetensors": mutate_safetensors},
            partial(_run_adapter, folder),
        ),
        Kind(
            "datastore",
            place / "datastore",
            {"d.safetensors": mutate_safetensors},
            lambda at: run(LLM(str(folder), datastore=str(at / "d.safetensors"), draft="suffix")),
        ),
        Kind(
            "table",
            place / "table",
            {"t.safetensors": mutate_safetensors},
            lambda at: run(LLM(str(folder), draft_table=str(at / "t.safetensors"), draft="bigram")),
        ),
    ]


def _head(folder: Path, kind: str) -> tuple[nn.Module, HeadConfig]:
    """A head with fresh weights for the model in ``folder``."""
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    rows = torch_tensors(checkpoint)["model.embed_tokens.weight"][fingerprint_rows(config.vocab_size)]
    target = TargetFingerprint.of(config, rows)
    made = replace(heads.config(kind), target=target, hidden_size=config.hidden_size, vocab_size=config.vocab_size)
    return make_head(made), made


def _write_drafts(place: Path, folder: Path) -> None:
    """An adapter with every option that is read, a datastore and a draft table, each in a folder of its own."""
    size = open_checkpoint(folder).config.vocab_size
    options: dict[str, Any] = {
        "use_rslora": True,
        "rank_pattern": {"q_proj": 4},
        "alpha_pattern": {"layers.0.mlp.up_proj": 2.5},
    }
    adapter(place / "adapter", folder, seed=1, **options)
    for name in ("datastore", "table"):
        (place / name).mkdir()
    collect([([1, 2, 3], [4, 5, 6, 4, 5, 7]), ([3], [4, 5, 6])], size).save(place / "datastore" / "d.safetensors")
    count([1, 2, 3, 1, 2, 4, 5], size).save(place / "table" / "t.safetensors")


def _run_adapter(folder: Path, at: Path) -> None:
    run(LLM(str(folder), enable_lora=True, draft="none"), LoRARequest("x", lora_path=str(at)))


def _run_head(folder: Path, kind: str, at: Path) -> None:
    run(LLM(str(folder), heads=str(at), draft=_SOURCES.get(kind, kind)))
