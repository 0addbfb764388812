"""The built-in models themselves: pulled into the user's cache, then held against transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider.tokenizer.tokenizer import IncrementalDetokenizer, Tokenizer
from outrider.tokenizer.vocabularies import check_same_vocabulary
from outrider.weights.folder import open_checkpoint
from outrider.weights.hub.builtin import BUILTINS
from outrider.weights.hub.catalog import resolve
from outrider_torch.models.stored import torch_tensors

pytestmark = pytest.mark.slow

FRANCE = [{"role": "user", "content": "What is the capital of France?"}]
TEXTS = [
    "", " ", "Hello, world!", "  indented\n\n\n1. one\n 2 two", "a\tb\r\nc", "na\u00efve \u65e5\u672c\u8a9e \U0001f600",
    "\U0001f3f3\ufe0f\u200d\U0001f308 \u0928\u092e\u0938\u094d\u0924\u0947 \u1230\u120b\u121d",
    "<|im_start|>user</s><s>",
    "x" * 300, "\u2581\u2581a <0x41> \x00\x7f \ufffd", "def f(x):\n    return x ** 2  # 3.14159\n",
]  # fmt: skip


@pytest.fixture(scope="module", params=list(BUILTINS))
def folder(request: pytest.FixtureRequest) -> Path:
    return resolve(request.param, verify=True)


def gguf_of(folder: Path) -> str | None:
    return "model.gguf" if (folder / "model.gguf").exists() else None


def test_tokenizer(folder: Path) -> None:
    ours, theirs = Tokenizer.from_folder(folder), AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        for skip in (True, False):
            whole = ours.decode(ids, skip_special_tokens=skip)
            assert whole == theirs.decode(ids, skip_special_tokens=skip)
            detokenizer = IncrementalDetokenizer(ours, skip_special_tokens=skip)
            assert "".join(detokenizer.push([i]) for i in ids) + detokenizer.flush() == whole
    if ours.chat_template is not None:
        expected = theirs.apply_chat_template(FRANCE, add_generation_prompt=True, return_dict=False)
        assert ours.encode_chat(FRANCE) == expected


def test_weights(folder: Path) -> None:
    checkpoint = open_checkpoint(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, gguf_file=gguf_of(folder))
    theirs = model.state_dict()
    ours = torch_tensors(checkpoint)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert sum(tensor.numel() for tensor in ours.values()) == BUILTINS[folder.name].parameters


@pytest.mark.parametrize(
    ("name", "says"), [("smollm2-135m-instruct", "Paris"), ("tinyllama-1.1b-chat", "France"), ("stories15m", "Lily")]
)
def test_makes_sense(name: str, says: str) -> None:
    folder = resolve(name)
    tokenizer = Tokenizer.from_folder(folder)
    ids = tokenizer.encode_chat(FRANCE) if tokenizer.chat_template else tokenizer.encode("Once upon a time")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, gguf_file=gguf_of(folder))
    out = model.generate(torch.tensor([ids]), max_new_tokens=24, do_sample=False)
    assert says in tokenizer.decode(out[0, len(ids) :].tolist())


def test_stories_can_draft_for_tinyllama() -> None:
    target, draft = (Tokenizer.from_folder(resolve(name)) for name in ("tinyllama-1.1b-chat", "stories15m"))
    check_same_vocabulary(target, draft)
    assert [target.encode(text) for text in TEXTS] == [draft.encode(text) for text in TEXTS]
