"""Sounds to text: drafts change no token, sounds never mix, and the recipe's windows, rules and fall-backs hold."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.engine.stats import RequestStats
from outrider.errors import ConfigError, IncompatibleDraftError, InvalidRequestError
from outrider.verify.constraint import RowConstraint
from outrider_multimodal.encoder_decoder import EncoderInput
from outrider_multimodal.speech import (
    Decode,
    Decoded,
    Sound,
    SpeechVocabulary,
    Transcript,
    Transcription,
    TranscriptionOptions,
)
from outrider_multimodal.speech.rules import SpeechConstraint
from tests import encoder_decoders as e
from tests.model_folders import model_folder

OPTIONS = TranscriptionOptions(
    language="en", temperatures=(0.0,), compression_ratio_threshold=None, log_prob_threshold=None,
    no_speech_threshold=None,
)  # fmt: skip
SOUNDS: list[str | Path | bytes | Sound] = [
    Sound(e.noise(seconds, seed)) for seed, seconds in enumerate((31.0, 5.0, 3.0))
]


def tokens(transcript: Transcript) -> list[tuple[int, ...]]:
    return [segment.token_ids for segment in transcript.segments]


def plain(llm: LLM, sound: str | Path | bytes | Sound, options: TranscriptionOptions = OPTIONS) -> Transcript:
    found: Transcript = llm.transcribe(sound, options, speculation=SpeculationParams(draft="none"))
    return found


@pytest.mark.parametrize(
    ("draft", "temperature"),
    [("model", 0.0), ("model", 0.7), ("suffix+recycling", 0.0), ("suffix+recycling", 0.7), ("layer_skip", 0.7)],
)
def test_drafts_change_no_token(whisper: LLM, draft: str, temperature: float) -> None:
    options = TranscriptionOptions(
        language="en", temperatures=(temperature,), no_speech_threshold=None, log_prob_threshold=None,
        compression_ratio_threshold=None, seed=5,
    )  # fmt: skip
    expected = plain(whisper, SOUNDS[1], options)
    found = whisper.transcribe(SOUNDS[1], options, speculation=SpeculationParams(draft=draft, spec_length=3))
    assert tokens(found) == tokens(expected)
    assert sum(map(len, tokens(expected))) > 10
    assert found.stats.num_draft_tokens > 0
    if draft == "model":
        assert found.stats.num_accepted_draft_tokens > 0


def test_trees_change_no_token(whisper: LLM) -> None:
    found = whisper.transcribe(
        SOUNDS[1], OPTIONS, speculation=SpeculationParams(draft="model", spec_length=3, tree=(2, 2, 1))
    )
    assert tokens(found) == tokens(plain(whisper, SOUNDS[1]))
    assert found.stats.num_draft_tokens > 0


def test_sounds_side_by_side_are_those_one_by_one(whisper: LLM) -> None:
    together = whisper.transcribe(SOUNDS, OPTIONS)
    alone = [plain(whisper, sound) for sound in SOUNDS]
    assert [tokens(each) for each in together] == [tokens(each) for each in alone]
    assert len({tuple(tokens(each)) for each in alone}) == len(SOUNDS)  # they do say different things


def test_the_target_as_its_own_draft_is_always_right(whisper_folder: Path) -> None:
    """A draft model that did not hear the sound, or heard another, would not be."""
    given: dict[str, Any] = {"dtype": "float32", "draft_dtype": "float32", "spec_length": 4}
    with LLM(str(whisper_folder), draft_model=str(whisper_folder), **given) as llm:
        transcripts = llm.transcribe(SOUNDS, OPTIONS)
        assert len(transcripts) == len(SOUNDS)
        for found in transcripts:
            assert found.stats.num_draft_tokens == found.stats.num_accepted_draft_tokens > 0


def test_a_draft_model_that_cannot_pay_is_never_asked_unless_its_length_is_given(tmp_path: Path) -> None:
    """With ``spec_length="auto"``, from the first request on: dear ones draft nothing, and cheap ones do."""
    models = {
        "target": e.whisper(decoder_layers=8),
        "dear": e.whisper(seed=1, encoder_layers=4, decoder_layers=12),
        "cheap": e.whisper(decoder_layers=1),
    }
    models["cheap"].model.encoder = models["target"].model.encoder  # one run serves both
    folders = {name: str(e.save(model, tmp_path / name)) for name, model in models.items()}
    for name in ("dear", "cheap"):
        with LLM(folders["target"], draft_model=folders[name], dtype="float32", draft_dtype="float32") as llm:
            found = llm.transcribe(SOUNDS[1], OPTIONS)
            assert (found.stats.num_draft_tokens > 0) is (name == "cheap")
            fixed = llm.transcribe(SOUNDS[1], OPTIONS, speculation=SpeculationParams(draft="model", spec_length=2))
            assert fixed.stats.num_draft_tokens > 0
            assert tokens(fixed) == tokens(found)


@pytest.mark.parametrize("kind", ["contiguous", "paged"])
@pytest.mark.usefixtures("small_blocks")
def test_what_is_cached_of_one_sound_is_not_found_by_another(whisper_folder: Path, kind: Any) -> None:
    prompt = [e.START, e.EN, e.TRANSCRIBE, *range(40, 80)]
    params = SamplingParams(max_tokens=4, temperature=0)
    with LLM(str(whisper_folder), draft="none", kv_cache=kind, dtype="float32") as llm:

        def run(sound: EncoderInput) -> tuple[list[int], int]:
            request = llm._input_processor.request(prompt, params, None, given=sound)
            (output,) = llm._run([request])
            return output.token_ids, output.stats.cached_prompt_tokens

        first, cached = run(EncoderInput(e.mel(1)))
        assert cached == 0
        again, cached = run(EncoderInput(e.mel(1)))
        assert cached > 20  # the same sound, though another object
        assert again == first
        other, cached = run(EncoderInput(e.mel(2)))
        assert cached == 0
    with LLM(str(whisper_folder), draft="none", prefix_reuse=False, dtype="float32") as llm:
        assert run(EncoderInput(e.mel(2)))[0] == other


def test_a_refused_request_names_what_is_missing(whisper: LLM, tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match="whisper needs a sound: use transcribe"):
        whisper.generate("text")
    with LLM(str(model_folder(tmp_path / "text")), draft="none") as llm:
        with pytest.raises(InvalidRequestError, match="hears no sound"):
            llm.transcribe(SOUNDS[2])
        request = llm._input_processor.request([5], SamplingParams(), None, given=EncoderInput(e.mel()))
        with pytest.raises(InvalidRequestError, match="has no encoder"):
            llm.engine.check(request)
    with pytest.raises(InvalidRequestError, match=r"language='klingon'.*de, en, fr"):
        whisper.transcribe(SOUNDS[2], TranscriptionOptions(language="klingon"))
    assert not whisper.engine.busy


def test_draft_models_that_cannot_hear_the_same_are_refused(whisper_folder: Path, tmp_path: Path) -> None:
    other = e.save(e.whisper(num_mel_bins=128), tmp_path / "other")
    with pytest.raises(IncompatibleDraftError, match="128 mel bins"):
        LLM(str(whisper_folder), draft_model=str(other))
    with pytest.raises(ConfigError, match="kv_cache_dtype='int8'"):
        LLM(str(whisper_folder), kv_cache_dtype="int8")


def test_greedy_tokens_are_those_of_transformers_rules(whisper: LLM, whisper_folder: Path) -> None:
    """The same model and the same rules, by transformers' own code."""
    from transformers import WhisperForConditionalGeneration

    reference = WhisperForConditionalGeneration.from_pretrained(whisper_folder).eval()
    config = reference.generation_config
    config.no_timestamps_token_id, config.max_initial_timestamp_index = e.NO_TIMESTAMPS, 50
    prompt = [e.START, e.EN, e.TRANSCRIBE]
    rules = [
        SuppressTokensLogitsProcessor(e.SUPPRESSED, device="cpu"),
        SuppressTokensAtBeginLogitsProcessor(e.SUPPRESSED_FIRST, begin_index=3, device="cpu"),
        WhisperTimeStampLogitsProcessor(config, begin_index=3),
    ]
    vocabulary = whisper.transcriber.vocabulary
    stamps = 0
    for seed in range(3):
        sound, found = e.mel(seed), list(prompt)
        with torch.inference_mode():
            while len(found) < 30 and found[-1] != e.END:
                scores = reference(sound[None], decoder_input_ids=torch.tensor([found])).logits[:, -1]
                for rule in rules:
                    scores = rule(torch.tensor([found]), scores)
                found.append(int(scores.argmax()))
        params = SamplingParams(max_tokens=27, temperature=0)
        request = whisper._input_processor.request(
            prompt, params, None, given=EncoderInput(sound), constraint=SpeechConstraint(vocabulary)
        )
        assert whisper._run([request])[0].token_ids == found[3:]
        stamps += sum(token >= e.FIRST_STAMP for token in found)
    assert stamps > 5


