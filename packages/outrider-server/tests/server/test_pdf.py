"""The text of PDF files: bounded, kept from other sites' pages, and with a reason where there is none."""

from __future__ import annotations

import io
import zlib

import pytest

from outrider_server.playground import pdf, pdf_reader
from tests.server.live import Live

pytest.importorskip("pypdf", reason="install outrider[pdf]")

PDF = {"Content-Type": "application/pdf"}


def document(*texts: str, stream: bytes | None = None) -> bytes:
    """A PDF file with a page for each text; ``stream``: the compressed content of all pages, in place of the texts."""
    kids = " ".join(f"{3 + 2 * i} 0 R" for i in range(len(texts)))
    objects = [b"<</Type/Catalog/Pages 2 0 R>>", f"<</Type/Pages/Kids[{kids}]/Count {len(texts)}>>".encode()]
    font = b"<</F<</Type/Font/Subtype/Type1/BaseFont/Helvetica>>>>"
    for i, text in enumerate(texts):
        content = stream or zlib.compress(f"BT /F 12 Tf 20 100 Td ({text}) Tj ET".encode())
        page = b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 200 200]/Resources<</Font %b>>/Contents %d 0 R>>"
        objects.append(page % (font, 4 + 2 * i))
        objects.append(b"<</Length %d/Filter/FlateDecode>>stream\n%b\nendstream" % (len(content), content))
    file, places = b"%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(file))
        file += b"%d 0 obj\n%b\nendobj\n" % (number, body)
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    head = f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{table}trailer<</Root 1 0 R/Size {len(objects) + 1}>>"
    return file + f"{head}\nstartxref\n{len(file)}\n%%EOF".encode()


def locked(file: bytes) -> bytes:
    from pypdf import PdfReader, PdfWriter

    writer, kept = PdfWriter(clone_from=PdfReader(io.BytesIO(file))), io.BytesIO()
    writer.encrypt("a password", algorithm="RC4-40")
    writer.write(kept)
    return kept.getvalue()


def test_the_text_of_each_page(live: Live) -> None:
    answer = live.client.post(pdf.PATH, content=document("one", "two"), headers=PDF)
    assert (answer.status_code, answer.json()) == (200, {"text": "one\n\ntwo", "pages": 2, "pages_read": 2})


@pytest.mark.parametrize(
    ("file", "reason"),
    [
        (b"plain text", "damaged, or no PDF"),
        (b"", "damaged, or no PDF"),
        (document("a")[:300], "damaged, or no PDF"),
        (document(""), "no text"),
        (locked(document("secret")), "locked with a password"),
        (document("a").replace(b"/Kids[3 0 R]", b"/Kids[2 0 R]"), "cannot be read"),
    ],
    ids=["text", "empty", "cut", "blank", "locked", "cycle"],
)
def test_a_file_without_text_has_a_reason(live: Live, file: bytes, reason: str) -> None:
    answer = live.client.post(pdf.PATH, content=file, headers=PDF)
    assert answer.status_code == 400
    assert reason in answer.json()["error"]["message"]


@pytest.mark.slow
def test_a_stream_that_inflates_to_gigabytes_is_given_up(live: Live) -> None:
    packer = zlib.compressobj()
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(2048)) + packer.flush()
    answer = live.client.post(pdf.PATH, content=document("", stream=bomb), headers=PDF)
    assert answer.status_code == 400
    assert "cannot be read" in answer.json()["error"]["message"]


def test_pages_are_read_until_there_are_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf_reader, "MAX_CHARACTERS", 7)
    assert pdf_reader.read(document("one", "two", "three", "four")) == {
        "text": "one\n\ntw",
        "pages": 4,
        "pages_read": 3,
    }


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_no_page_of_another_site_may_send_one_unasked(live: Live, kind: str) -> None:
    headers = {"Content-Type": kind} if kind else {}
    assert live.client.post(pdf.PATH, content=document("a"), headers=headers).status_code == 415


def test_without_the_library_the_error_names_the_extra(live: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pdf, "find_spec", lambda name: None)
    answer = live.client.post(pdf.PATH, content=document("a"), headers=PDF)
    assert answer.status_code == 501
    assert "outrider[pdf]" in answer.json()["error"]["message"]
