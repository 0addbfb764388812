"""``LLM.generate`` with models whose encoder reads the prompt: transformers' tokens, whatever drafts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.errors import IncompatibleDraftError, InvalidRequestError
from outrider_multimodal.encoder_decoder.model import EncoderDecoderModel
from tests import encoder_decoders, small_models
from tests.model_folders import model_folder

SOURCES = [small_models.ids(n, 90, seed=n) for n in (3, 30, 17)]
GREEDY = SamplingParams(max_tokens=12, temperature=0)


@pytest.fixture(scope="module", params=["t5 1.0", "t5 1.1", "bart, scaled", "marian"])
def llm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """Drafts with a model of nearly the same weights."""
    model = encoder_decoders.FAMILIES[request.param]()
    folder = tmp_path_factory.mktemp("text")
    encoder_decoders.save(model, folder / "target")
    for name, parameter in model.named_parameters():
        if "decoder.layers.1" in name or "decoder.block.1" in name:
            parameter.data *= 0.9
    encoder_decoders.save(model, folder / "draft")
    made = LLM(
        str(folder / "target"), draft_model=str(folder / "draft"), dtype="float32", draft_dtype="float32",
        max_batch_size=3, spec_length=4,
    )  # fmt: skip
    made.reference = model  # type: ignore[attr-defined]
    return made


def reference_tokens(llm: LLM, source: list[int]) -> list[int]:
    """Of the target, by transformers' ``generate``."""
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(llm.config.model).eval()
    with torch.inference_mode():
        found = model.generate(torch.tensor([source]), max_new_tokens=12, num_beams=1, do_sample=False)[0].tolist()
    assert isinstance(llm.model, EncoderDecoderModel)
    start = len(llm.model.config.decoder_prompt)
    assert found[:start] == list(llm.model.config.decoder_prompt)
    tokens: list[int] = found[start:]
    return tokens


def test_greedy_output_is_that_of_transformers(llm: LLM) -> None:
    found = llm.generate(SOURCES, GREEDY)
    for source, output in zip(SOURCES, found, strict=True):
        expected = reference_tokens(llm, source)
        kept = len(expected) - (expected[-1] in llm.model.config.eos_token_ids)  # it may force an end
        assert output.token_ids[:kept] == expected[:kept]
        assert kept > 2
    if llm.model.config.family != "marian":  # whose small random model says the same of all
        assert len({tuple(output.token_ids) for output in found}) == 3
    assert sum(output.stats.num_accepted_draft_tokens for output in found) > 0


DRAFTS: list[dict[str, Any]] = [
    {"draft": "model", "spec_length": 3},
    {"draft": "model", "spec_length": 3, "tree": (2, 2, 1)},
    {"draft": "suffix+recycling", "spec_length": 3},
    {"draft": "layer_skip", "spec_length": 3},
]


def test_drafts_change_nothing(llm: LLM) -> None:
    for params in (GREEDY, SamplingParams(max_tokens=12, temperature=0.9, seed=3, n=2)):
        plain = llm.generate(SOURCES, params, speculation=SpeculationParams(draft="none"))
        for options in DRAFTS:
            found = llm.generate(SOURCES, params, speculation=SpeculationParams(**options))
            assert [each.token_ids for each in found] == [each.token_ids for each in plain], options
            assert sum(each.stats.num_draft_tokens for each in found) > 0


def test_beams_are_those_of_transformers(llm: LLM) -> None:
    """What a model forces at the beginning belongs to the prompt, for transformers too if it is given so."""
    from transformers import AutoModelForSeq2SeqLM

    assert isinstance(llm.model, EncoderDecoderModel)
    start = list(llm.model.config.decoder_prompt)
    theirs = AutoModelForSeq2SeqLM.from_pretrained(llm.config.model).eval()
    theirs.generation_config.forced_bos_token_id = theirs.generation_config.forced_eos_token_id = None
    params = SamplingParams(beam_width=4, n=3, max_tokens=12, length_penalty=0.7)
    drafted = 0
    for source in SOURCES[1:]:
        with torch.inference_mode():
            expected = theirs.generate(
                torch.tensor([source]), decoder_input_ids=torch.tensor([start]), max_new_tokens=12, num_beams=4,
                num_return_sequences=3, length_penalty=0.7, early_stopping=False, do_sample=False, output_scores=True,
                return_dict_in_generate=True,
            )  # fmt: skip
        plain = llm.generate([source], params, speculation=SpeculationParams(draft="none"))
        for output, sequence in zip(plain, expected.sequences.tolist(), strict=True):
            assert sequence[len(start) :][: len(output.token_ids)] == output.token_ids
        if llm.model.config.family != "marian":  # where theirs forbids padding only after the softmax
            scores = torch.tensor([output.score for output in plain])
            torch.testing.assert_close(scores, expected.sequences_scores, atol=1e-4, rtol=1e-5)
        for draft in ("model", "suffix+recycling"):
            found = llm.generate([source], params, speculation=SpeculationParams(draft=draft, spec_length=3))
            assert [(each.token_ids, each.score) for each in found] == [(each.token_ids, each.score) for each in plain]
            assert found[0].stats.draft_error is None
            drafted += found[0].stats.num_accepted_draft_tokens
    assert drafted > 0


def test_text_goes_to_the_encoder(llm: LLM) -> None:
    assert llm.generate("!'(5", GREEDY).token_ids == llm.generate([llm.tokenizer.encode("!'(5")], GREEDY)[0].token_ids
    with pytest.raises(InvalidRequestError, match="encoder takes 1 to"):
        llm.generate("")


def test_a_causal_draft_model_is_allowed_and_the_other_way_round_is_not(tmp_path: Path) -> None:
    folder = encoder_decoders.save(encoder_decoders.t5(), tmp_path / "t5")
    causal = model_folder(tmp_path / "causal", vocab_size=encoder_decoders.VOCAB)
    (causal / "tokenizer.json").write_text((folder / "tokenizer.json").read_text())
    (causal / "tokenizer_config.json").unlink()
    with LLM(str(folder), draft_model=str(causal), dtype="float32") as llm:
        found = llm.generate(SOURCES, GREEDY)
        plain = llm.generate(SOURCES, GREEDY, speculation=SpeculationParams(draft="none"))
        assert [each.token_ids for each in found] == [each.token_ids for each in plain]
    with pytest.raises(IncompatibleDraftError, match="has an encoder and the target"):
        LLM(str(causal), draft_model=str(folder))
