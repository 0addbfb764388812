"""A refusal is a claim: for each that the code makes, transformers' answer differs. What nobody reads is accepted."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

import outrider.weights
import outrider_multimodal.weights
from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.errors import ModelFormatError
from outrider.weights.families import FAMILIES
from outrider.weights.hf_config.keys import EVERYWHERE, unread_keys
from outrider.weights.loader import load_model
from outrider_multimodal import vision_language
from outrider_multimodal.encoder_decoder import EncoderInput
from outrider_multimodal.encoder_decoder.model import EncoderDecoderModel
from outrider_transformers import foreign
from tests import bridge_members, small_models
from tests.bridge.test_bridge_docs import table_rows
from tests.weights.acceptances import READ, unread, without_prefix
from tests.weights.refusals import Refusal, every
from tests.weights.transformers_reference import TOKENS, Files, compare, generated, logits, logits_of, same, saved

OPTIONS = ModelOptions(dtype="float32", device="cpu")
_ROOT = Path(outrider.weights.__file__).parent
CODE = [
    *(_ROOT / "hf_config").glob("*.py"),
    *(_ROOT / "families").glob("*.py"),
    _ROOT / "files" / "layout.py",
    *Path(outrider_multimodal.weights.__file__).parent.glob("*.py"),
    *(Path(module.__file__ or "") for module in (foreign, vision_language)),
]
"""What reads the configurations and the tensors' headers of folders."""

OWN_CODE = """
from transformers import GPT2LMHeadModel, LlamaForCausalLM

class Doubled(LlamaForCausalLM):
    def forward(self, *args, **given):
        out = super().forward(*args, **given)
        out.logits = out.logits * 2
        return out
"""

_REFUSED_AS_SAVED = ("whisper",)
"""Its configuration suppresses the first tokens of an answer, which ``begin_suppress_tokens`` in the table proves."""

ROWS = every()


def _folder(row: Refusal, folder: Path) -> Path:
    saved(row.family).with_changes(row.refused).write(folder)
    if row.trusted:
        parent = {"gpt2": "GPT2LMHeadModel"}.get(row.family, "LlamaForCausalLM")
        (folder / "modeling_mine.py").write_text(OWN_CODE.replace("(LlamaForCausalLM)", f"({parent})"))
    if row.adapter:
        (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "somewhere/else"}')
    return folder


def _load(row: Refusal, folder: Path) -> None:
    load_model(_folder(row, folder), replace(OPTIONS, implementation=row.implementation))


_SHARED = EVERYWHERE.keys() - {"is_causal"}  # one family's proof is as good as another's
_PROVED = [
    pytest.param(row, marks=[pytest.mark.slow] if row.family != "llama" and _SHARED & row.refused.config.keys() else [])
    for row in ROWS
]


