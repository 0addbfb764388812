"""Blocks of MXFP4 whose scales lie apart, and transposed experts, are the numbers that GGUF's blocks are."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider_torch.models.stored import torch_tensors
from tests.weights.gpt_oss_files import write_all


def test_torch_reads_the_same_numbers(tmp_path: Path) -> None:
    write_all(tmp_path)
    floats, blocks = (torch_tensors(open_checkpoint(tmp_path / name)) for name in ("floats", "blocks"))
    whole = torch_tensors(open_gguf(tmp_path / "m.gguf"))
    assert floats
    for name in floats:
        assert torch.equal(floats[name].bfloat16(), blocks[name].bfloat16()), name
        assert torch.equal(floats[name].bfloat16(), whole[name].bfloat16()), name
