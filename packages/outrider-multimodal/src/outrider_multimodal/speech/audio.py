"""Sound files as samples: WAV by our own reader, other formats by soundfile or ffmpeg, if installed."""

from __future__ import annotations

import io
import shutil
import subprocess
import warnings
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.errors import InvalidRequestError

RATE = 16_000  # samples per second of Whisper's input
_MOST_SECONDS = 24 * 3600
_RATES = range(1_000, 1_000_001)  # samples per second that a file may have
_MOST_PHASES = RATE
"""Phases of the resampling filter: its taps, 20 per phase, are computed before any sample is read."""
_MOST_READS = 1024  # of a WAV file, two per chunk; ordinary files have a few chunks
_MOST_CHANNELS = 64
_FFMPEG_SECONDS = 600  # after which a decoder is stopped

Samples = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Sound:
    """One channel at 16 kHz."""

    samples: Samples  # [n], from -1 to 1

    @property
    def seconds(self) -> float:
        return len(self.samples) / RATE


def read_sound(source: str | Path | bytes, *, name: str = "", most_seconds: float = _MOST_SECONDS) -> Sound:
    """Decode a file, or the bytes of one; several channels are averaged.

    Args:
        name: the name of bytes in messages.
        most_seconds: longer sounds are refused.

    Raises:
        InvalidRequestError: the source is unreadable, no sound, empty, or too long.
    """
    path = None if isinstance(source, bytes) else Path(source)
    name = name or (str(path) if path is not None else "the file")
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{name} cannot be read: {error.strerror}", param="file") from None
    if not data:
        raise InvalidRequestError(f"{name} is empty: give a file with sound", param="file")
    samples, rate = _decode(data, path, name, most_seconds)
    if len(samples) > most_seconds * rate:
        raise InvalidRequestError(
            f"{name} lasts longer than the {most_seconds:,.0f} s that are taken: cut it",
            param="file",
        )
    if not len(samples):
        raise InvalidRequestError(f"{name} holds no samples: give a file with sound", param="file")
    if not np.isfinite(samples).all():
        raise InvalidRequestError(f"{name} holds samples that are not numbers: write it again", param="file")
    return Sound(_at_rate(samples, rate))


def _decode(data: bytes, path: Path | None, name: str, most_seconds: float) -> tuple[Samples, int]:
    """Samples [n] of one channel, and their rate; of longer sounds, one second more than ``most_seconds``."""
    found = _wav(data) if data[:4] in (b"RIFF", b"RIFX", b"RF64") else None
    found = found or _by_soundfile(data, most_seconds) or _by_ffmpeg(data, path, most_seconds)
    if found is not None:
        return found
    if shutil.which("ffmpeg") is None and not _has_soundfile():
        raise InvalidRequestError(
            f"{name} is not a WAV file that can be read, and neither ffmpeg nor soundfile is installed: "
            "install ffmpeg, or convert the file to WAV",
            param="file",
        )
    raise InvalidRequestError(f"{name} is no sound that can be decoded: convert it to WAV", param="file")


class _FewReads(io.BytesIO):
    """A file with a bound on reads: a million empty chunks would take a minute."""

    _left = _MOST_READS

    def read(self, size: int | None = -1, /) -> bytes:
        self._left -= 1
        if self._left < 0:
            raise ValueError("it has too many chunks")
        return super().read(size)


def _wav(data: bytes) -> tuple[Samples, int] | None:
    """A WAV file of any width of PCM or float; None for another format."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # unknown chunks, and truncated files
            rate, values = wavfile.read(_FewReads(data))
    except Exception:  # noqa: BLE001  (a damaged file fails in many ways)
        return None
    return (_mono(_floats(values)), int(rate)) if int(rate) in _RATES else None


def _floats(values: NDArray[np.generic]) -> Samples:
    """Samples from -1 to 1; 24 bits arrive as the upper bits of 32."""
    if values.dtype == np.uint8:
        return (values.astype(np.float32) - np.float32(128)) / np.float32(128)
    if values.dtype.kind == "i":
        return values.astype(np.float32) / np.float32(2 ** (8 * values.dtype.itemsize - 1))
    return values.astype(np.float32)


def _mono(values: Samples) -> Samples:
    return values if values.ndim == 1 else np.asarray(values.mean(axis=1), np.float32)


def _has_soundfile() -> bool:
    try:
        import soundfile  # noqa: F401
    except (ImportError, OSError):  # the package or its library is missing
        return False
    return True


def _by_soundfile(data: bytes, most_seconds: float) -> tuple[Samples, int] | None:
    """By soundfile, up to the limit: compressed sound may decode to a thousand times its size."""
    if not _has_soundfile():
        return None
    import soundfile

    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate = int(file.samplerate)
            if rate not in _RATES or file.channels > _MOST_CHANNELS:
                return None
            values = file.read(frames=int((most_seconds + 1) * rate), dtype="float32")
    except Exception:  # noqa: BLE001  (whatever it does not know)
        return None
    return _mono(values), rate


def _by_ffmpeg(data: bytes, path: Path | None, most_seconds: float) -> tuple[Samples, int] | None:
    """Uploaded bytes reach ffmpeg through a pipe, its only input: a playlist could name any file."""
    program = shutil.which("ffmpeg")
    if program is None:
        return None
    source = ["-protocol_whitelist", "pipe", "-i", "pipe:0"] if path is None else ["-i", f"file:{path}"]
    end = ["-t", f"{most_seconds + 1:.3f}"]  # of the output: a small file may hold days of silence
    form = ["-f", "f32le", "-ac", "1", "-ar", str(RATE)]
    command = [program, "-nostdin", "-v", "error", *source, *form, *end, "pipe:1"]
    if path is None:
        command.remove("-nostdin")
    try:
        done = subprocess.run(
            command, input=data if path is None else b"", capture_output=True, timeout=_FFMPEG_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    if done.returncode or not done.stdout:
        return None
    return np.frombuffer(done.stdout, "<f4").astype(np.float32), RATE


def _at_rate(samples: Samples, rate: int) -> Samples:
    """``samples`` at 16 kHz.

    The cost grows with the seconds of sound alone: a rate without a simple ratio to 16 kHz
    is replaced by the nearest rate with one, at most 0.003 % away, less than the error of recorders' clocks.
    """
    ratio = Fraction(rate, RATE)
    if ratio.numerator > _MOST_PHASES:
        ratio = ratio.limit_denominator(_MOST_PHASES * RATE // rate)
    if ratio == 1:
        return np.ascontiguousarray(samples, np.float32)
    from scipy.signal import resample_poly

    resampled: Samples = resample_poly(samples, ratio.denominator, ratio.numerator).astype(np.float32)
    return resampled


HOP = 160
FRAMES_PER_SECOND = RATE // HOP
WINDOW_SECONDS = 30
WINDOW_FRAMES = WINDOW_SECONDS * FRAMES_PER_SECOND
