"""The published recipe for sounds of any length: each window begins at the last complete segment's end."""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from outrider.config import SamplingParams
from outrider.engine.stats import RequestStats
from outrider_multimodal.encoder_decoder import EncoderInput
from outrider_multimodal.speech.audio import FRAMES_PER_SECOND, WINDOW_FRAMES, Sound
from outrider_multimodal.speech.options import TranscriptionOptions
from outrider_multimodal.speech.rules import SpeechConstraint
from outrider_multimodal.speech.transcript import Segment, Transcript
from outrider_multimodal.speech.vocabulary import SpeechVocabulary
from outrider_multimodal.speech.windows import cut

_FORGET_ABOVE = 0.5  # texts of higher temperatures are no context for the next window

Spectrogram = NDArray[np.float32]
"""float32 [mel bins, frames]."""


@dataclass(frozen=True)
class Decode:
    """One request to decode."""

    prompt: tuple[int, ...]
    params: SamplingParams
    constraint: SpeechConstraint | None  # None: one token, limited by ``params``
    window: EncoderInput


@dataclass(frozen=True)
class Decoded:
    """The result of a ``Decode``."""

    token_ids: Sequence[int]
    logprob: float  # of all tokens, before any rule
    stats: RequestStats


Steps = Generator[Decode, Decoded, Transcript]


@dataclass
class _Window:
    """The output of one window at one temperature."""

    tokens: list[int]
    text: str
    temperature: float
    avg_logprob: float
    no_speech_prob: float
    compression_ratio: float = field(init=False)

    def __post_init__(self) -> None:
        data = self.text.encode()
        self.compression_ratio = len(data) / len(zlib.compress(data))


