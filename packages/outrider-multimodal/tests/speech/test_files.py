"""Sound files of every width, spectrograms as transformers makes them, and subtitles."""

from __future__ import annotations

import io
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.signal
from scipy.io import wavfile
from transformers import WhisperFeatureExtractor

from outrider.engine.stats import RequestStats
from outrider.errors import InvalidRequestError
from outrider_multimodal.speech import Segment, Transcript, audio, read_sound
from outrider_multimodal.speech.mel import log_mel
from tests.encoder_decoders import noise


def wav(values: Any, rate: int = 16000) -> bytes:
    file = io.BytesIO()
    wavfile.write(file, rate, values)
    return bytes(file.getvalue())


def of_24_bits(samples: Any) -> bytes:
    """scipy writes none: a header of 16 bits, corrected."""
    data = bytearray(wav((samples * 32767).astype(np.int16)))
    wide = (samples * (2**23 - 1)).astype("<i4").view(np.uint8).reshape(-1, 4)[:, :3].tobytes()
    data[28:32], data[32:34], data[34:36] = (48000).to_bytes(4, "little"), (3).to_bytes(2, "little"), b"\x18\x00"
    data[40:44], data[4:8] = len(wide).to_bytes(4, "little"), (36 + len(wide)).to_bytes(4, "little")
    return bytes(data[:44]) + bytes(wide)


def test_every_width_gives_the_same_sound() -> None:
    samples = noise(0.2)
    for data, tolerance in (
        (wav((samples * 127 + 128).round().astype(np.uint8)), 0.01),
        (wav((samples * 32767).round().astype(np.int16)), 1e-4),
        (of_24_bits(samples), 1e-5),
        (wav((samples * (2**31 - 128)).astype(np.int32)), 1e-6),
        (wav(samples), 0),
        (wav(samples.astype(np.float64)), 0),
        (wav(np.stack([samples, samples], axis=1)), 1e-6),
    ):
        np.testing.assert_allclose(read_sound(data).samples, samples, atol=tolerance)


def test_other_rates_are_resampled() -> None:
    times = np.arange(44100) / 44100
    found = read_sound(wav(np.sin(2 * np.pi * 440 * times).astype(np.float32), 44100))
    expected = np.sin(2 * np.pi * 440 * np.arange(16000) / 16000)
    np.testing.assert_allclose(found.samples[200:-200], expected[200:-200], atol=0.01)
    assert found.seconds == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"RIFF of something else", "is not a WAV file that can be read, and neither ffmpeg nor soundfile"),
        (wav(noise(0.1))[:30], "is not a WAV file"),
        (wav(np.zeros(0, np.float32)), "holds no samples"),
        (wav(np.full(100, np.nan, np.float32)), "holds samples that are not numbers"),
        (wav(noise(3.0)), "lasts longer than the 2 s"),
    ],
)
def test_what_is_no_sound_is_refused_by_name(data: bytes, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(audio, "_has_soundfile", lambda: False)
    with pytest.raises(InvalidRequestError, match=f"talk.wav {message}"):
        read_sound(data, name="talk.wav", most_seconds=2)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"none\.wav cannot be read: No such file"):
        read_sound(tmp_path / "none.wav")


def test_uploads_reach_ffmpeg_through_a_pipe_and_it_may_open_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "ffmpeg"
    program.write_text(
        f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > {tmp_path}/input\nhead -c 64000 /dev/zero\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(audio, "_has_soundfile", lambda: False)
    assert read_sound(b"OggS whatever").seconds == 1.0
    assert (tmp_path / "input").read_bytes() == b"OggS whatever"
    assert "-protocol_whitelist pipe -i pipe:0" in (tmp_path / "arguments").read_text()


@pytest.mark.parametrize("bins", [80, 128])
def test_spectrograms_are_those_of_transformers(bins: int) -> None:
    samples = noise(4.0)
    extractor = WhisperFeatureExtractor(feature_size=bins)
    expected = extractor(samples, sampling_rate=16000, return_tensors="pt").input_features[0]
    found = log_mel(samples, bins)[:, :3000]
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-4, rtol=0)


def _transcript() -> Transcript:
    def segment(start: float, end: float, text: str) -> Segment:
        return Segment(start, end, text, (), 0.0, -0.1, 1.0, 0.01, 0)

    segments = [segment(0, 2.5, " One & two."), segment(3661.04, 3662, " a --> <b>\n\n9")]
    return Transcript("en", "transcribe", 3670.0, segments, RequestStats())


def test_subtitles() -> None:
    found = _transcript()
    assert found.srt() == (
        "1\n00:00:00,000 --> 00:00:02,500\nOne & two.\n\n2\n01:01:01,040 --> 01:01:02,000\na -> <b> 9\n"
    )
    assert found.vtt() == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:02.500\nOne &amp; two.\n\n01:01:01.040 --> 01:01:02.000\na -> &lt;b> 9\n"
    )
    assert found.text == "One & two. a --> <b>\n\n9"


@pytest.mark.parametrize("rate", [*range(1_001, 1_000_000, 38_461), 31_999, 191_999, 999_983])
def test_no_rate_makes_a_long_filter(rate: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its taps are twenty times the larger of the two factors, whatever the length of the sound."""
    factors: list[tuple[int, int]] = []

    def resample_poly(samples: Any, up: int, down: int) -> Any:
        factors.append((up, down))
        return samples[: -(-len(samples) * up // down)]

    monkeypatch.setattr(scipy.signal, "resample_poly", resample_poly)
    read_sound(wav(np.zeros(1000, np.int16), rate))
    [(up, down)] = factors
    assert max(up, down) <= 16_001
    assert abs(rate / 16_000 * up / down - 1) < 4e-5


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 22_255, 24_000, 32_000, 44_056, 44_100, 48_000, 192_000])
def test_ordinary_rates_are_exact(rate: int) -> None:
    samples = noise(0.2)
    common = math.gcd(rate, 16_000)
    expected = scipy.signal.resample_poly(samples, 16_000 // common, rate // common)
    np.testing.assert_array_equal(read_sound(wav(samples, rate)).samples, expected)


@pytest.mark.parametrize("chunk", [b"abcd\0\0\0\0", b"data\0\0\0\0", b"LIST\2\0\0\0ab"])
def test_a_file_of_nothing_but_chunks_is_not_read_to_its_end(chunk: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.setattr(audio, "_has_soundfile", lambda: False)
    plain = wav(np.zeros(1600, np.int16))

    def of(count: int) -> bytes:
        body = plain[8:36] + chunk * count + plain[36:]
        return b"RIFF" + len(body).to_bytes(4, "little") + body

    assert read_sound(of(10)).seconds == pytest.approx(0.1)
    with pytest.raises(InvalidRequestError, match="is not a WAV file that can be read"):
        read_sound(of(100_000))


def test_ffmpeg_stops_where_a_sound_is_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes may hold days of silence, which would all be kept in memory before they are measured."""
    program = tmp_path / "ffmpeg"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/arguments\ncat > /dev/null\nhead -c 256000 /dev/zero\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(audio, "_has_soundfile", lambda: False)
    with pytest.raises(InvalidRequestError, match="lasts longer than the 3 s that are taken"):
        read_sound(b"OggS whatever", most_seconds=3)
    assert "-t 4.000 pipe:1" in (tmp_path / "arguments").read_text()