@pytest.mark.parametrize("seed", range(4))
def test_the_constraint_allows_what_transformers_rules_allow(whisper: LLM, seed: int) -> None:
    generator = np.random.default_rng(seed)
    rules = SpeechConstraint(whisper.transcriber.vocabulary)
    assert isinstance(rules, RowConstraint)
    from transformers import GenerationConfig

    config = GenerationConfig(
        no_timestamps_token_id=e.NO_TIMESTAMPS, eos_token_id=e.END, bos_token_id=e.END, max_initial_timestamp_index=50
    )
    theirs = [
        SuppressTokensLogitsProcessor(e.SUPPRESSED, device="cpu"),
        SuppressTokensAtBeginLogitsProcessor(e.SUPPRESSED_FIRST, begin_index=1, device="cpu"),
        WhisperTimeStampLogitsProcessor(config, begin_index=1),
    ]
    output: list[int] = []
    for _ in range(40):
        logits = generator.standard_normal(e.SPEECH_VOCAB).astype(np.float32) * 3
        logits[e.FIRST_STAMP :] -= generator.choice([2.0, 9.0])
        expected = torch.from_numpy(logits.copy())[None]
        for rule in theirs:
            expected = rule(torch.tensor([[e.START, *output]]), expected)
        mask = rules.mask(output)
        assert mask is not None
        logits[~mask] = -np.inf
        rules.forbid_(logits, output)
        assert ((logits > -np.inf) == (expected[0].numpy() > -np.inf)).all()
        output.append(int(logits.argmax()))
        if output[-1] == e.END:
            break
    assert rules.mask([*output, e.END]) is None


