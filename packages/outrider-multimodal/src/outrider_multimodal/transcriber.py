"""Transcription in an engine: the recipe's requests to decode, as the engine's requests."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import TypedDict, cast

from outrider.config import SpeculationParams
from outrider.config.request import Scheduling
from outrider.engine.loop import EngineLoop
from outrider.engine.request import Request, StepOutput
from outrider.errors import InvalidRequestError
from outrider.input_processor import InputProcessor
from outrider.models.base import Model
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.verify.constraint import Constraint
from outrider_multimodal.encoder_decoder import is_encoder_decoder
from outrider_multimodal.speech import (
    Decode,
    Decoded,
    Segment,
    Sound,
    SpeechVocabulary,
    Transcript,
    Transcription,
    TranscriptionOptions,
    read_sound,
)

SoundSource = str | Path | bytes | Sound

RequestSteps = Generator[Request, list[StepOutput], Transcript]
"""Yields the next request to run, receives its steps, and returns the transcript."""

_NO_DRAFTS = SpeculationParams(draft="none")


class Transcribing(TypedDict, total=False):
    """Callbacks for segments and progress, and options of the requests."""

    on_segment: Callable[[Segment], None]
    on_progress: Callable[[float], None]  # seconds of the sound that are done
    speculation: SpeculationParams | None
    scheduling: Scheduling


def hearing(model: object, name: str) -> tuple[int, int]:
    """Mel bands of a model's input, and tokens of its context; reads no file.

    Raises ``InvalidRequestError`` if the model takes no sound.
    """
    if not is_encoder_decoder(model) or model.config.mel_bins is None:
        raise InvalidRequestError(f"{name} hears no sound: transcribe with a Whisper model", param="model")
    return model.config.mel_bins, model.config.max_seq_len


class Transcriber:
    """Transcribes with one model that takes sound."""

    def __init__(self, folder: Path, model: Model, tokenizer: Tokenizer, processor: InputProcessor) -> None:
        """``folder``: of the model. Raises ``InvalidRequestError`` if the model takes no sound."""
        self._bins, self._context = hearing(model, tokenizer.name)
        self._tokenizer, self._processor = tokenizer, processor
        self.vocabulary = SpeechVocabulary.of(folder, tokenizer)

    def run(
        self, sounds: Sequence[SoundSource], options: TranscriptionOptions | None, more: Transcribing, loop: EngineLoop
    ) -> list[Transcript]:
        """Transcribe sounds side by side; all files are read before the first begins."""
        read = [each if isinstance(each, Sound) else read_sound(each) for each in sounds]
        return _run_side_by_side([self.steps(each, options or TranscriptionOptions(), more) for each in read], loop)

    def steps(self, sound: Sound, options: TranscriptionOptions, more: Transcribing) -> RequestSteps:
        """The requests of one transcription, in order."""
        recipe = Transcription(
            sound,
            options,
            self.vocabulary,
            bins=self._bins,
            context=self._context,
            encode=lambda text: self._tokenizer.encode(text, add_special_tokens=False),
            decode=self._tokenizer.decode,
            on_segment=more.get("on_segment", lambda segment: None),
            on_progress=more.get("on_progress", lambda seconds: None),
        )
        return self._as_requests(recipe.steps(), more)

    def _as_requests(self, recipe: Generator[Decode, Decoded, Transcript], more: Transcribing) -> RequestSteps:
        try:
            wanted = next(recipe)
            while True:
                request = self._request(wanted, more)
                given = yield request
                if request.error is not None:
                    raise request.error
                ids = [step.token_id for step in given]
                logprob = sum((step.logprobs or {}).get(step.token_id, 0.0) for step in given)
                wanted = recipe.send(Decoded(ids, logprob, request.stats))
        except StopIteration as done:
            return cast("Transcript", done.value)

    def _request(self, wanted: Decode, more: Transcribing) -> Request:
        probes = wanted.constraint is None  # one token, for its probability only
        return self._processor.request(
            list(wanted.prompt),
            wanted.params,
            _NO_DRAFTS if probes else more.get("speculation"),
            given=wanted.window,
            constraint=cast("Constraint | None", wanted.constraint),
            **more.get("scheduling", {}),
        )


def _run_side_by_side(transcriptions: Sequence[RequestSteps], loop: EngineLoop) -> list[Transcript]:
    """Run several transcriptions in one engine, each with one request at a time."""
    found: dict[int, Transcript] = {}
    running: dict[int, Request] = {}

    def go_on(index: int, given: list[StepOutput] | None) -> None:
        steps = transcriptions[index]
        try:
            request = next(steps) if given is None else steps.send(given)
        except StopIteration as done:
            found[index] = done.value
            return
        loop.start(request)
        running[index] = request

    try:
        for index in range(len(transcriptions)):
            go_on(index, None)
        while running:
            loop.step()
            for index, request in list(running.items()):
                if request.finish_reason is not None or request.error is not None:
                    del running[index]
                    go_on(index, loop.finish(request))
    finally:
        for request in running.values():
            loop.finish(request)
    return [found[index] for index in range(len(transcriptions))]
