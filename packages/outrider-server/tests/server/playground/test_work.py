"""The playground for work: files, system prompts, search, export and import, keys, and answers by other sources."""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM
from outrider.cli.chat import files
from tests.server.live import Live
from tests.server.playground.pages import Page, answering, slowly
from tests.server.test_pdf import document

CODE = b"def add(a, b):\n    return a + b  # ```\n"


def attach(page: Page, *given: tuple[str, str, bytes]) -> None:
    """Attach files: name, type, content."""
    page.locator("#files").set_input_files([{"name": n, "mimeType": kind, "buffer": data} for n, kind, data in given])


def sent(page: Page, text: str) -> Any:
    """The body of the request that a message makes."""
    page.set("max_tokens", "4")
    with page.expect_request("**/completions") as request:
        page.write(text)
    page.locator(".message.assistant .speed").last.wait_for()
    page.idle()
    return request.value.post_data_json


def png(width: int, height: int) -> bytes:
    """A black picture."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes((width + 1) * height))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_the_panel_is_closed_at_first_and_stays_as_it_was_left(browser: Any, served: Live) -> None:
    with Page(browser, served.url, panel=False) as page:
        opener = page.get_by_role("button", name="Figures and settings", exact=True)
        assert page.locator("#panel").is_hidden()
        opener.click()
        assert page.locator("#panel").is_visible()
        assert opener.get_attribute("aria-expanded") == "true"
        page.reload()
        page.ready()
        assert page.locator("#panel").is_visible()
        page.get_by_role("button", name="Close the figures and settings").click()
        assert page.locator("#panel").is_hidden()
        page.reload()
        page.ready()
        assert page.locator("#panel").is_hidden()


def test_text_and_code_go_with_a_message(page: Page) -> None:
    attach(page, ("add.py", "text/x-python", CODE), ("notes.txt", "text/plain", "hello ä".encode("utf-16")))
    page.locator(".chip").nth(1).wait_for()
    assert page.texts(".chip > span") == ["add.py · 39 characters", "notes.txt · 7 characters"]
    page.get_by_role("button", name="Take back: notes.txt").click()
    body = sent(page, "the world")
    (message,) = body["messages"]
    assert message["content"] == f"File add.py:\n````\n{CODE.decode().rstrip()}\n````\n\nthe world"
    assert page.locator(".chip").count() == 0
    assert page.texts(".sent-file summary") == ["add.py · 39 characters"]
    page.reload()
    page.ready()
    assert page.texts(".sent-file code") == [CODE.decode()]
    page.locator(".message.user").get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("Edit the message").fill("hello")
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_label("Edit the message").press("Enter")
    assert request.value.post_data_json["messages"][0]["content"].startswith("File add.py:"), "an edit keeps the files"


@pytest.mark.parametrize(
    ("name", "kind", "content", "reason"),
    [
        ("a.zip", "application/zip", b"PK\x03\x04\x00\xff", "a.zip is no text in UTF-8, no PDF and no picture"),
        ("nul.txt", "text/plain", b"a\0b", "nul.txt is no text"),
        ("empty.txt", "text/plain", b" \n", "empty.txt is empty"),
        ("large.txt", "text/plain", b"a" * ((8 << 20) + 1), "large.txt is larger than 8 MB"),
        ("cat.png", "image/png", png(4, 4), "tiny does not see pictures: choose a model that does"),
        ("bad.pdf", "application/pdf", b"%PDF-1.4 nothing", "bad.pdf: the PDF file cannot be read"),
    ],
    ids=["archive", "nul", "empty", "large", "picture", "pdf"],
)
def test_a_file_that_cannot_go_along_says_why(page: Page, name: str, kind: str, content: bytes, reason: str) -> None:
    if kind == "application/pdf":
        pytest.importorskip("pypdf")
    attach(page, (name, kind, content))
    page.locator("#attach-problem", has_text=reason).wait_for()
    assert page.locator(".chip").count() == 0


def test_the_text_of_a_pdf_file_is_read_by_the_server(page: Page) -> None:
    pytest.importorskip("pypdf")
    attach(page, ("two.pdf", "", document("one", "two")))
    page.locator(".chip", has_text="two.pdf · 2 pages, 8 characters").wait_for()
    body = sent(page, "")
    assert body["messages"][0]["content"] == "File two.pdf (2 pages):\n```\none\n\ntwo\n```"
    assert page.texts(".chat-open") == ["two.pdf"]


def test_a_picture_goes_to_a_model_that_sees(page: Page) -> None:
    def sees(route: Any) -> None:
        told = route.fetch().json()
        route.fulfill(json={"data": [entry | {"sees_images": True} for entry in told["data"]]})

    page.route("**/v1/models", sees)
    page.reload()
    page.ready()
    attach(page, ("wide.png", "image/png", png(2000, 500)))
    page.locator(".chip canvas").wait_for()
    with page.expect_request("**/v1/chat/completions") as request:
        page.write("hello")
    page.locator(".error").wait_for()  # the tiny model does not see, and its server says so
    image, text = request.value.post_data_json["messages"][0]["content"]
    assert text == {"type": "text", "text": "hello"}
    size = page.evaluate(
        """async (url) => {
            const [, data] = url.split(",");
            const image = await createImageBitmap(new Blob([Uint8Array.from(atob(data), (c) => c.charCodeAt(0))]));
            return [url.slice(0, 15), image.width, image.height];
        }""",
        image["image_url"]["url"],
    )
    assert size == ["data:image/png;", 1536, 384]
    drawn = page.locator(".sent-files canvas")
    assert drawn.get_attribute("aria-label") == "wide.png"
    page.wait_for_function("document.querySelector('.sent-files canvas').height === 40")


def test_what_waits_keeps_its_files(page: Page, llm: LLM) -> None:
    with slowly(llm, 0.05):
        page.set("max_tokens", "400")
        page.write("hello one")
        page.locator("#stop").wait_for()
        attach(page, ("add.py", "", CODE))
        page.locator(".chip").wait_for()
        page.write("")
        assert page.texts("#queue li span") == ["add.py"]
        assert page.locator(".chip").count() == 0
        page.locator("#stop").click()
        page.get_by_text("Stopped.").wait_for()
    assert page.texts(".chip > span") == ["add.py · 39 characters"]


def test_system_prompts_are_saved_chosen_and_carried(page: Page, tmp_path: Path) -> None:
    page.locator("#system").fill("hello of the world")
    page.locator("#prompt-save").click()
    page.locator("#prompt-name").fill("mine")
    page.locator("#prompt-name").press("Enter")
    page.locator("#prompt-state", has_text="Saved as “mine”.").wait_for()
    page.locator("#prompt-choice").select_option("Short and plain")
    body = sent(page, "hello")
    assert body["messages"][0]["content"].startswith("Answer in as few plain sentences")
    page.locator("#new-chat").click()
    page.locator("#prompt-choice").select_option("mine")
    assert sent(page, "hello")["messages"][0]["content"] == "hello of the world"
    with page.expect_download() as download:
        page.locator("#prompt-export").click()
    file = tmp_path / "prompts.json"
    download.value.save_as(file)
    assert json.loads(file.read_text())["mine"] == "hello of the world"
    page.locator("#prompt-remove").click()
    assert "mine" not in page.texts("#prompt-choice option")
    page.locator("#prompt-file").set_input_files(file)
    page.locator("#prompt-choice option", has_text="mine").wait_for(state="attached")
    page.locator("#prompt-file").set_input_files([{"name": "x", "mimeType": "", "buffer": b"[1]"}])
    page.locator("#prompt-state", has_text="The file holds no prompts").wait_for()


def test_a_chat_is_found_by_its_words(page: Page) -> None:
    page.ask("hello the first", 8)
    page.locator("#new-chat").click()
    attach(page, ("add.py", "", CODE))
    page.locator(".chip").wait_for()
    page.ask("hello the second", 8)
    page.locator("#search").fill("FIRST hello")
    assert page.texts(".chat-open > span:first-child") == ["hello the first"]
    assert "hello the first" in page.texts(".passage")[0]
    page.locator("#search").fill("return a + b")
    assert page.texts(".chat-open > span:first-child") == ["hello the second"]
    page.locator("#search").fill("nowhere")
    assert page.texts(".chat-open") == []
    assert page.locator("#no-chats").inner_text() == "No chat has “nowhere”."
    page.locator("#search").press("Escape")
    assert len(page.texts(".chat-open")) == 2


def exported(page: Page, button: str, to: Path) -> str:
    page.locator(".transfer").evaluate("each => { each.open = true; }")
    with page.expect_download() as download:
        page.get_by_role("button", name=button).click()
    download.value.save_as(to)
    return str(download.value.suggested_filename)


def test_chats_are_exported_and_imported(browser: Any, served: Live, page: Page, tmp_path: Path) -> None:
    page.locator("#system").fill("hello of the world")
    page.locator("#system").blur()
    first = page.ask("hello <b>the</b> first", 8)
    page.set("temperature", "1")
    page.locator(".message.assistant").get_by_role("button", name="Regenerate", exact=True).click()
    page.locator(".message.assistant .versions", has_text="2 of 2").wait_for()
    page.idle()
    second = page.answer()
    assert exported(page, "This chat as JSON", tmp_path / "chat.json") == "hello-btheb-first.json"
    assert exported(page, "This chat as Markdown", tmp_path / "chat.md").endswith(".md")
    page.locator("#new-chat").click()
    page.ask("hello the second", 8)
    exported(page, "All chats as JSON", tmp_path / "all.json")
    assert files.read(tmp_path / "chat.json") == [
        {"role": "system", "content": "hello of the world"},
        {"role": "user", "content": "hello <b>the</b> first"},
        {"role": "assistant", "content": second},
    ], "`outrider chat --load` goes on with it"
    markdown = (tmp_path / "chat.md").read_text()
    assert markdown.startswith("# hello <b>the</b> first\n\n*System prompt:* hello of the world\n\n## You\n\n")
    with Page(browser, served.url) as other:
        other.locator("#import-file").set_input_files(tmp_path / "all.json")
        other.get_by_role("status").get_by_text("2 chats imported").wait_for()
        assert other.texts(".chat-open") == ["hello the second", "hello <b>the</b> first"]
        other.get_by_role("button", name="hello <b>the</b> first", exact=True).click()
        assert other.locator("#system").input_value() == "hello of the world"
        other.get_by_role("button", name="Earlier version").click()
        assert other.answer() == first


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('[{"role": "system", "content": "s"}, {"role": "user", "content": "hello"}]', "one chat imported"),
        ('{"messages": [{"role": "user", "content": [{"type": "text", "text": "hello"}]}]}', "one chat imported"),
        ("no JSON", "The file is not JSON"),
        ('{"chats": []}', "The file holds no chat"),
        ('[{"role": "wizard", "content": "hello"}]', "The file holds no chat"),
        ('{"tree": {"system": "", "nodes": {"root": {"id": "root", "parent": null, "children": ["a"]}}}}',
         "The file holds no chat"),
    ],
    ids=["messages", "parts", "text", "none", "role", "broken"],
)  # fmt: skip
def test_chats_of_other_programs_are_imported_or_refused(page: Page, text: str, result: str) -> None:
    page.locator("#import-file").set_input_files([{"name": "x.json", "mimeType": "", "buffer": text.encode()}])
    page.get_by_role("status").get_by_text(result).wait_for()
    assert page.texts(".message.user .bubble") == (["hello"] if "imported" in result else [])


def test_an_answer_is_made_again_by_another_source(page: Page) -> None:
    text = page.ask()
    bodies: list[dict[str, Any]] = []
    page.on("request", lambda request: bodies.append(request.post_data_json) if request.post_data else None)
    for number, name in enumerate(("no drafts", "ngram"), 2):
        page.locator(".message.assistant").get_by_role("button", name="with another source of drafts").click()
        page.locator(".sources").get_by_role("button", name=name, exact=True).click()
        page.locator(".message.assistant .versions", has_text=f"{number} of {number}").wait_for()
        page.idle()
        assert page.answer() == text
        speed = page.locator(".speed").inner_text()
        assert ("tokens/s without drafts" in speed) == (name == "no drafts")
    assert [body["speculation"] for body in bodies] == ["off", {"draft": "ngram"}]
    assert len({body["cache_salt"] for body in bodies}) == 2, "neither knows the answer from before"
    assert "tokens/s with drafts by ngram · 40 tokens · " in speed
    assert "times as fast as without drafts" in speed
    assert "and the same text." in speed
    assert page.locator("#set-draft").input_value() == "auto", "the setting stays"
    page.locator(".message.assistant").get_by_role("button", name="Regenerate", exact=True).click()
    page.locator(".message.assistant .versions", has_text="4 of 4").wait_for()
    page.idle()
    assert "cache_salt" not in bodies[-1]
    assert "times as fast" not in page.locator(".speed").inner_text(), "its drafts have seen the answer"


def test_an_answer_is_edited_and_gone_on_with(page: Page, served: Live) -> None:
    page.ask("hello", 4)
    page.locator(".message.assistant").get_by_role("button", name="Edit", exact=True).click()
    page.get_by_label("Edit the answer").fill("hello the")
    page.get_by_label("Edit the answer").press("Control+Enter")
    page.get_by_text("Edited.").wait_for()
    with page.expect_request("**/v1/chat/completions") as request:
        page.get_by_role("button", name="Continue").click()
    page.idle()
    body = request.value.post_data_json
    assert (body["messages"][-1], body["continue_final_message"]) == (
        {"role": "assistant", "content": "hello the"},
        True,
    )
    assert page.answer().startswith("hello the")
    assert page.texts(".message.assistant .versions .quiet") == ["2 of 2"]


def test_keys(browser: Any, served: Live) -> None:
    with Page(browser, served.url, panel=False) as page:
        page.ask("hello", 4)
        focus = "document.activeElement.id"
        page.locator("#text").press("?")
        assert page.locator("#text").input_value() == "?"
        page.locator("#text").fill("")
        page.locator("#text").press("Control+/")
        assert page.get_by_role("dialog", name="Keyboard").is_visible()
        page.keyboard.press("Escape")
        assert page.locator("#key-map").is_hidden()
        page.locator("#text").focus()
        page.keyboard.press("ArrowUp")
        assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Edit the message"
        page.keyboard.press("Escape")
        page.locator("#text").focus()
        page.keyboard.press("Escape")
        assert page.evaluate(focus) == "log"
        for key, then in (("p", "panel"), ("s", "search"), ("/", "text")):
            page.keyboard.press("Escape")
            page.locator("#log").focus()
            page.keyboard.press(key)
            if then == "panel":
                assert page.locator("#panel").is_hidden(), "it was open"
            else:
                assert page.evaluate(focus) == then
        page.locator("#log").focus()
        page.keyboard.press("?")
        page.locator("#single-keys").uncheck()
        page.locator("#close-keys").click()
        page.locator("#log").focus()
        page.keyboard.press("n")
        assert page.locator(".message").count() == 2, "single keys can be switched off"
        page.keyboard.press("Control+/")
        page.locator("#single-keys").check()
        page.locator("#close-keys").click()
        page.locator("#log").focus()
        page.keyboard.press("n")
        assert page.locator(".message").count() == 0


def test_the_answers_speed_stands_under_it(page: Page, served: Live) -> None:
    with answering(served, "hello", "hello world hello world hello world hello world"):
        page.set("draft", "none")
        page.ask("hello", 12)
    assert page.locator(".speed").inner_text().endswith("tokens/s without drafts · 12 tokens")
