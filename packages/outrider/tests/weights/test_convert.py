"""Folders made from other files hold what transformers reads from these."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider.errors import CapacityError, ModelFormatError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.tokenizer.vocabularies import check_same_vocabulary
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hub.convert import convert_gguf, convert_llama2c
from outrider.weights.hub.convert_tokenizer import tokenizer_from_llama2c
from outrider_torch.models.stored import torch_tensors
from tests.weights.files import TEMPLATE, write_gguf, write_llama2c

TEXTS = [
    "hello",
    " hello",
    "  hello world",
    "a\n\nb",
    "\t",
    "",
    "hello</s>hello",
    "h\u00e9llo \U0001f600 \u65e5",
    "<0x41>",
]


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_same_model_as_transformers_reads_from_the_gguf(family: str, tmp_path: Path) -> None:
    dims: dict[str, Any] = (
        {"head_dim": 128} if family == "qwen3" else {}
    )  # transformers does not read another one from GGUF
    write_gguf(tmp_path / "m.gguf", family, kind=GGMLQuantizationType.Q8_0, **dims)
    out = tmp_path / "out"
    out.mkdir()
    convert_gguf(tmp_path / "m.gguf", out)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, gguf_file="m.gguf", dtype=torch.float32)
    reloaded = AutoModelForCausalLM.from_pretrained(out, gguf_file="model.gguf", dtype=torch.float32)
    expected = {name: w.to(torch.bfloat16) for name, w in theirs.state_dict().items()}
    ours = open_checkpoint(out)
    assert all(torch.equal(torch_tensors(ours)[name].to(torch.bfloat16), w) for name, w in expected.items())
    assert all(torch.equal(w.to(torch.bfloat16), expected[name]) for name, w in reloaded.state_dict().items())
    assert set(torch_tensors(ours)) == set(ours.stored) == set(expected)
    assert ours.config == open_gguf(tmp_path / "m.gguf").config


def test_same_tokenizer_as_transformers_reads_from_the_gguf(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    out = tmp_path / "out"
    out.mkdir()
    convert_gguf(tmp_path / "m.gguf", out)
    theirs, reloaded = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf"), AutoTokenizer.from_pretrained(out)
    ours = Tokenizer.from_folder(out)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text) == reloaded.encode(text)
        for skip in (True, False):
            assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip)
    assert ours.chat_template == TEMPLATE
    messages = [{"role": "user", "content": "hello"}]
    assert ours.render_chat(messages) == theirs.apply_chat_template(messages, tokenize=False) == "<user>hello</s>"
    assert ours.encode_chat(messages) == reloaded.apply_chat_template(messages, return_dict=False)
    assert (ours.eos_token_ids, ours.bos_token_id, ours.vocab_size) == ((2,), 1, len(theirs))


def test_llama2c_has_the_same_ids_as_a_llama_gguf(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m.gguf")
    write_llama2c(tmp_path / "m.bin", tmp_path / "t.bin")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    convert_gguf(tmp_path / "m.gguf", tmp_path / "a")
    convert_llama2c(tmp_path / "m.bin", tmp_path / "t.bin", tmp_path / "b")
    target, draft = Tokenizer.from_folder(tmp_path / "a"), Tokenizer.from_folder(tmp_path / "b")
    check_same_vocabulary(target, draft)
    assert [target.encode(text) for text in TEXTS] == [draft.encode(text) for text in TEXTS]
    assert target.to_json() == draft.to_json()
    AutoModelForCausalLM.from_pretrained(tmp_path / "b")


def test_vocabularies_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ModelFormatError, match="no Llama 2 vocabulary"):
        tokenizer_from_llama2c([(b"a", 0.0)], 128, tmp_path)
    with pytest.raises(ModelFormatError, match="twice"):
        tokenizer_from_llama2c([(b"a", 0.0)] * 261, 128, tmp_path)


def test_a_gguf_without_a_usable_tokenizer_is_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.weights.files.VOCABULARY", [])
    write_gguf(tmp_path / "m.gguf", vocab_size=278)
    with pytest.raises(ModelFormatError, match=r"tokenizer in .*m\.gguf") as caught:
        convert_gguf(tmp_path / "m.gguf", tmp_path)
    assert "\n" not in str(caught.value)


def test_disk_space_is_checked_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_gguf(tmp_path / "m.gguf")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1000})())
    with pytest.raises(CapacityError, match=r"m\.gguf needs 0\.03 GB in .*, 0\.00 GB are free"):
        convert_gguf(tmp_path / "m.gguf", tmp_path)
    assert not (tmp_path / "model.gguf").exists()
