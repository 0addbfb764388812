"""The playground: its files and policy; and, where a browser is installed, in that browser."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

from outrider.server.playground.playground import FILES
from tests.server.live import Live


@pytest.mark.parametrize("path", FILES)
def test_files_come_under_a_strict_policy(live: Live, path: str) -> None:
    answer = live.client.get(path)
    assert answer.status_code == 200
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["content-type"].partition(";")[0] == FILES[path][1].partition(";")[0]


def test_nothing_inline_and_nothing_from_elsewhere(live: Live) -> None:
    page = live.client.get("/").text
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"\bstyle=|\bon\w+=|javascript:", page)
    for path in FILES:
        links = re.findall(r"https?://[^\s\"']+", live.client.get(path).text)
        assert set(links) <= {"http://www.w3.org/2000/svg"}


def test_it_never_writes_text_as_markup(live: Live) -> None:
    code = live.client.get("/playground/app.js").text
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b", code)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="install outrider[browser]")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield started
        started.close()


@pytest.mark.parametrize("size", [(1280, 800), (390, 844)], ids=["desktop", "phone"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_conversation_in_a_browser(live: Live, browser: Any, size: tuple[int, int], scheme: str) -> None:
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme, has_touch=size[0] < 500
    )
    page = context.new_page()
    page.set_default_timeout(60_000)
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(live.url)
    page.get_by_text("ready", exact=True).wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= size[0], "nothing sticks out to the side"
    if page.locator("#settings").get_attribute("open") is None:
        page.locator("#settings summary").click()
    page.locator("#draft").select_option("lookup")
    page.locator("#max-tokens").fill("40")
    page.locator("#text").fill("<b>hello</b> the world the world the world")
    page.locator("#text").press("Enter")
    page.locator("#race").wait_for()
    page.get_by_text("ready", exact=True).wait_for()
    assert "the same text" in page.locator("#verdict").inner_text()
    assert page.locator(".message.user").inner_text().startswith("<b>hello</b>")
    assert page.locator(".tok").count() >= 2
    assert re.fullmatch(r"\d+", page.locator("#speed").inner_text())
    page.locator("#by-source").click()
    assert "the model itself" in page.locator("#legend").inner_text()
    page.locator("#clear").click()
    assert page.locator("#welcome").is_visible()
    assert complaints == []
    context.close()
