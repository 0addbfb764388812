"""GGUF files of every family: the model is that of the safetensors files, by the names of the ``gguf`` package."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from outrider.verify.arrays import bfloat16
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.families import GGUF_FAMILIES
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hf_config.config import parse_config, to_hf_config
from outrider_torch.models.stored import torch_tensors
from tests.weights.gguf_models import CASES, arch_of, raw_config, tensors_of, write_case


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_model_of_the_safetensors_files(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(raw_config(name)))
    save_file(tensors_of(name), tmp_path / "model.safetensors")
    write_case(tmp_path / "m.gguf", name)
    ours, theirs = open_gguf(tmp_path / "m.gguf"), open_checkpoint(tmp_path)
    assert ours.config == theirs.config
    assert set(torch_tensors(ours)) == set(torch_tensors(theirs))
    for tensor in torch_tensors(theirs):
        assert torch.equal(torch_tensors(ours)[tensor].bfloat16(), torch_tensors(theirs)[tensor].bfloat16()), tensor
        stored = ours.stored[tensor]
        assert np.array_equal(bfloat16(stored.numbers()), bfloat16(theirs.stored[tensor].numbers())), tensor
    assert parse_config(to_hf_config(ours.config)) == ours.config  # what is written beside the file


def test_every_architecture_has_a_case() -> None:
    assert GGUF_FAMILIES.keys() == set(map(arch_of, CASES))
