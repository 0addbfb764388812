"""Sound files as samples: WAV by itself, everything else by way of soundfile or ffmpeg where one is there."""

from __future__ import annotations

import io
import shutil
import subprocess
import warnings
from dataclasses import dataclass
from math import gcd
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from outrider.errors import InvalidRequestError

__all__ = ["RATE", "Sound", "read_sound"]

RATE = 16_000  # samples a second that Whisper hears
_MOST_SECONDS = 24 * 3600
_FFMPEG_SECONDS = 600  # until a decoder that does not end is stopped

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
        name: what to call bytes in messages.
        most_seconds: longer sounds are refused.

    Raises:
        InvalidRequestError: it cannot be read, is no sound, is empty, or is too long.
    """
    path = None if isinstance(source, bytes) else Path(source)
    name = name or (str(path) if path is not None else "the file")
    try:
        data = source if isinstance(source, bytes) else Path(source).read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{name} cannot be read: {error.strerror}", param="file") from None
    if not data:
        raise InvalidRequestError(f"{name} is empty: give a file with sound", param="file")
    samples, rate = _decode(data, path, name)
    if len(samples) > most_seconds * rate:
        raise InvalidRequestError(
            f"{name} lasts {len(samples) / rate:,.0f} s, but at most {most_seconds:,.0f} s are taken: cut it",
            param="file",
        )
    if not len(samples):
        raise InvalidRequestError(f"{name} holds no samples: give a file with sound", param="file")
    if not np.isfinite(samples).all():
        raise InvalidRequestError(f"{name} holds samples that are not numbers: write it again", param="file")
    return Sound(_at_rate(samples, rate))


def _decode(data: bytes, path: Path | None, name: str) -> tuple[Samples, int]:
    """Samples [n] of one channel, and their rate."""
    found = _wav(data) if data[:4] in (b"RIFF", b"RIFX", b"RF64") else None
    found = found or _by_soundfile(data) or _by_ffmpeg(data, path)
    if found is not None:
        return found
    if shutil.which("ffmpeg") is None and not _has_soundfile():
        raise InvalidRequestError(
            f"{name} is not a WAV file that can be read, and neither ffmpeg nor soundfile is installed: "
            "install ffmpeg, or convert the file to WAV",
            param="file",
        )
    raise InvalidRequestError(f"{name} is no sound that can be decoded: convert it to WAV", param="file")


def _wav(data: bytes) -> tuple[Samples, int] | None:
    """All widths of PCM and floats."""
    from scipy.io import wavfile

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # chunks of no interest, and files cut short
            rate, values = wavfile.read(io.BytesIO(data))
    except Exception:  # noqa: BLE001  (a damaged file fails in many ways)
        return None
    if not 1_000 <= rate <= 1_000_000:
        return None
    return _mono(_floats(values)), int(rate)


def _floats(values: NDArray[np.generic]) -> Samples:
    """From -1 to 1; 24 bits come as the upper ones of 32."""
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
    except (ImportError, OSError):  # the package, or the library it needs
        return False
    return True


def _by_soundfile(data: bytes) -> tuple[Samples, int] | None:
    if not _has_soundfile():
        return None
    import soundfile

    try:
        values, rate = soundfile.read(io.BytesIO(data), dtype="float32")
    except Exception:  # noqa: BLE001  (whatever it does not know)
        return None
    return _mono(values), int(rate)


def _by_ffmpeg(data: bytes, path: Path | None) -> tuple[Samples, int] | None:
    """Uploaded bytes reach ffmpeg through a pipe, and it may open nothing else: a playlist could name any file."""
    program = shutil.which("ffmpeg")
    if program is None:
        return None
    source = ["-protocol_whitelist", "pipe", "-i", "pipe:0"] if path is None else ["-i", f"file:{path}"]
    command = [program, "-nostdin", "-v", "error", *source, "-f", "f32le", "-ac", "1", "-ar", str(RATE), "pipe:1"]
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
    if rate == RATE:
        return np.ascontiguousarray(samples, np.float32)
    from scipy.signal import resample_poly

    common = gcd(rate, RATE)
    resampled: Samples = resample_poly(samples, RATE // common, rate // common).astype(np.float32)
    return resampled