@pytest.mark.parametrize("row", _PROVED, ids=str)
def test_whoever_is_refused_would_have_got_another_answer(
    row: Refusal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "refused"
    with pytest.raises(ModelFormatError) as caught:
        _load(row, folder)
    assert "\n" not in str(caught.value)
    if row.unasked:
        return
    if row.adapter:
        for module in ("models.auto.auto_factory", "integrations.peft"):
            monkeypatch.setattr(f"transformers.{module}.is_peft_available", lambda: True)
    computed = saved(row.family).with_changes(row.computed).write(tmp_path / "computed")
    if row.computed != Files():
        load_model(computed, OPTIONS)
    assert compare(computed, folder, trusted=row.trusted) != "same"


def test_every_refusal_of_the_code_has_a_row(tmp_path: Path) -> None:
    """A ``raise ModelFormatError`` that no row of the table reaches is a claim without a proof."""
    claims = {(path.name, line): text for path in CODE for line, text in _raises(path)}
    for number, row in enumerate(ROWS):
        try:
            _load(row, tmp_path / str(number))
        except ModelFormatError as error:
            for place in _places(error):
                claims.pop(place, None)
    assert not claims, "\n".join(f"{path}, line {line}: {text}" for (path, line), text in claims.items())


def _raises(path: Path) -> Iterator[tuple[int, str]]:
    """The first line of each ``raise ModelFormatError``, and the statement."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Raise) and "ModelFormatError" in ast.unparse(node):
            yield node.lineno, ast.unparse(node)


def _places(error: BaseException | None) -> Iterator[tuple[str, int]]:
    """Where an error, and those that it was raised for, came from."""
    while error is not None:
        trace = error.__traceback__
        while trace is not None:
            yield Path(trace.tb_frame.f_code.co_filename).name, trace.tb_lineno
            trace = trace.tb_next
        error = error.__context__


def _logits(folder: Path) -> Tensor:
    """Of Outrider, [tokens, vocab]."""
    model = load_model(folder, OPTIONS)
    cache = model.new_cache(CacheSpec(max_seq_len=64))
    slot, tokens = cache.allocate(), TOKENS
    if isinstance(model, EncoderDecoderModel):
        EncoderInput.of_tokens(TOKENS).attach(model, cache, slot)
        tokens = TOKENS[:9]
    return torch.as_tensor(small_models.feed(model, cache, (slot, tokens))[0]).float()


@pytest.mark.parametrize("row", [*unread()], ids=str)
def test_what_transformers_does_not_read_changes_nothing(row: Refusal, tmp_path: Path) -> None:
    plain, folder = saved(row.family).write(tmp_path / "plain"), tmp_path / "changed"
    saved(row.family).with_changes(row.refused).write(folder)
    assert compare(plain, folder) == "same"
    assert same(_logits(folder), logits_of(row.family))


@pytest.mark.parametrize(("family", "config"), READ, ids=str)
def test_what_it_reads_is_read_alike(family: str, config: Mapping[str, Any], tmp_path: Path) -> None:
    folder = saved(family).with_changes(Files(config)).write(tmp_path)
    theirs = logits(folder)
    assert not same(theirs, logits_of(family))
    assert same(_logits(folder), theirs)


def test_a_model_that_was_saved_without_its_head(tmp_path: Path) -> None:
    folder = saved("llama").with_changes(without_prefix()).write(tmp_path)
    assert same(_logits(folder), logits(folder))


def test_a_decoder_that_was_saved_without_its_encoder(tmp_path: Path) -> None:
    bridge_members.build("bart").save_pretrained(tmp_path)
    assert load_model(tmp_path, OPTIONS).implementation == "transformers, text by text"


def test_what_nobody_reads_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    changes = Files({"query_scale": 2.0}, {}, {"a.bias": torch.ones(3)})
    load_model(saved("llama").with_changes(changes).write(tmp_path), OPTIONS)
    told = [record.getMessage() for record in caplog.records]
    assert any("keys of config.json without effect" in text and "query_scale" in text for text in told)
    assert any("tensors without effect" in text and "a.bias" in text for text in told)


@pytest.mark.parametrize("family", [*FAMILIES, "t5", "bart", "smolvlm", "idefics3", "gpt_neox", "gpt2"])
def test_what_transformers_saves_is_loaded(family: str, tmp_path: Path) -> None:
    """Says the same, and nothing of it is unknown."""
    folder = saved(family).write(tmp_path)
    assert same(_logits(folder), logits(folder))
    assert family not in FAMILIES or unread_keys(saved(family).config, FAMILIES[family]) == []


@pytest.mark.slow
@pytest.mark.parametrize("family", [row[0] for row in table_rows() if row[0] not in _REFUSED_AS_SAVED])
def test_what_transformers_saves_of_other_families_is_loaded(family: str, tmp_path: Path) -> None:
    """And says what it said before it was saved."""
    module = bridge_members.build(family)
    module.save_pretrained(tmp_path)
    with torch.inference_mode():
        theirs = module(torch.tensor([TOKENS]), use_cache=False).logits[0]
    assert same(_logits(tmp_path), theirs)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_key_that_transformers_reads_is_known(family: str, tmp_path: Path) -> None:
    """Attributes of the configuration that its code looks at, from the file to the last token."""
    folder = saved(family).write(tmp_path)
    kind = type(transformers.AutoConfig.from_pretrained(folder))
    read: set[str] = set()

    def noting(self: Any, name: str) -> Any:
        read.add(name)
        return plain(self, name)

    plain: Any = kind.__getattribute__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "__getattribute__", noting)
        logits(folder)
        generated(folder)
    keys = {name for name in read if not name.startswith("_") and not hasattr(kind, name)} | kind.attribute_map.keys()
    fields = {name for name in kind.__annotations__ if name in read}
    assert unread_keys(dict.fromkeys(keys | fields, 1), FAMILIES[family]) == []
