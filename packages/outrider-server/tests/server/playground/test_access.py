"""For everybody: no serious problem that axe can find, and nothing that needs a mouse."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.server.live import Live
from tests.server.playground.pages import Page


@pytest.fixture(scope="module")
def axe() -> str:
    package = pytest.importorskip("axe_playwright_python", reason="install outrider[browser]")
    return Path(package.__file__).with_name("axe.min.js").read_text("utf-8")


def problems(page: Any, axe: str) -> list[str]:
    page.evaluate(axe + "; null")
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{problem['id']} ({problem['impact']}): {node['html'][:200]}"
        for problem in found["violations"]
        if problem["impact"] in ("serious", "critical")
        for node in problem["nodes"]
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(browser: Any, served: Live, axe: str, scheme: str) -> None:
    with Page(browser, served.url, scheme=scheme) as page:
        assert problems(page, axe) == []
        page.ask()
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert problems(page, axe) == []
        page.locator("#token-view").check()
        page.locator(".tok.accepted").first.click()
        page.locator(".alternatives .taken").wait_for()
        assert problems(page, axe) == []
        page.goto(served.url + "/statistics")
        page.locator("#requests .tile").first.wait_for()
        assert problems(page, axe) == []


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_at_work(
    browser: Any, served: Live, axe: str, scheme: str, size: tuple[int, int]
) -> None:
    """The states of the tools for work: files, other sources, search, prompts, edits and the keyboard map."""
    note = {"name": "notes.md", "mimeType": "", "buffer": b"hello world"}
    with Page(browser, served.url, size, scheme, panel=False) as page:
        page.locator("#files").set_input_files([note, note | {"name": "a.zip", "buffer": b"PK\xff"}])
        page.locator("#attach-problem", has_text="a.zip").wait_for()
        assert problems(page, axe) == []
        page.write("hello")
        page.locator(".speed").wait_for()
        page.idle()
        page.locator(".sent-file summary").click()
        page.get_by_role("button", name="with another source of drafts").click()
        assert problems(page, axe) == []
        page.locator(".message.assistant").get_by_role("button", name="Edit", exact=True).click()
        assert problems(page, axe) == []
        page.get_by_role("button", name="Cancel").click()
        page.keyboard.press("Control+K")
        page.locator("#search").fill("hello")
        page.locator(".transfer summary").click()
        assert problems(page, axe) == []
        page.locator("#search").fill("nowhere")
        assert problems(page, axe) == []
        page.keyboard.press("Escape")
        page.keyboard.press("Escape")
        page.locator("#show-panel").click()
        page.locator("#system").fill("hello")
        page.locator("#prompt-save").click()
        assert problems(page, axe) == []
        page.locator("#prompt-name").fill("mine")
        page.locator("#prompt-name").press("Enter")
        assert problems(page, axe) == []
        page.keyboard.press("Escape")
        page.keyboard.press("Control+/")
        page.locator("#key-map").wait_for()
        assert problems(page, axe) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious_on_a_phone(browser: Any, served: Live, axe: str, scheme: str) -> None:
    with Page(browser, served.url, (390, 844), scheme, has_touch=True) as page:
        page.write("hello")
        page.locator(".message.assistant .note").first.wait_for()
        page.idle()
        assert problems(page, axe) == []
        for drawer in ("Chats", "Figures and settings"):
            page.get_by_role("button", name=drawer, exact=True).click()
            assert problems(page, axe) == []
            page.keyboard.press("Escape")


def test_a_conversation_by_keyboard_alone(page: Page) -> None:
    assert page.evaluate("document.activeElement.id") == "text", "one writes at once"
    page.keyboard.press("Shift+Tab")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    page.keyboard.type("hello world")
    page.set("max_tokens", "8")
    page.locator("#text").focus()
    page.keyboard.press("Enter")
    page.locator(".message.assistant .note").first.wait_for()
    page.idle()
    assert page.evaluate("document.activeElement.id") == "text", "the focus stays where one writes"
    assert page.texts("#announcer")[0].startswith(("Answer:", "stopped")), "who cannot see it is told"
    names = []
    for _ in range(8):
        page.keyboard.press("Shift+Tab")
        names.append(
            page.evaluate("document.activeElement.textContent || document.activeElement.getAttribute('aria-label')")
        )
    assert {"Branch", "Copy", "Regenerate", "Edit"} <= set(names)