class Transcription:
    """The transcription of a sound; its ``steps`` ask for the tokens that it needs.

    Args:
        bins: mel bands of the model's input.
        context: the most tokens of prompt and output together.
        encode: text to token ids; ``decode``: the inverse.
        on_segment: called with each decoded segment.
        on_progress: called with the seconds of sound that are done.
    """

    def __init__(
        self,
        sound: Sound,
        options: TranscriptionOptions,
        vocabulary: SpeechVocabulary,
        *,
        bins: int,
        context: int,
        encode: Callable[[str], list[int]],
        decode: Callable[[Sequence[int]], str],
        on_segment: Callable[[Segment], None] = lambda segment: None,
        on_progress: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._sound, self._o, self._v, self._bins, self._context = sound, options, vocabulary, bins, context
        self._decode, self._on_segment, self._on_progress = decode, on_segment, on_progress
        self._language = None if options.language is None else vocabulary.language(options.language)
        if not vocabulary.languages:
            self._language = "en"
        self._past = encode(" " + options.prompt.strip()) if options.prompt.strip() else []
        self._segments: list[Segment] = []
        self._stats = RequestStats()

    def steps(self) -> Steps:
        """Yield requests to decode, receive their results, and return the transcript."""
        from outrider_multimodal.speech.mel import log_mel  # torch

        mel = log_mel(self._sound.samples, self._bins)
        frames = mel.shape[1] - WINDOW_FRAMES  # without the silence after the sound
        seek = 0
        while seek < frames:
            window = EncoderInput(_window(mel, seek))
            if self._language is None:
                self._language = yield from self._detect(window)
            length = min(WINDOW_FRAMES, frames - seek)
            found = yield from self._with_fallback(window)
            advance = length
            if not self._silent(found):
                advance = self._keep(found, seek, length)
            seek += advance
            self._on_progress(min(seek, frames) / FRAMES_PER_SECOND)
        assert self._language is not None or not frames
        return Transcript(self._language or "en", self._o.task, self._sound.seconds, self._segments, self._stats)

    def _keep(self, found: _Window, seek: int, length: int) -> int:
        """Keep the segments of a window; return the frames to advance."""
        if not self._o.condition_on_previous_text or found.temperature > _FORGET_ABOVE:
            self._past = []
        pieces, advance = cut(found.tokens, self._v, length)
        for piece in pieces:
            text = self._text(piece.tokens)
            if not text.strip() or piece.start == piece.end:
                continue
            segment = Segment(
                start=seek / FRAMES_PER_SECOND + piece.start,
                end=min(seek / FRAMES_PER_SECOND + piece.end, self._sound.seconds),
                text=text,
                token_ids=piece.tokens,
                temperature=found.temperature,
                avg_logprob=found.avg_logprob,
                compression_ratio=found.compression_ratio,
                no_speech_prob=found.no_speech_prob,
                seek=seek,
            )
            self._segments.append(segment)
            self._on_segment(segment)
            if self._o.condition_on_previous_text and found.temperature <= _FORGET_ABOVE:
                self._past += piece.tokens
        return advance

    def _silent(self, found: _Window) -> bool:
        o = self._o
        if o.no_speech_threshold is None or found.no_speech_prob <= o.no_speech_threshold:
            return False
        return o.log_prob_threshold is None or found.avg_logprob <= o.log_prob_threshold

    def _with_fallback(self, window: EncoderInput) -> Generator[Decode, Decoded, _Window]:
        """The window at the first temperature whose text is neither repetitive nor unlikely."""
        o = self._o
        past = self._context // 2 - 1
        before = (self._v.previous, *self._past[-past:], self._v.start) if self._past else (self._v.start,)
        no_speech = 0.0
        if o.no_speech_threshold is not None:
            no_speech = math.exp((yield self._one_of(before, [self._v.no_speech], window)).logprob)
        prompt = (*before, *self._task())
        found: _Window | None = None
        for temperature in o.temperatures:
            params = SamplingParams(
                max_tokens=min(self._context // 2, self._context - len(prompt)),
                temperature=temperature,
                seed=o.seed,
                logprobs=0,
            )
            constraint = SpeechConstraint(self._v, timestamps=o.timestamps)
            decoded = yield Decode(prompt, params, constraint, window)
            self._count(decoded.stats)
            tokens = [token for token in decoded.token_ids if token != self._v.end]
            text = self._text(tokens).strip()
            mean = decoded.logprob / (len(tokens) + 1)
            found = _Window(tokens, text, temperature, mean, no_speech)
            if not self._doubtful(found):
                break
        assert found is not None
        return found

    def _doubtful(self, found: _Window) -> bool:
        o = self._o
        if self._silent(found):
            return False
        if o.compression_ratio_threshold is not None and found.compression_ratio > o.compression_ratio_threshold:
            return True
        return o.log_prob_threshold is not None and found.avg_logprob < o.log_prob_threshold

    def _detect(self, window: EncoderInput) -> Generator[Decode, Decoded, str]:
        decoded = yield self._one_of((self._v.start,), sorted(self._v.languages.values()), window)
        return next(code for code, token in self._v.languages.items() if token == decoded.token_ids[0])

    def _one_of(self, prompt: tuple[int, ...], tokens: Sequence[int], window: EncoderInput) -> Decode:
        params = SamplingParams(max_tokens=1, temperature=0.0, allowed_token_ids=tuple(tokens), logprobs=0)
        return Decode(prompt, params, None, window)

    def _task(self) -> tuple[int, ...]:
        v = self._v
        task: tuple[int, ...] = ()
        if v.languages and self._language is not None:
            task = (v.languages[self._language], v.translate if self._o.task == "translate" else v.transcribe)
        return task if self._o.timestamps else (*task, v.no_timestamps)

    def _text(self, tokens: Sequence[int]) -> str:
        return self._decode([token for token in tokens if token < self._v.end])

    def _count(self, stats: RequestStats) -> None:
        """Add one request's counts to the transcript's."""
        self._stats.add(stats)


def _window(mel: Spectrogram, seek: int) -> Spectrogram:
    part = mel[:, seek : seek + WINDOW_FRAMES]
    return np.pad(part, ((0, 0), (0, WINDOW_FRAMES - part.shape[1])))
