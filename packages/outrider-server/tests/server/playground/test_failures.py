"""Errors as errors; a server that goes away and comes back; forms of answers and tools."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM
from tests.model_folders import model_folder
from tests.server.live import Live
from tests.server.playground.pages import QUESTION, Page, slowly
from tests.server.scripted import saying
from tests.server.test_chat import TEMPLATE, _set_template


def test_a_refusal_says_why_and_can_be_tried_again(page: Page) -> None:
    page.set("tree_nodes", "1025")
    page.write("hello")
    alert = page.locator(".error[role=alert]")
    alert.wait_for()
    assert "Error 400" in alert.inner_text()
    assert "1024" in alert.inner_text()
    page.set("tree_nodes", "")
    page.set("max_tokens", "5")
    page.get_by_role("button", name="Try again").click()
    page.locator(".note", has_text="tokens/s").wait_for()
    assert alert.count() == 0


def test_settings_that_are_no_json_are_named(page: Page) -> None:
    page.set("more", "{nonsense")
    page.write("hello")
    complaint = page.get_by_text("“More fields” is not JSON")
    complaint.wait_for()
    assert complaint.is_visible()


def test_the_server_goes_away_and_comes_back(browser: Any, llm: LLM) -> None:
    with Live(llm) as server:
        port = server.port
        page = Page(browser, server.url)
        page.set("max_tokens", "400")
        with slowly(llm, 0.05):
            page.write("hello one")
            page.locator(".prose", has_text=re.compile(".{20}", re.DOTALL)).wait_for()
            server.server.should_exit = server.server.force_exit = True
            page.get_by_text("broke off").wait_for()
        page.get_by_role("status").get_by_text("server away").first.wait_for()
        page.set("max_tokens", "5")
        page.locator("#new-chat").click()
        page.write("hello two")
        page.get_by_text("sent again when it is back").wait_for()
    with page, Live(llm, port=port):
        page.locator(".note", has_text="tokens/s").wait_for()
        assert page.texts(".message.user .bubble") == ["hello two"]
        page.get_by_role("button", name="hello one", exact=True).click()
        page.set("max_tokens", "5")
        page.locator(".error").get_by_role("button", name="Continue").click()
        page.locator(".message.assistant .note", has_text="tokens/s").wait_for()
        assert page.locator(".error").count() == 0


@pytest.mark.parametrize(
    ("settings", "holds"),
    [
        ({"form": "json_schema", "schema": '{"enum": ["abc"]}'}, lambda text: json.loads(text) == "abc"),
        ({"form": "regex", "regex": "[ab]{5}"}, lambda text: set(text) <= {"a", "b"} and len(text) == 5),
        ({"form": "choice", "choice": "left\nright"}, lambda text: text in ("left", "right")),
    ],
    ids=["schema", "regex", "choice"],
)
def test_answers_have_the_form_that_is_asked_for(page: Page, settings: dict[str, str], holds: Any) -> None:
    for name, value in settings.items():
        page.set(name, value)
    assert holds(page.ask("hello"))


@pytest.fixture(scope="module")
def teller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Its template knows tools, and it has two names."""
    folder: Path = model_folder(tmp_path_factory.mktemp("page") / "teller", max_position_embeddings=1024)
    _set_template(folder, TEMPLATE)
    with Live(LLM(str(folder), threads=1), served_model_names=("teller", "other")) as server:
        yield server


def test_tools_are_called_and_their_results_read(browser: Any, teller: Live) -> None:
    call = '<tool_call>{"name": "get_weather", "arguments": {"city": "Aber"}}</tool_call>'
    with Page(browser, teller.url) as page:
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        page.locator("#set-use_tools").check()
        tools = json.loads(page.locator("#set-tools").input_value())
        page.set("max_tokens", "120")
        body = {"messages": [{"role": "user", "content": "hello"}], "tools": tools}
        count = teller.post("/tokenize", body)["count"]
        with saying(teller.service.engine.llm, call, after=count):
            page.write("hello")
            page.get_by_text("Calls get_weather").wait_for()
        page.idle()
        assert '"city": "Aber"' in page.texts(".tool pre")[0]
        page.get_by_label("What get_weather answers").fill("cold and wet")
        with page.expect_request("**/v1/chat/completions") as sent:
            page.get_by_role("button", name="Give result").click()
        messages = sent.value.post_data_json["messages"]
        assert [message["role"] for message in messages] == ["user", "assistant", "tool"]
        assert messages[2]["tool_call_id"] == messages[1]["tool_calls"][0]["id"]
        page.idle()


def test_another_model_can_be_chosen(browser: Any, teller: Live) -> None:
    with Page(browser, teller.url) as page:
        page.locator("#model-choice").select_option("other")
        page.set("max_tokens", "5")
        with page.expect_request("**/v1/chat/completions") as sent:
            page.write("hello")
        assert sent.value.post_data_json["model"] == "other"
        page.idle()
        page.reload()
        page.ready()
        assert page.locator("#model-choice").input_value() == "other"


def test_a_full_storage_keeps_the_chat(page: Page) -> None:
    page.ask(QUESTION, 20)
    page.evaluate(
        "for (let i = 0; ; i++) { try { localStorage.setItem('fill' + i, 'x'.repeat(2e5)); } catch { break; } }"
    )
    page.evaluate(
        "for (let n = 1e5; n > 10; n /= 2) { try { localStorage.setItem('rest' + n, 'x'.repeat(n)); } catch {} }"
    )
    page.locator("#new-chat").click()
    page.ask(QUESTION, 40)
    assert page.texts(".message.user .bubble") == [QUESTION]
    assert page.locator(".chat-open").count() == 2
