"""Hostile texts, each through every way into the page, in a real browser.

The page's policy is switched off where texts are tried: it must hold by itself. The policy is tried for itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.server.live import Live
from tests.server.playground.pages import Page
from tests.server.playground.payloads import INJECTIONS, OUT, PAYLOADS, POLYGLOT
from tests.server.playground.rigged import BREACHES, Wire


@pytest.fixture(scope="module")
def rigged(browser: Any, served: Live) -> Iterator[tuple[Page, Wire]]:
    """One page for all, without its policy."""
    wire = Wire(served.url)
    with Page(browser, served.url, before=wire.prepare, bypass_csp=True) as page:
        yield page, wire


def check(page: Page, wire: Wire) -> None:
    page.wait_for_timeout(30)  # for what loads or fires later
    assert page.evaluate(BREACHES) == []
    assert wire.left == []
    assert page.title() == "Outrider playground"
    page.evaluate("window.fired.length = 0")


@pytest.mark.parametrize("name", PAYLOADS)
def test_a_text_stays_a_text(rigged: tuple[Page, Wire], name: str) -> None:
    """As a message, a title, a system message, an answer, its tokens and drafts, a call, a refusal."""
    page, wire = rigged
    text = PAYLOADS[name].encode("utf-8", "surrogatepass").decode("utf-8", "replace")
    page.locator("#new-chat").click()
    page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
    page.locator("#system").fill(text)
    page.locator("#token-view").uncheck()
    wire.streams(text)
    page.write(text)
    page.locator(".tool").wait_for()
    page.idle()
    check(page, wire)
    for link in page.locator(".prose a").all():
        assert link.get_attribute("href").lower().startswith(("http:", "https:", "mailto:"))
    page.locator("#token-view").check()
    page.locator("#by-source").click()
    page.locator(".tok.accepted").first.click()
    page.locator("#inspector").wait_for()
    check(page, wire)
    wire.fails(text)
    page.locator("#text").fill("again")
    page.locator("#text").press("Enter")
    page.locator(".error[role=alert]").wait_for()
    check(page, wire)
    page.keyboard.press("Escape")


def test_files_prompts_and_imported_chats_stay_texts(rigged: tuple[Page, Wire]) -> None:
    page, wire = rigged
    text = POLYGLOT.encode("utf-8", "replace").decode()
    file = {"name": f"{text}.txt".replace("/", ""), "mimeType": "", "buffer": text.encode()}
    page.locator("#new-chat").click()
    page.locator("#token-view").uncheck()
    page.locator("#files").set_input_files([file])
    page.locator(".chip").wait_for()
    check(page, wire)
    wire.streams(text)
    page.write(text)
    page.locator(".tool").wait_for()
    page.idle()
    page.locator(".sent-file summary").click()
    page.locator("#search").fill("onerror")
    check(page, wire)
    page.locator("#search").fill("")
    for content in (
        json.dumps({"prompt": "x", text: text, "__proto__": text}),
        json.dumps([{"role": "system", "content": text}, {"role": "user", "content": text}]),
        json.dumps(
            {"tree": json.loads(chat(files=[{"kind": "image", "name": text, "url": text}], __proto__={"a": 1}))}
        ),
        json.dumps({"tree": json.loads(chat(files=[{"kind": "text", "name": text, "text": text, "note": text}]))}),
    ):
        for chooser in ("#prompt-file", "#import-file"):
            page.locator(chooser).set_input_files([{"name": "x.json", "mimeType": "", "buffer": content.encode()}])
            page.wait_for_timeout(100)
            check(page, wire)
    page.locator("#new-chat").click()


# -- other ways in ----------------------------------------------------------------------------------------------------


@pytest.fixture
def wire(served: Live) -> Wire:
    return Wire(served.url)


def chat(**fields: Any) -> str:
    """A chat as the browser keeps it, with an answer that has these fields."""
    user = {"id": "u", "parent": "root", "children": ["a"], "chosen": "a", "role": "user", "content": POLYGLOT}
    answer: dict[str, Any] = {
        "id": "a",
        "parent": "u",
        "children": [],
        "chosen": None,
        "role": "assistant",
        "status": "done",
    }
    root = {"id": "root", "parent": None, "role": "root", "children": ["u"], "chosen": "u"}
    nodes = {"root": root, "u": user, "a": answer | {"content": POLYGLOT} | fields}
    return json.dumps({"id": "x", "title": POLYGLOT, "system": POLYGLOT, "created": 1, "updated": 1, "nodes": nodes})


LISTED = json.dumps([{"id": "x", "title": POLYGLOT, "updated": 1}])
_ENDLESS = {"id": "a", "parent": "root", "role": "user", "content": "", "children": ["a"], "chosen": "a"}
_ROOT = {"id": "root", "parent": None, "children": ["a"], "chosen": "a"}
LOOP = json.dumps({"id": "x", "title": "t", "system": "", "nodes": {"root": _ROOT, "a": _ENDLESS}})
STORED = {
    "chat": {"outrider.chats": LISTED, "outrider.chat.x": chat()},
    "error": {"outrider.chats": LISTED, "outrider.chat.x": chat(status="failed", error={"message": POLYGLOT})},
    "calls": {
        "outrider.chats": LISTED,
        "outrider.chat.x": chat(calls=[{"id": POLYGLOT, "function": {"name": POLYGLOT, "arguments": POLYGLOT}}]),
    },
    "hint": {"outrider.chats": LISTED, "outrider.chat.x": chat(hint=POLYGLOT, asked={"draft": POLYGLOT})},
    "files-of-another-kind": {"outrider.chats": LISTED, "outrider.chat.x": chat(files=[POLYGLOT, None, {"name": 5}])},
    "prompts": {"outrider.prompts": json.dumps({POLYGLOT: POLYGLOT, "a": {"b": 1}, "__proto__": "x"})},
    "prompts-of-another-kind": {"outrider.prompts": "[1]", "outrider.settings": '{"saidSmall": 5, "panel": "x"}'},
    "steps-of-another-kind": {"outrider.chats": LISTED, "outrider.chat.x": chat(steps=[POLYGLOT, 5, None])},
    "endless": {"outrider.chats": LISTED, "outrider.chat.x": LOOP},
    "proto": {"outrider.chats": LISTED, "outrider.chat.x": chat(__proto__={"polluted": 1}, constructor={})},
    "no-list": {"outrider.chats": '{"a": 1}', "outrider.settings": "5"},
    "list-of-junk": {"outrider.chats": '[null, 5, "x", {"id": 7}, {"id": "y", "title": {"a": 1}}]'},
    "no-json": {"outrider.chats": "<script>fire()</script>", "outrider.settings": POLYGLOT, "outrider.chat.x": "{"},
    "no-chat": {"outrider.chats": LISTED, "outrider.chat.x": "[]"},
    "settings": {
        "outrider.settings": json.dumps(
            dict.fromkeys(("theme", "draft", "verifier", "model", "stop", "tools", "more", "max_tokens"), POLYGLOT)
        )
    },
    "settings-of-another-kind": {
        "outrider.settings": json.dumps(
            {"stop": 5, "tree": {"a": 1}, "combination": [], "theme": ["x"], "__proto__": {"polluted": 1}}
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", STORED)
def test_what_is_stored_is_not_trusted(browser: Any, served: Live, wire: Wire, name: str) -> None:
    """The page works, whatever stands in the browser's storage."""

    def prepare(context: Any) -> None:
        wire.prepare(context)
        context.add_init_script(
            f"for (const [k, v] of Object.entries({json.dumps(STORED[name])})) localStorage[k] = v;"
        )

    with Page(browser, served.url, before=prepare, bypass_csp=True) as page:
        check(page, wire)
        page.locator("#token-view").check()
        page.locator("#new-chat").click()
        for field in ("more", "stop", "max_tokens"):
            page.evaluate("name => { document.getElementById(`set-${name}`).value = ''; }", field)
            page.locator(f"#set-{field}").dispatch_event("input")
        wire.streams("fine")
        page.write("hello")
        page.locator(".message.assistant .tool").wait_for()
        page.idle()
        check(page, wire)


