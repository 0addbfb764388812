"""What drafting takes is known before the first request: of models with an encoder, and of no others."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.cache import CacheSpec
from outrider.config import ModelOptions
from outrider.drafters.api import Drafter
from outrider.drafters.cost import DraftingCost, time_drafts
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.model.model import ModelDrafter
from outrider.drafters.text.ngram import NgramDrafter
from outrider.engine.adaptive.policy import FixedLength
from outrider.engine.drafting.rounds import Drafting
from outrider.verify.draft import Draft
from outrider.weights.loader import load_model
from outrider_drafters.hierarchical import HierarchicalDrafter
from outrider_drafters.models import ModelsDrafter
from outrider_multimodal.encoder_decoder import EncoderInput
from outrider_multimodal.encoder_decoder.model import EncoderDecoderModel
from tests import encoder_decoders, tiny
from tests.rig import Scripted

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


def test_models_that_read_nothing_else_are_not_timed() -> None:
    assert time_drafts(tiny.llama()) is None
    assert NgramDrafter(96).time_drafts() is None


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


def test_a_drafter_that_fails_to_tell_is_asked_all_the_same() -> None:
    class Failing(Scripted):
        def time_drafts(self) -> DraftingCost | None:
            raise RuntimeError("no clock")

    source: Drafter = Failing(lambda request, budget: Draft.chain([1] * budget))
    assert Drafting({"source": source}, 96, FixedLength()).isolated.time_drafts("source") is None
