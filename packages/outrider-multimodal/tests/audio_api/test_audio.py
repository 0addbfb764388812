"""``/v1/audio``: OpenAI's client, every form of answer, and files that are none."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from scipy.io import wavfile

from outrider import LLM
from outrider_multimodal.audio_api.form import parse_form
from outrider_server.http.errors import ApiError
from tests import encoder_decoders
from tests.server.live import Live, events


def sound(seconds: float = 2.0) -> bytes:
    file = io.BytesIO()
    wavfile.write(file, 16000, encoder_decoders.noise(seconds))
    return file.getvalue()


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = encoder_decoders.save(encoder_decoders.whisper(), tmp_path_factory.mktemp("whisper") / "tiny")
    llm = LLM(str(folder), draft="suffix", max_batch_size=2, threads=1, dtype="float32")
    with Live(llm, "whisper-1", max_audio_bytes=1 << 20, max_audio_seconds=9.0, max_body_bytes=1 << 16) as server:
        yield server


@pytest.fixture
def client(heard: Live) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{heard.url}/v1", api_key="none", max_retries=0)


def ask(server: Live, route: str = "transcriptions", data: bytes | None = None, **fields: Any) -> httpx.Response:
    form = {name: str(value) for name, value in fields.items()}
    file = {"file": ("talk.wav", sound() if data is None else data)}
    return server.client.post(f"/v1/audio/{route}", data=form, files=file)


def test_the_official_client_reads_every_form(heard: Live, client: openai.OpenAI) -> None:
    def transcribe(**options: Any) -> Any:
        return client.audio.transcriptions.create(
            model="whisper-1", file=("talk.wav", sound()), language="en", temperature=0.5, **options
        )

    text = transcribe().text
    whole = transcribe(response_format="verbose_json", timestamp_granularities=["segment"])
    assert whole.text == text
    assert whole.duration == 2.0
    assert whole.language == "en"
    assert "".join(each.text for each in whole.segments).strip() == text
    assert transcribe(response_format="text") == text + "\n"
    assert transcribe(response_format="vtt").startswith("WEBVTT\n\n00:00:")
    assert transcribe(response_format="srt").startswith("1\n00:00:")
    assert heard.idle()


def test_the_official_client_streams(client: openai.OpenAI) -> None:
    with client.audio.transcriptions.create(
        model="whisper-1", file=("talk.wav", sound(8)), language="en", stream=True
    ) as stream:
        found = list(stream)
    assert found[-1].type == "transcript.text.done"
    deltas = [each.delta for each in found if each.type == "transcript.text.delta"]
    assert "".join(deltas).strip() == found[-1].text


def test_translations_and_an_unknown_language(heard: Live, client: openai.OpenAI) -> None:
    assert isinstance(client.audio.translations.create(model="whisper-1", file=("talk.wav", sound())).text, str)
    found = ask(heard, response_format="verbose_json").json()
    assert found["language"] in ("en", "de", "fr")
    assert ask(heard, "translations", response_format="verbose_json").json()["task"] == "translate"


@pytest.mark.parametrize(
    ("fields", "status", "message", "param"),
    [
        ({"data": b"no sound"}, 400, "talk.wav is not a WAV file", "file"),
        ({"data": b""}, 400, "talk.wav is empty", "file"),
        ({"data": sound(10)}, 400, "talk.wav lasts longer than the 9 s", "file"),
        ({"data": bytes(2 << 20)}, 413, "larger than 1048576 bytes", None),
        ({"language": "klingon"}, 400, "language='klingon' is not known", "language"),
        ({"response_format": "diarized_json"}, 400, "response_format='diarized_json' is not valid", "response_format"),
        ({"temperature": 3}, 400, "temperature='3' is not valid", "temperature"),
        ({"timestamp_granularities[]": "word"}, 400, "'word' is not supported: use segment", "timestamp_granularities"),
        ({"stream": "true", "response_format": "srt"}, 400, "response_format=srt is not streamed", "response_format"),
        ({"chunking_strategy": "auto"}, 400, "chunking_strategy is not a field", "chunking_strategy"),
        ({"model": "other"}, 404, "'other' is not served", "model"),
    ],
)
def test_bad_requests_get_one_clear_error(
    heard: Live, fields: dict[str, Any], status: int, message: str, param: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    answer = ask(heard, **fields)
    assert answer.status_code == status, answer.text
    assert message in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == param
    assert heard.idle()


def test_other_bodies_are_refused(heard: Live) -> None:
    post = heard.client.post
    assert post("/v1/audio/transcriptions", json={"file": "x"}).status_code == 415
    assert "file is missing" in post("/v1/audio/transcriptions", files={"model": (None, "whisper-1")}).text
    broken = post(
        "/v1/audio/transcriptions", content=b"--b\r\nx", headers={"Content-Type": "multipart/form-data; boundary=b"}
    )
    assert (broken.status_code, "breaks off" in broken.text) == (400, True)
    assert "needs a sound" in post("/v1/completions", json={"prompt": "a"}).text
    assert post("/v1/chat/completions", json={"messages": [], "pad": "x" * (1 << 17)}).status_code == 413


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://elsewhere.example"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-origin"}, 400),
    ],
)
def test_pages_of_other_sites_may_not_send_forms(heard: Live, headers: dict[str, str], status: int) -> None:
    """They could without asking: a form needs no preflight."""
    answer = heard.client.post("/v1/audio/transcriptions", files={"model": (None, "whisper-1")}, headers=headers)
    assert answer.status_code == status


def test_a_text_model_says_that_it_hears_nothing(live: Live) -> None:
    answer = ask(live)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "model")
    assert "hears no sound" in answer.text


def test_a_stream_is_framed_as_the_others(heard: Live) -> None:
    form, file = {"stream": "true", "language": "en"}, {"file": ("talk.wav", sound())}
    with heard.client.stream("POST", "/v1/audio/transcriptions", data=form, files=file) as answer:
        assert events(answer.iter_text())[-1]["type"] == "transcript.text.done"


def test_forms_are_taken_apart_exactly() -> None:
    data = bytes(np.random.default_rng(0).integers(0, 256, 5000, dtype=np.uint8)) + b"\r\n--not it\r\n\r\n"
    head = b'Content-Disposition: form-data; name="file"; filename="a \xc3\xa9.wav"\r\nContent-Type: audio/wav'
    body = b"--B\r\n" + head + b"\r\n\r\n" + data + b"\r\n--B\r\n"
    body += b"content-disposition: form-data; name=model\r\n\r\nm\xc3\xb6\r\n--B--\r\n"
    form = parse_form(body, b"B")
    assert form.files["file"][1] == data
    assert form.fields == {"model": ["mö"]}
    for bad in (body[:-8], body.replace(b"name=model", b"x"), body.replace(b"m\xc3\xb6", b"\xff"), b""):
        with pytest.raises(ApiError) as error:
            parse_form(bad, b"B")
        assert error.value.status == 400


def test_whisper_is_listed(heard: Live, tmp_path: Path) -> None:
    assert [each["id"] for each in heard.client.get("/v1/models").json()["data"]] == ["whisper-1"]