@pytest.mark.parametrize("several", [False, True], ids=["one", "several"])
def test_a_model_may_have_any_name(browser: Any, served: Live, wire: Wire, several: bool) -> None:
    entry = served.client.get("/v1/models").json()["data"][0]
    speculation = entry["speculation"] | {"sources": ["none", POLYGLOT], "draft": POLYGLOT, "verifiers": [POLYGLOT]}
    hostile = entry | {"id": POLYGLOT, "speculation": speculation, "status": {"value": "loaded"}}
    wire.says("/v1/models", {"data": [hostile, hostile | {"id": "b", "status": {"value": POLYGLOT}}][: 1 + several]})
    wire.streams("fine")
    with Page(browser, served.url, before=wire.prepare, bypass_csp=True) as page:
        page.write("hello")
        page.locator(".message.assistant .note").first.wait_for()
        page.idle()
        check(page, wire)


ADDRESSES = [
    "#<img src=x onerror=fire()>", "?q=<script>fire()</script>", "#javascript:fire()", f"?next={OUT}",
    "#__proto__[polluted]=1", "?__proto__[polluted]=1&model=<svg onload=fire()>", "#:~:text=x", "?chat=../../x#text",
]  # fmt: skip


@pytest.mark.parametrize("tail", ADDRESSES)
def test_an_address_says_nothing(browser: Any, served: Live, wire: Wire, tail: str) -> None:
    with Page(browser, served.url + "/" + tail, before=wire.prepare, bypass_csp=True) as page:
        check(page, wire)
        assert page.locator(".message").count() == 0


