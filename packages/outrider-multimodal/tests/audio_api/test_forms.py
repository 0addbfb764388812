"""Forms whose headers are hostile, and forms that nobody here reads."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from outrider import LLM
from outrider_multimodal.audio_api.form import MAX_HEAD, parse_form
from outrider_server.http.errors import ApiError
from tests import encoder_decoders
from tests.server.live import Live

AUDIO = "/v1/audio/transcriptions"


def form(*heads: bytes) -> bytes:
    """Parts with these headers, which all hold ``x``."""
    return b"".join(b"--B\r\n" + head + b"\r\n\r\nx\r\n" for head in heads) + b"--B--\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Disposition: form-data; name=a" + b"; a=b" * 24_000,
        b'Content-Disposition: form-data; name=a; filename="' + b'\\"' * 9_000 + b'"',
        b"X: y\r\n" * 9_000 + b"Content-Disposition: form-data; name=a",
        b"Content-Disposition: form-data; name=a; b=" + b"(" * 120_000,
    ],
)
def test_long_headers_of_a_part_are_refused_unread(head: bytes) -> None:
    with pytest.raises(ApiError, match=f"headers of a part have more than {MAX_HEAD} bytes"):
        parse_form(form(head), b"B")


@pytest.mark.parametrize(
    ("parameters", "fields", "files"),
    [
        (b"name=a; name2=(((((((((((", {"a": ["x"]}, {}),
        (b'name="a; filename=b"', {"a; filename=b": ["x"]}, {}),
        (b'name="a\\"b" ; FILENAME = "c;d"', {}, {'a"b': ("c;d", b"x")}),
        (b"name=a; filename*=utf-8''%C3%A9%20.wav", {}, {"a": ("é .wav", b"x")}),  # of older clients
        ('name=a; filename="é.wav"'.encode(), {}, {"a": ("é.wav", b"x")}),
        (b'name=a; filename=""', {}, {"a": ("", b"x")}),
        (b"name=a; filename=my file.wav", {}, {"a": ("my file.wav", b"x")}),
    ],
)
def test_parameters_of_a_part(
    parameters: bytes, fields: dict[str, list[str]], files: dict[str, tuple[str, bytes]]
) -> None:
    found = parse_form(form(b"Content-Type: audio/wav\r\ncontent-disposition: form-data; " + parameters), b"B")
    assert (found.fields, found.files) == (fields, files)


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    folder = encoder_decoders.save(encoder_decoders.whisper(), tmp_path_factory.mktemp("whisper") / "tiny")
    llm = LLM(str(folder), draft="none", max_batch_size=2, threads=1, dtype="float32")
    with Live(llm, "whisper-1", max_header_bytes=1 << 17) as server:
        yield server


@pytest.mark.parametrize(
    "boundary", ["x " + "(" * 3_000, "(" * 60_000, '"' + '\\"' * 2_000, "x" * 71, "", "x; boundary", "x; a=b" * 9_000]
)
def test_a_hostile_content_type_is_refused_by_name(heard: Live, boundary: str) -> None:
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    answer = heard.client.post(AUDIO, content=form(b"Content-Disposition: form-data; name=a"), headers=headers)
    assert answer.status_code in (400, 415)
    assert answer.json()["error"]["message"].startswith(("send multipart/form-data", "the form breaks off"))


def test_a_server_without_sound_reads_no_form(live: Live) -> None:
    """It answers to the head alone, of which no body comes."""
    head = f"POST {AUDIO} HTTP/1.1\r\nHost: localhost\r\nContent-Type: multipart/form-data; boundary=B\r\n"
    with socket.create_connection(("127.0.0.1", live.port), timeout=10) as connection:
        connection.sendall(f"{head}Content-Length: 20000000\r\n\r\n".encode())
        answer = b""
        while not answer.endswith(b"}}"):
            answer += connection.recv(4096)
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert b"hears no sound" in answer
