"""The time that an encoder takes for a draft is known before the first request."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.drafters.cost import DraftingCost, time_drafts
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.model.model import ModelDrafter
from outrider.drafters.text.ngram import NgramDrafter
from outrider.weights.loader import load_model
from outrider_drafters.hierarchical import HierarchicalDrafter
from outrider_drafters.models import ModelsDrafter
from outrider_multimodal.encoder_decoder import EncoderInput
from outrider_multimodal.encoder_decoder.model import EncoderDecoderModel
from tests import encoder_decoders

SHORT, LONG = EncoderInput.of_tokens([3, 4]), EncoderInput.of_tokens([3, 4] * 20)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return encoder_decoders.save(encoder_decoders.bart(), tmp_path_factory.mktemp("bart"))


def loaded(folder: Path) -> EncoderDecoderModel:
    model = load_model(folder, ModelOptions(dtype="float32"))
    assert isinstance(model, EncoderDecoderModel)
    return model


def drafter(model: EncoderDecoderModel) -> ModelDrafter:
    return ModelDrafter(DraftModel(model, vocab_size=model.config.vocab_size, cache=CacheSpec(max_seq_len=32)))


def test_an_encoder_takes_longer_for_more_text_and_nothing_for_what_it_has_read(folder: Path) -> None:
    model = loaded(folder)
    cost = drafter(model).time_drafts()
    assert cost is not None
    assert cost.level > 0
    assert cost.reading(SHORT) > 0
    assert cost.reading(LONG) == pytest.approx(20 * cost.reading(SHORT))
    model.encode(SHORT)
    assert cost.reading(SHORT) == 0 < cost.reading(LONG)


def test_an_encoder_that_the_target_runs_anyway_takes_nothing(folder: Path) -> None:
    model = loaded(folder)
    assert model.share_encoder(loaded(folder))
    cost = time_drafts(model)
    assert cost is not None
    assert cost.reading(LONG) == 0 < cost.level


def test_sources_of_several_models_take_the_time_of_all(folder: Path) -> None:
    both = DraftingCost(1.0, lambda given: 2.0).plus(DraftingCost(3.0, lambda given: 4.0))
    assert (both.level, both.reading(SHORT)) == (4.0, 6.0)
    models = [drafter(loaded(folder)) for _ in range(2)]
    cost = ModelsDrafter(models).time_drafts()
    assert cost is not None
    assert cost.reading(LONG) > 0
    inner = HierarchicalDrafter(models[0].model, NgramDrafter(96)).time_drafts()
    assert inner is not None
    assert inner.reading(LONG) > 0
    assert inner.level == 0  # as one run may score all levels
