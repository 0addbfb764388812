"""``outrider transcribe``: text as it is found, subtitles, JSON, and clear refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from scipy.io import wavfile
from typer.testing import CliRunner

from outrider.cli.main import app
from outrider.errors import InvalidRequestError, OutriderError
from tests import encoder_decoders


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(encoder_decoders.save(encoder_decoders.whisper(), tmp_path_factory.mktemp("whisper") / "tiny"))


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("sounds") / "talk.wav"
    wavfile.write(file, 16000, encoder_decoders.noise(2.0))
    return str(file)


def run(*arguments: str) -> tuple[str, str]:
    result = CliRunner().invoke(app, ["transcribe", *arguments, "--threads", "1", "--dtype", "float32"])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout, result.stderr


def test_every_format_holds_the_same_words(model: str, talk: str, tmp_path: Path) -> None:
    text, report = run(talk, "-m", model, "--language", "en")
    assert "talk.wav: 2 s of sound, language en" in report
    whole = json.loads(run(talk, "-m", model, "--language", "English", "--json", "--draft", "none")[0])
    assert whole["text"].split() == text.split()
    assert whole["stats"]["num_draft_tokens"] == 0
    file = tmp_path / "talk.srt"
    assert run(talk, "-m", model, "--language", "en", "-f", "srt", "-o", str(file))[0] == ""
    assert " --> " in file.read_text()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-f", "pdf"], "format='pdf' is unknown"),
        (["--task", "sing"], "task='sing' is unknown"),
        (["-o", "/nowhere/at/all"], "cannot write /nowhere/at/all: No such file"),
    ],
)
def test_what_cannot_be_is_refused(model: str, talk: str, arguments: list[str], message: str) -> None:
    with pytest.raises(OutriderError, match=message):
        run(talk, "-m", model, *arguments)


def test_a_file_that_is_no_sound_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequestError, match=r"none\.wav cannot be read"):
        run(str(tmp_path / "none.wav"), "-m", "no such model")
