"""Encoder–decoder models agree with transformers, and a row's bits depend on nothing but its own sequence."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from outrider.cache import CacheSpec
from outrider.config import DTypeName, ModelOptions
from outrider.drafters.draft_cache import DraftModel
from outrider.errors import InvalidRequestError, ModelFormatError
from outrider.models.batch import ForwardBatch, Span
from outrider.native.context import NativeContext
from outrider.native.library import available_isas, native_library
from outrider.verify.arrays import Floats, host
from outrider.weights.loader import load_model
from outrider_multimodal.encoder_decoder import EncoderInput
from outrider_multimodal.encoder_decoder.cross import NativeCrossKeys, TorchCrossKeys
from outrider_multimodal.encoder_decoder.model import EncoderDecoderModel
from outrider_multimodal.weights import ENCODER_DECODERS
from tests import encoder_decoders, small_models

SOURCE = small_models.ids(37, 90)
OUTPUT = [3, 17, 4, 50, 80, 2, 9, 33, 71, 12]


def loaded(folder: Path, dtype: DTypeName = "float32") -> EncoderDecoderModel:
    model = load_model(folder, ModelOptions(dtype=dtype))
    assert isinstance(model, EncoderDecoderModel)
    return model


def logits(model: EncoderDecoderModel, given: EncoderInput, tokens: list[int], *counts: int) -> Floats:
    """Of every token, read in passes of so many."""
    cache = model.new_cache(CacheSpec(max_seq_len=model.config.max_seq_len))
    slot, start, found = cache.allocate(), 0, []
    given.attach(model, cache, slot)
    for count in counts or (len(tokens),):
        cache.extend(slot, count)
        part = range(start, start + count)
        batch = ForwardBatch([tokens[i] for i in part], part, (Span(slot, start, count),), None)
        found.append(host(model.forward(batch, cache).logits))
        start += count
    return np.concatenate(found)


@pytest.mark.parametrize("family", encoder_decoders.FAMILIES)
def test_logits_of_text_families_are_those_of_transformers(family: str, tmp_path: Path) -> None:
    reference = encoder_decoders.FAMILIES[family]()
    model = loaded(encoder_decoders.save(reference, tmp_path))
    tokens = [reference.config.decoder_start_token_id, *OUTPUT]
    with torch.inference_mode():
        expected = reference(torch.tensor([SOURCE]), decoder_input_ids=torch.tensor([tokens])).logits[0].numpy()
    found = logits(model, EncoderInput.of_tokens(SOURCE), tokens)
    possible = found > -np.inf  # Marian's padding never comes
    assert possible.mean() > 0.98
    np.testing.assert_allclose(found[possible], expected[possible], atol=2e-4, rtol=1e-4)
    other = logits(model, EncoderInput.of_tokens(SOURCE[::-1]), tokens)
    assert not np.allclose(found, other, atol=0.1)  # it does look at its source


@pytest.mark.parametrize("heads", [1, 2])
def test_logits_of_whisper_are_those_of_transformers(heads: int, tmp_path: Path) -> None:
    reference = encoder_decoders.whisper(encoder_attention_heads=heads, decoder_attention_heads=heads)
    model = loaded(encoder_decoders.save(reference, tmp_path))
    sound = encoder_decoders.mel()
    tokens = [encoder_decoders.START, encoder_decoders.EN, encoder_decoders.TRANSCRIBE, *OUTPUT]
    with torch.inference_mode():
        expected = reference(sound[None], decoder_input_ids=torch.tensor([tokens])).logits[0].numpy()
    np.testing.assert_allclose(logits(model, EncoderInput(sound), tokens), expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "q8_0"])
@pytest.mark.parametrize("family", ["t5 1.1", "bart", "whisper"])
def test_rows_do_not_depend_on_the_passes_they_are_read_in(family: str, dtype: DTypeName, tmp_path: Path) -> None:
    model, given = _some(family, dtype, tmp_path)
    tokens = small_models.ids(24, 90, seed=3)
    whole = logits(model, given, tokens)
    for counts in ([1] * 24, [5, 3, 16], [17, 7]):
        assert small_models.identical(logits(model, given, tokens, *counts), whole)


@pytest.mark.parametrize("family", ["t5 1.1", "whisper"])
def test_rows_do_not_depend_on_other_sequences_or_refused_nodes(family: str, tmp_path: Path) -> None:
    model, given = _some(family, "float32", tmp_path)
    other = EncoderInput.of_tokens(SOURCE[::-1]) if given.is_text else EncoderInput(encoder_decoders.mel(7))
    tokens, further = small_models.ids(9, 90, seed=3), small_models.ids(4, 90, seed=5)
    expected = logits(model, given, tokens + further)[-4:]
    cache = model.new_cache(CacheSpec(slots=2, max_seq_len=model.config.max_seq_len))
    first, second = cache.allocate(), cache.allocate()
    other.attach(model, cache, first)
    given.attach(model, cache, second)
    small_models.feed(model, cache, (first, small_models.ids(5, 90)), (second, tokens))
    parents = [-1, -1, 1, 1, 3, 4]  # nodes 1, 3, 4 and 5 are the text
    nodes = [7, further[0], 9, *further[1:]]
    found = small_models.feed(model, cache, (first, nodes), (second, nodes), parents=parents)[1]
    assert small_models.identical(found[[1, 3, 4, 5]], expected)


def _some(family: str, dtype: DTypeName, folder: Path) -> tuple[EncoderDecoderModel, EncoderInput]:
    if family == "whisper":
        model = loaded(encoder_decoders.save(encoder_decoders.whisper(), folder), dtype)
        return model, EncoderInput(encoder_decoders.mel())
    model = loaded(encoder_decoders.save(encoder_decoders.FAMILIES[family](), folder), dtype)
    return model, EncoderInput.of_tokens(SOURCE)


def _noted(
    runs: list[EncoderDecoderModel], model: EncoderDecoderModel, encode: Callable[[Tensor], Tensor], values: Tensor
) -> Tensor:
    runs.append(model)
    return encode(values)


def test_an_input_is_encoded_once_and_models_with_the_same_encoder_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = encoder_decoders.whisper()
    target = loaded(encoder_decoders.save(reference, tmp_path / "target"))
    same = loaded(tmp_path / "target")
    apart = loaded(encoder_decoders.save(encoder_decoders.whisper(seed=1), tmp_path / "other"))
    assert same.share_encoder(target)
    assert not apart.share_encoder(target)
    runs: list[EncoderDecoderModel] = []
    for model in (target, apart):
        monkeypatch.setattr(model.encoder, "_encode", partial(_noted, runs, model, model.encoder._encode))
    given = EncoderInput(encoder_decoders.mel())
    for model in (target, same, apart, target):
        model.encode(given)
    assert runs == [target, apart]


def test_a_slot_lets_go_of_its_input_when_it_is_freed(tmp_path: Path) -> None:
    model, given = _some("t5 1.0", "float32", tmp_path)
    for kind in ("contiguous", "paged"):
        cache = model.new_cache(CacheSpec(slots=2, max_seq_len=64, kind=kind))
        slot = cache.allocate()
        given.attach(model, cache, slot)
        assert cache.attachments
        cache.free(slot)
        assert not cache.attachments


def test_inputs_that_an_encoder_cannot_take_are_refused(tmp_path: Path) -> None:
    text, _ = _some("bart", "float32", tmp_path / "bart")
    sound, _ = _some("whisper", "float32", tmp_path / "whisper")
    for model, given, message in (
        (text, EncoderInput(encoder_decoders.mel()), "takes a text"),
        (sound, EncoderInput.of_tokens([1, 2]), "takes a spectrogram"),
        (sound, EncoderInput(torch.zeros(128, 3000)), "takes \\[80, 3000\\]"),
        (text, EncoderInput.of_tokens([]), "takes 1 to 160"),
        (text, EncoderInput.of_tokens([1] * 161), "161 tokens"),
        (text, EncoderInput.of_tokens([1, 96]), "token 96"),
    ):
        with pytest.raises(InvalidRequestError, match=message):
            model.check_input(given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation_function": "mish"}, "activation_function='mish'"),
        ({"d_model": 50}, "d_model=50"),
        ({"decoder_layers": 3}, "no tensor"),
        ({"decoder_ffn_dim": 81}, "is \\[80"),
    ],
)
def test_folders_that_would_be_computed_wrongly_are_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = encoder_decoders.save(encoder_decoders.bart(), tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | change))
    with pytest.raises(ModelFormatError, match=message):
        loaded(folder)


def test_every_family_is_tested() -> None:
    assert set(ENCODER_DECODERS) == {"t5", "mt5", "bart", "marian", "whisper"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("length", "heads", "width"), [(1500, 2, 64), (128, 3, 24), (37, 1, 10)])
def test_attention_to_constant_keys_is_torch_s(length: int, heads: int, width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(length)
    keys_values = torch.randn(length, 2 * heads * width).to(dtype).float()
    q = torch.randn(21, heads, width)
    found = NativeCrossKeys([keys_values], heads, dtype).attend(0, q, 0.3)
    expected = TorchCrossKeys([keys_values], heads).attend(0, q, 0.3)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    alone = NativeCrossKeys([keys_values], heads, dtype)
    assert torch.equal(torch.cat([alone.attend(0, row, 0.3) for row in q.split((1, 3, 17))]), found)
    isas = available_isas(native_library())
    assert isas
    for isa in isas:
        keys = NativeCrossKeys([keys_values], heads, dtype, NativeContext(2, isa))
        assert torch.equal(keys.attend(0, q, 0.3), found)


def test_a_draft_model_s_encoder_runs_when_it_first_drafts(tmp_path: Path) -> None:
    model, given = _some("bart", "float32", tmp_path)
    draft = DraftModel(model, vocab_size=model.config.vocab_size, cache=CacheSpec(max_seq_len=32))
    draft.start("r", given)
    draft.finish("r")
    draft.start("r")
    draft.prefill([(draft.sequences["r"], [2, 5])])
    assert not draft.cache.attachments  # what nobody drafted from is gone with its request
    draft.finish("r")
    draft.start("r", given)
    assert not draft.cache.attachments
    draft.prefill([(draft.sequences["r"], [2, 5])])
    assert list(draft.cache.attachments) == [draft.sequences["r"].slot]
