"""The playground in Firefox, where one is installed: a chat, its drafts, stopping, and chats that are kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from outrider import LLM
from tests.server.live import Live
from tests.server.playground.firefox import Firefox
from tests.server.playground.pages import QUESTION, slowly

ENTER, ESCAPE = "\ue007", "\ue00c"
ANSWERS = "[...document.querySelectorAll('.message.assistant')]"
IDLE = "document.querySelector('#stop').checkVisibility() === false"


@pytest.fixture(scope="module")
def firefox(served: Live, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Firefox]:
    pytest.importorskip("websockets", reason="install outrider[browser]")
    program = shutil.which("firefox") or shutil.which("firefox-esr")
    if program is None:
        pytest.skip("no Firefox is installed")
    with Firefox(program, tmp_path_factory.mktemp("firefox") / "profile") as browser:
        browser.goto(served.url)
        browser.wait_for("document.querySelector('[role=status]').textContent.includes('ready')")
        yield browser
        assert browser.complaints == []


def ask(firefox: Firefox, text: str, tokens: int) -> None:
    firefox.evaluate(f"(document.querySelector('#set-max_tokens').value = '{tokens}')")
    firefox.evaluate("document.querySelector('#set-max_tokens').dispatchEvent(new Event('change', {bubbles: true}))")
    firefox.evaluate("document.querySelector('#text').focus()")
    firefox.type(text + ENTER)


def test_an_answer_with_drafts(firefox: Firefox) -> None:
    ask(firefox, QUESTION, 24)
    firefox.wait_for(f"{ANSWERS}.length === 1 && {IDLE}")
    assert firefox.evaluate(f"{ANSWERS}.at(-1).textContent.length") > 10
    kept = firefox.evaluate(
        "Promise.all([import('/playground/store.js'), import('/playground/conversation.js')])"
        ".then(([store, { path }]) => path(store.load(store.list()[0].id)))"
    )
    assert [message["role"] for message in kept] == ["user", "assistant"]
    assert kept[0]["content"] == QUESTION


def test_escape_stops_an_answer(firefox: Firefox, llm: LLM) -> None:
    with slowly(llm, 0.05):
        ask(firefox, "and once more", 400)
        firefox.wait_for(f"{ANSWERS}.length === 2 && !({IDLE})")
        firefox.type(ESCAPE)
        firefox.wait_for(IDLE, 10)
    assert "stopped" in firefox.evaluate(f"{ANSWERS}.at(-1).textContent").lower()


def test_chats_are_there_after_a_reload(firefox: Firefox, served: Live) -> None:
    before = firefox.evaluate(f"{ANSWERS}.map((each) => each.textContent.slice(0, 20))")
    firefox.goto(served.url)
    firefox.wait_for(f"{ANSWERS}.length === {len(before)}")
    assert firefox.evaluate(f"{ANSWERS}.map((each) => each.textContent.slice(0, 20))") == before
