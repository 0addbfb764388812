"""llama2.c files: same weights, same ids as Llama 2, and wrong sizes refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from outrider.errors import ModelFormatError
from outrider.weights.files.llama2c import open_llama2c, read_vocabulary
from outrider.weights.hf_config.config import parse_config
from outrider_torch.models.stored import torch_tensors
from tests.weights.files import SCORES, WORDS, raw_config, write_llama2c


@pytest.mark.parametrize("tied", [True, False])
def test_gives_back_the_original_model(tied: bool, tmp_path: Path) -> None:
    weights = write_llama2c(tmp_path / "m.bin", tmp_path / "t.bin", tied=tied)
    checkpoint = open_llama2c(tmp_path / "m.bin")
    assert checkpoint.config == parse_config(raw_config(tie_word_embeddings=tied, eos_token_id=[2, 1]))
    assert set(torch_tensors(checkpoint)) == set(weights)
    assert all(torch.equal(torch_tensors(checkpoint)[name], weight) for name, weight in weights.items())


def test_reads_the_vocabulary(tmp_path: Path) -> None:
    write_llama2c(tmp_path / "m.bin", tmp_path / "t.bin")
    tokens = read_vocabulary(tmp_path / "t.bin", len(SCORES))
    assert [score for _, score in tokens] == SCORES
    assert tokens[259 + WORDS.index("\u2581hello")] == (b" hello", -float(WORDS.index("\u2581hello")))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"", "hold no header"),
        (struct.pack("<7i", 64, 96, 2, 4, 2, 300, 128), "its header describes"),
        (struct.pack("<7i", 64, 96, 2**31 - 1, 4, 2, 300, 128), "2147483647 layers"),
        (struct.pack("<7i", -64, 96, 2, 4, 2, 300, 128), "hidden_size=-64"),
        (struct.pack("<7i", 64, 96, 2, 0, 2, 300, 128), "num_attention_heads=0"),
        (struct.pack("<7i", 2**30, 2**30, 2, 2, 2, -(2**31), 2**30), "vocab_size"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_headers(header: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(header)
    with pytest.raises(ModelFormatError) as caught:
        open_llama2c(tmp_path / "m.bin")
    assert says in str(caught.value)


def test_a_file_of_another_size(tmp_path: Path) -> None:
    write_llama2c(tmp_path / "m.bin", tmp_path / "t.bin")
    content = (tmp_path / "m.bin").read_bytes()
    for changed in (content[:-4], content + b"1234"):
        (tmp_path / "m.bin").write_bytes(changed)
        with pytest.raises(ModelFormatError, match="its header describes"):
            open_llama2c(tmp_path / "m.bin")


def test_a_vocabulary_that_lies(tmp_path: Path) -> None:
    write_llama2c(tmp_path / "m.bin", tmp_path / "t.bin")
    content = (tmp_path / "t.bin").read_bytes()
    for changed, says in (
        (content[:-1], "claims 2 bytes"),
        (content + b"1", "follow the last token"),
        (content[:100], "ends after"),
        (b"", "ends after 0"),
        (content[:8] + struct.pack("<i", -1) + content[12:], "claims -1 bytes"),
        (content[:8] + struct.pack("<i", 2**31 - 1) + content[12:], "claims 2147483647 bytes"),
    ):
        (tmp_path / "t.bin").write_bytes(changed)
        with pytest.raises(ModelFormatError, match=says):
            read_vocabulary(tmp_path / "t.bin", len(SCORES))
