"""The beams of transformers' ``generate``, scores within rounding; and the same bits with drafts, in any precision."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationMixin

from outrider.config import ModelOptions, SamplingParams, SpeculationParams
from outrider.engine.request import Request
from outrider.models.base import LoadedModel
from outrider.weights.loader import load_model
from outrider_drafters.beams.method import beam_search
from outrider_drafters.recycling import RecyclingDrafter
from outrider_multimodal.encoder_decoder import EncoderInput
from tests import encoder_decoders, small_models
from tests.models.test_parity import LLAMA, MISTRAL, VOCAB, build
from tests.small_engines import engine, run
from tests.weights import hybrids

KINDS: dict[str, Any] = {
    "llama": lambda: build(LLAMA),
    "window": lambda: build(MISTRAL, sliding_window=20, head_dim=16),
    "hybrid": lambda: hybrids.build("qwen35"),
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Any, LoadedModel]]:
    found = {}
    for name, make in KINDS.items():
        folder: Path = tmp_path_factory.mktemp(name)
        theirs = make()
        theirs.save_pretrained(folder)
        found[name] = theirs, load_model(folder, ModelOptions(dtype="float32"))
    return found


def requests(prompt: list[int], params: SamplingParams, stops: list[int], draft: str) -> list[Request]:
    speculation = SpeculationParams(draft=draft)
    made = [Request(f"r{i}", tuple(prompt), params, speculation, frozenset(stops)) for i in range(params.n)]
    for one in made:
        beam_search(one, None if one is made[0] else made[0])
    return made


def check_against_transformers(seed: int, models: dict[str, tuple[Any, LoadedModel]]) -> None:
    dice = random.Random(seed)
    theirs, ours = models[dice.choice(list(KINDS))]
    prompt = [dice.randrange(VOCAB) for _ in range(dice.randint(1, 40))]
    stops = dice.sample(range(VOCAB), dice.choice([1, 1, 2, 8]))
    width, most = dice.randint(2, 6), dice.randint(1, 30)
    n = dice.randint(1, width)
    length_penalty = dice.choice([1.0, 0.0, 2.0, -0.5])
    early: Any = dice.choice([True, False, "never"])
    least, penalty = dice.choice([0, 0, most // 2]), dice.choice([1.0, 1.0, 1.2])
    out = theirs.generate(
        torch.tensor([prompt]),
        num_beams=width,
        num_return_sequences=n,
        max_new_tokens=most,
        min_new_tokens=least,
        length_penalty=length_penalty,
        early_stopping=early,
        repetition_penalty=penalty,
        do_sample=False,
        eos_token_id=stops,
        pad_token_id=stops[0],
        output_scores=True,
        return_dict_in_generate=True,
    )
    params = SamplingParams(
        beam_width=width,
        n=n,
        max_tokens=most,
        min_tokens=least,
        length_penalty=length_penalty,
        early_stopping=early,
        repetition_penalty=penalty,
    )
    mine = requests(prompt, params, stops, dice.choice(["none", "ngram", "recycling"]))
    run(engine(ours, eos=stops, more={"recycling": RecyclingDrafter(VOCAB)}, branches=6), *mine)
    scores = [one.ranked.score for one in mine if one.ranked is not None]
    torch.testing.assert_close(torch.tensor(scores), out.sequences_scores, atol=1e-4, rtol=1e-5)
    for one, sequence in zip(mine, out.sequences.tolist(), strict=True):
        own = sequence[len(prompt) :]
        assert own[: len(one.output)] == list(one.output)
        assert set(own[len(one.output) :]) <= {stops[0]}  # padding


@pytest.mark.parametrize("seed", range(15))
def test_finds_what_transformers_finds(seed: int, models: dict[str, tuple[Any, LoadedModel]]) -> None:
    check_against_transformers(seed, models)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(15, 215))
def test_finds_it_in_many_more_cases(seed: int, models: dict[str, tuple[Any, LoadedModel]]) -> None:
    check_against_transformers(seed, models)


def test_beams_of_a_model_that_hears(tmp_path: Path) -> None:
    theirs = encoder_decoders.whisper()
    ours = load_model(encoder_decoders.save(theirs, tmp_path), ModelOptions(dtype="float32"))
    prompt = [encoder_decoders.START, encoder_decoders.EN, encoder_decoders.TRANSCRIBE]
    sound, stops = encoder_decoders.mel(), [encoder_decoders.END]
    params = SamplingParams(beam_width=4, n=4, max_tokens=10, length_penalty=0.5)
    theirs.generation_config.suppress_tokens = theirs.generation_config.begin_suppress_tokens = None
    out = GenerationMixin.generate(  # without what Whisper's own does around it
        theirs, sound[None], decoder_input_ids=torch.tensor([prompt]), num_beams=4, num_return_sequences=4,
        max_new_tokens=10, length_penalty=0.5, do_sample=False, output_scores=True, return_dict_in_generate=True,
    )  # fmt: skip
    found = []
    for draft in ("none", "ngram", "model"):
        mine = requests(prompt, params, stops, draft)
        for each in mine:
            each.input = EncoderInput(sound)
        run(engine(ours, eos=stops), *mine)
        assert mine[0].stats.draft_error is None
        found.append([(list(one.output), one.ranked) for one in mine])
    assert found[0] == found[1] == found[2]
    assert mine[0].stats.num_accepted_draft_tokens > 0
    for (tokens, _), sequence in zip(found[0], out.sequences.tolist(), strict=True):
        assert sequence[len(prompt) :][: len(tokens)] == tokens
    scores = torch.tensor([ranked.score for _, ranked in found[0] if ranked is not None])
    torch.testing.assert_close(scores, out.sequences_scores, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("kind", ["bf16", "int8", "kv8", "torch"])
def test_drafts_change_no_bit_of_a_score(kind: str) -> None:
    model = small_models.torch_llama() if kind == "torch" else small_models.llama(kind)
    params = SamplingParams(beam_width=4, n=4, max_tokens=40)
    found = []
    for draft in ("none", "ngram", "recycling+lookup"):
        mine = requests(small_models.ids(24) * 2, params, [5], draft)
        run(engine(model, eos=[5], more={"recycling": RecyclingDrafter(64)}, kind="paged"), *mine)
        found.append([(list(one.output), one.ranked) for one in mine])
        if draft != "none":
            assert mine[0].stats.num_draft_tokens > 0
    assert found[0] == found[1] == found[2]