JSON, EVENTS, HTML = "application/json", "text/event-stream", "text/html"
ANSWERS = {
    "page": (500, HTML, "<script>fire()</script>"),
    "message-object": (400, JSON, '{"error": {"message": {"toString": 1}}}'),
    "list": (400, JSON, "[]"),
    "null": (400, JSON, "null"),
    "text": (429, JSON, '{"error": "<svg onload=fire()>"}'),
    "event": (200, EVENTS, 'data: {"error": {"message": "<img src=x onerror=fire()>"}}\n\n'),
    "no-json": (200, EVENTS, "data: <script>fire()</script>\n\n"),
    "no-stream": (200, HTML, "<script>fire()</script>"),
    "call": (200, EVENTS, 'data: {"choices": [{"delta": {"tool_calls": [{"function": {}}]}}]}\n\ndata: [DONE]\n\n'),
    "content-object": (200, EVENTS, 'data: {"choices": [{"delta": {"content": {"a": 1}}}]}\n\ndata: [DONE]\n\n'),
    "no-choices": (200, EVENTS, 'data: {"nothing": 1}\n\ndata: [DONE]\n\n'),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_of_another_kind_is_an_error_or_nothing(browser: Any, served: Live, wire: Wire, name: str) -> None:
    wire.answers["/v1/chat/completions"] = ANSWERS[name]
    with Page(browser, served.url, before=wire.prepare, bypass_csp=True) as page:
        page.write("hello")
        page.locator(".message.assistant .actions, .message.assistant .error").first.wait_for()
        page.idle()
        check(page, wire)
        wire.streams("fine")
        page.locator("#new-chat").click()
        page.write("hello")
        page.locator(".message.assistant .tool").wait_for()


def test_alternatives_and_metrics_are_texts(browser: Any, served: Live, wire: Wire) -> None:
    wire.streams("x")
    wire.says("/tokenize", {"tokens": [1], "count": 1})
    tops = [{}, {POLYGLOT: -0.1, "__proto__": -1}, {POLYGLOT: -0.1}]
    logprobs = {"tokens": ["a", POLYGLOT, POLYGLOT], "top_logprobs": tops}
    wire.says("/v1/completions", {"choices": [{"logprobs": logprobs}]})
    label = POLYGLOT.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    metrics = f'outrider:spec_decode_num_drafts_total{{source="{label}"}} 3\n'
    with Page(browser, served.url, before=wire.prepare, bypass_csp=True) as page:
        page.locator("#token-view").check()
        page.write("hello")
        page.locator(".tok").first.click()
        page.locator(".alternatives .chance").first.wait_for()
        check(page, wire)
        wire.answers["/metrics"] = (200, "text/plain", metrics)
        page.goto(served.url + "/statistics")
        page.locator("#figures").wait_for()
        assert page.evaluate(BREACHES) == []
        assert wire.left == []


# -- the policy -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(browser: Any, served: Live) -> Iterator[tuple[Page, Wire]]:
    """One page for all, with its policy, which complains of each in the console."""
    wire = Wire(served.url)
    page = Page(browser, served.url, before=wire.prepare)
    yield page, wire
    page.context.close()


@pytest.mark.parametrize("name", INJECTIONS)
def test_the_policy_stops_what_would_get_in(guarded: tuple[Page, Wire], served: Live, name: str) -> None:
    page, wire = guarded
    page.evaluate(INJECTIONS[name])
    page.wait_for_timeout(50)
    assert [what for what in page.evaluate("window.fired") if not what.startswith("policy")] == []
    assert wire.left == []
    assert page.url == served.url + "/"
    assert page.evaluate("document.baseURI") == served.url + "/"


@pytest.mark.parametrize("path", ["/", "/statistics"])
def test_no_other_page_may_frame_it(browser: Any, served: Live, path: str) -> None:
    context = browser.new_context()
    page = context.new_page()
    framed = f"<iframe src='{served.url}{path}'></iframe><object data='{served.url}{path}'></object>"
    page.route(f"{OUT}/**", lambda route: route.fulfill(content_type="text/html", body=framed))
    page.goto(OUT + "/")
    page.wait_for_timeout(300)
    assert [frame.url for frame in page.frames if frame.url.startswith(served.url)] == []
    context.close()


def test_nothing_is_looked_up_before_a_link_is_followed(live: Live) -> None:
    """A host's name can carry what a page holds."""
    assert live.client.get("/").headers["x-dns-prefetch-control"] == "off"
    assert live.client.get("/").headers["cross-origin-resource-policy"] == "same-origin"
