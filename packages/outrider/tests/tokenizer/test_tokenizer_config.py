"""``tokenizer_config.json`` beside ``tokenizer.json``: ids and texts are transformers', or the folder is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models
from transformers import AutoTokenizer

from outrider.errors import ModelFormatError
from outrider.tokenizer.tokenizer import Tokenizer
from tests.tokenizer.vocabularies import byte_level, sentencepiece

TEXTS = ["", "hello world", " hello", "a<|eos|>b</s>c <tool>two words", "<|user|> x  <tool> y NEW", "hello , do n't ."]
PLAIN = {"lstrip": False, "normalized": False, "rstrip": False, "single_word": False, "special": True}
CONFIGS: list[dict[str, Any]] = [
    {"add_bos_token": True, "add_eos_token": True},
    {"add_bos_token": False},
    {"clean_up_tokenization_spaces": True, "add_prefix_space": True, "do_lower_case": True, "legacy": True},
    {"tokenizer_class": "LlamaTokenizerFast", "model_max_length": 3, "truncation_side": "left"},
    {"additional_special_tokens": ["<tool>", "NEW"]},
    {"extra_special_tokens": ["<tool>"]},
    {"extra_special_tokens": {"tool_token": "<tool>"}},
    {"pad_token": "<tool>"},
    {"pad_token": "hello"},
    {"unk_token": "NEW"},
    {"bos_token": PLAIN | {"content": "<tool>", "__type": "AddedToken"}},
    {"added_tokens_decoder": {"331": PLAIN | {"content": "<tool>"}}},
    {"added_tokens_decoder": {"400": PLAIN | {"content": "NEW", "special": False}}},
    {"added_tokens_decoder": {"331": PLAIN | {"content": "<tool>", "special": False, "lstrip": True}}},
]


def configure(folder: Path, changes: dict[str, Any]) -> None:
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


@pytest.mark.parametrize("make", [byte_level, sentencepiece])
@pytest.mark.parametrize("changes", CONFIGS, ids=" ".join)
def test_same_as_transformers(make: Callable[[Path], Path], changes: dict[str, Any], tmp_path: Path) -> None:
    configure(make(tmp_path), changes)
    ours, theirs = Tokenizer.from_folder(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        for add in (True, False):
            ids = ours.encode(text, add_special_tokens=add)
            assert ids == theirs.encode(text, add_special_tokens=add), text
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == theirs.decode(ids, skip_special_tokens=skip), text


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"split_special_tokens": True}, "split_special_tokens=true"),
        ({"added_tokens_decoder": {"x": PLAIN | {"content": "NEW"}}}, "does not map ids to tokens"),
        ({"added_tokens_decoder": [1]}, "does not map ids to tokens"),
        ({"added_tokens_decoder": {"400": {"content": "NEW", "special": 1}}}, "is no token"),
        ({"added_tokens_decoder": {"400": {"content": "NEW", "colour": True}}}, "is no token"),
        ({"pad_token": 7}, "7 is no token"),
        ({"extra_special_tokens": "<tool>"}, "is no list of tokens"),
    ],
)
def test_refused(changes: dict[str, Any], says: str, tmp_path: Path) -> None:
    before = _theirs(byte_level(tmp_path))
    configure(tmp_path, changes)
    with pytest.raises(ModelFormatError, match=says):
        Tokenizer.from_folder(tmp_path)
    assert _theirs(tmp_path) != before


def _theirs(folder: Path) -> list[list[int]] | None:
    """Ids of transformers; None if it fails."""
    try:
        return [AutoTokenizer.from_pretrained(folder).encode(text) for text in TEXTS]
    except Exception:  # noqa: BLE001 - whatever it is, there are no ids
        return None


@pytest.mark.parametrize(
    ("model", "decoder", "says"),
    [
        (models.WordPiece({"a": 0}, unk_token="a"), None, "WordPiece"),
        (models.BPE(dropout=0.5), decoders.ByteLevel(), "dropout=0.5"),
        (models.BPE({"a": 0}, [], end_of_word_suffix="</w>"), decoders.ByteLevel(), "end_of_word_suffix='</w>'"),
        (models.BPE(), decoders.BPEDecoder(), "BPEDecoder"),
        (models.BPE(), decoders.CTC(), "CTC"),
        (models.BPE(), decoders.Sequence([decoders.ByteFallback(), decoders.ByteLevel()]), "ByteLevel"),
        (models.BPE(), decoders.Replace("x", "y"), "Replace"),
    ],
)
def test_parts_that_are_not_understood(model: Any, decoder: Any, says: str, tmp_path: Path) -> None:
    backend = Backend(model)
    if decoder is not None:
        backend.decoder = decoder
    backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ModelFormatError, match=says):
        Tokenizer.from_folder(tmp_path)
