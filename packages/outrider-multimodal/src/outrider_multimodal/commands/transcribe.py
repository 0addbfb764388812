"""``outrider transcribe``: a sound file to text, subtitles or JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.shared import flags
from outrider.cli.shared import options as o
from outrider.cli.shared.config_file import Config
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig, SpeculationParams
from outrider.errors import InvalidRequestError
from outrider.utils.whole_files import write_text
from outrider.utils.working import working

if TYPE_CHECKING:
    from outrider_multimodal.speech import Segment, Transcript

_FORMATS = ("text", "srt", "vtt", "json")


_NO_TEXT = ("prediction", "max_seq_len", "session_dir", "session_gb")


@options_from(SpeculationParams, EngineConfig, but=(*o.MANY_REQUESTS, *_NO_TEXT))
def transcribe(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="WAV, or what ffmpeg or soundfile can read.")],
    model: Annotated[
        str, typer.Option("--model", "-m", help="A Whisper model: folder or hub id.", show_default=True)
    ] = "openai/whisper-base",
    language: Annotated[
        str | None, typer.Option(help="What is spoken, as en or English.", show_default="found out")
    ] = None,
    task: Annotated[str, typer.Option(help="transcribe, or translate (into English).")] = "transcribe",
    prompt: Annotated[str, typer.Option(help="Text that comes before: names, and how they are spelled.")] = "",
    form: Annotated[
        str,
        typer.Option(
            "--format", "-f", help="text, srt, vtt or json.", autocompletion=flags.completer(lambda: _FORMATS)
        ),
    ] = "text",
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write here, not to stdout.")] = None,
    no_timestamps: Annotated[bool, typer.Option("--no-timestamps", help="One segment each half minute.")] = False,
    no_context: Annotated[
        bool, typer.Option("--no-context", help="Each half minute by itself, not in the light of the text before.")
    ] = False,
    config: Config = None,
    *,
    given: Given,
    as_json: o.AsJson = False,
) -> None:
    """Transcribe speech in sound files, with times.

    Text appears as it is decoded. Progress, and the speedup by drafts, go to stderr.

    Example: outrider transcribe talk.wav --format srt > talk.srt
    """
    form = "json" if as_json else form
    if form not in _FORMATS:
        raise InvalidRequestError(f"format={form!r} is unknown: use {', '.join(_FORMATS)}", param="format")
    from outrider_multimodal.speech import TranscriptionOptions, read_sound

    options = TranscriptionOptions(
        language=language,
        task=task,  # type: ignore[arg-type]  # other values are refused there
        prompt=prompt,
        timestamps=not no_timestamps,
        condition_on_previous_text=not no_context,
    )
    sounds = [read_sound(file) for file in files]  # before a model is loaded
    llm = o.load(model, **o.engine(given), max_batch_size=1)
    out = _Output(form, output, several=len(files) > 1)
    for file, sound in zip(files, sounds, strict=True):
        with working(file.name, total=max(1, round(sound.seconds))) as done:
            said = 0

            def progress(seconds: float, done: Callable[..., None] = done) -> None:
                nonlocal said
                done(f"{seconds:.0f} s", round(seconds) - said)
                said = round(seconds)

            transcript = llm.transcribe(sound, options, on_segment=out.segment, on_progress=progress)
        out.whole(file, transcript)
        _report(file, transcript)


class _Output:
    """Writes text as it is decoded, or another format at the end of each file."""

    def __init__(self, form: str, path: Path | None, *, several: bool) -> None:
        self._form, self._path, self._several = form, path, several
        self._live = form == "text" and path is None
        if path is not None:
            write_text(path, "")  # so that an error is raised before the work
        self._text = ""

    def segment(self, segment: Segment) -> None:
        if self._live:
            typer.echo(segment.text.strip())

    def whole(self, file: Path, transcript: Transcript) -> None:
        if self._live:
            return
        text = _written(self._form, file, transcript)
        if self._path is None:
            typer.echo(text, nl=False)
        else:
            self._text += text
            write_text(self._path, self._text)


def _written(form: str, file: Path, transcript: Transcript) -> str:
    if form == "srt":
        return transcript.srt()
    if form == "vtt":
        return transcript.vtt()
    if form == "text":
        return transcript.text + "\n"
    return json.dumps(_as_json(file, transcript), ensure_ascii=False) + "\n"


def _as_json(file: Path, transcript: Transcript) -> dict[str, object]:
    return {"file": str(file), **transcript.as_dict(), "stats": transcript.stats.as_dict()}


def _report(file: Path, transcript: Transcript) -> None:
    from outrider.output import statistics

    head = f"{file.name}: {transcript.duration:.0f} s of sound, language {transcript.language}"
    typer.echo(f"{head} · {statistics(transcript.stats)}", err=True)