Script = Callable[[Decode], tuple[Sequence[int], float]]


def scripted(
    vocabulary: SpeechVocabulary, seconds: float, script: Script, **options: Any
) -> tuple[Transcript, list[Decode]]:
    """A transcription whose decoding is what ``script`` says: tokens, and their log-probability."""
    asked: list[Decode] = []
    steps: Generator[Decode, Decoded, Transcript] = Transcription(
        Sound(e.noise(seconds)), TranscriptionOptions(**options), vocabulary, bins=80, context=64,
        encode=lambda text: list(text.encode()), decode=lambda ids: bytes(ids).decode(),
    ).steps()  # fmt: skip
    try:
        wanted = next(steps)
        while True:
            asked.append(wanted)
            ids, logprob = script(wanted)
            wanted = steps.send(Decoded(ids, logprob, RequestStats()))
    except StopIteration as done:
        return done.value, asked


def stamp(seconds: float) -> int:
    return e.FIRST_STAMP + round(seconds / 0.02)


def said(text: str, start: float, end: float) -> list[int]:
    return [stamp(start), *text.encode(), stamp(end)]


@pytest.fixture(scope="module")
def vocabulary(whisper: LLM) -> SpeechVocabulary:
    found: SpeechVocabulary = whisper.transcriber.vocabulary
    return found


def test_windows_go_on_where_the_last_whole_segment_ended(vocabulary: SpeechVocabulary) -> None:
    windows = iter([[*said(" one", 0, 10), *said(" two", 10, 24), stamp(24), *b" thr"], said(" three", 1, 6)])

    def script(wanted: Decode) -> tuple[Sequence[int], float]:
        return ([e.NO_SPEECH], -9.0) if wanted.constraint is None else ([*next(windows), e.END], -1.0)

    found, asked = scripted(vocabulary, 45, script, language="en")
    assert [(s.start, s.end, s.text) for s in found.segments] == [
        (0, 10, " one"), (10, 24, " two"), (24, 30, " three")
    ]  # fmt: skip
    assert [s.seek for s in found.segments] == [0, 0, 2400]
    decodes = [each for each in asked if each.constraint is not None]
    past = [*said(" one", 0, 10), *said(" two", 10, 24)]
    task = (e.EN, e.TRANSCRIBE)
    assert decodes[0].prompt == (e.START, *task)
    assert decodes[1].prompt == (e.PREVIOUS, *past, e.START, *task)
    assert found.text == "one two three"


def test_silence_is_skipped_and_doubtful_text_is_drawn_again(vocabulary: SpeechVocabulary) -> None:
    """First window: nobody speaks. Second: it repeats itself, until the temperature is 0.4."""

    def script(wanted: Decode) -> tuple[Sequence[int], float]:
        seen_windows.append(wanted.window)
        second = wanted.window is not seen_windows[0]
        if wanted.constraint is None:
            return [e.NO_SPEECH], -9.0 if second else -0.1
        if not second:
            return [*said(" hm", 0, 2), e.END], -30.0
        doubtful = wanted.params.temperature < 0.3
        return [*said(" la" * 60 if doubtful else " la", 0, 2), e.END], -1.0

    seen_windows: list[EncoderInput] = []
    found, asked = scripted(vocabulary, 50, script, language="en")
    assert [(s.text, s.temperature, s.start) for s in found.segments] == [(" la", 0.4, 30)]
    temperatures = [each.params.temperature for each in asked if each.constraint is not None]
    assert temperatures == [0.0, 0.0, 0.2, 0.4]


def test_language_task_and_prompt_reach_the_model(vocabulary: SpeechVocabulary) -> None:
    def script(wanted: Decode) -> tuple[Sequence[int], float]:
        if wanted.constraint is None:
            assert wanted.params.allowed_token_ids is not None
            return ([e.DE], -0.1) if e.DE in wanted.params.allowed_token_ids else ([e.NO_SPEECH], -9.0)
        return [*b" hallo", e.END], -1.0

    found, asked = scripted(vocabulary, 5, script, task="translate", prompt="Names", timestamps=False)
    assert found.language == "de"
    assert asked[-1].prompt == (e.PREVIOUS, *b" Names", e.START, e.DE, e.TRANSLATE, e.NO_TIMESTAMPS)
    assert [(s.start, s.end) for s in found.segments] == [(0, 5)]
