"""What an answer shows: Markdown without markup, tokens with their alternatives and drafts, plots, a race."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from outrider import LLM
from tests.server.live import Live
from tests.server.playground.pages import QUESTION, Page, answering

MARKDOWN = """# A title

Some **bold**, `code` & <b onclick="alert(1)">tags</b>, [a link](https://example.org/) and
[a trap](javascript:alert(1)).

* one
* two &amp; three

```python
def f(x):
    return "<i>" + x
```

| a | b |
|---|--:|
| 1 | 2 |

<img src=x onerror="document.title='broken in'"> <script>document.title='broken in'</script>
![picture](https://example.org/x.png)
"""


def show(page: Page, text: str) -> None:
    page.evaluate(
        """async (text) => {
            const { showMarkdown } = await import("/playground/markdown.js");
            const place = document.querySelector("#log");
            for (let end = 1; end <= text.length; end += 7) showMarkdown(place, text.slice(0, end));
            showMarkdown(place, text);
        }""",
        text,
    )


def test_markdown_becomes_elements_and_never_markup(page: Page) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    show(page, MARKDOWN)
    log = page.locator("#log")
    assert log.locator("h3").inner_text() == "A title"
    assert page.texts("#log li") == ["one", "two & three"]
    assert log.locator("pre code").inner_text() == 'def f(x):\n    return "<i>" + x'
    assert page.texts("#log td") == ["1", "2"]
    assert [link.get_attribute("href") for link in log.locator("a").all()] == [
        "https://example.org/",
        "https://example.org/x.png",
    ]
    assert '<b onclick="alert(1)">' in log.inner_text()
    assert log.locator("img, script, b, [onclick], [onerror]").count() == 0
    assert page.title() == "Outrider playground"
    assert all(url.startswith("blob") or "example.org" not in url for url in asked)


@pytest.mark.parametrize(
    "text",
    ["`" * 3 + "\n<svg onload=alert(1)>", "[x](data:text/html,<script>alert(1)</script>)", "<" * 5000, "*" * 3000 + "a",
     "> " * 300 + "deep", "[a](<javascript:alert(1)>)", "[a]: javascript:alert(1)\n\n[a]", "&#x110000;&#0;&bogus;"],
    ids=["open code", "data", "angles", "stars", "deep", "bracketed", "reference", "entities"],
)  # fmt: skip
def test_hostile_markdown_stays_text(page: Page, text: str) -> None:
    show(page, text)
    assert page.locator("#log").locator("a, svg, script, iframe").count() == 0


def test_code_is_copied(page: Page, served: Live) -> None:
    with answering(served, "hello", "```\nhello world\n```\n"):
        page.ask("hello", 60)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy code").click()
    assert page.evaluate("navigator.clipboard.readText()") == "hello world"


def test_tokens_show_where_they_came_from_and_what_else_was_likely(page: Page, served: Live) -> None:
    page.ask()
    page.locator("#token-view").check()
    tokens = page.locator(".tok")
    assert tokens.count() == 40
    page.locator(".tok.accepted").first.click()
    page.locator(".alternatives .taken").wait_for()
    chances = [float(text.strip("<%")) for text in page.texts(".chance-value")]
    assert chances == sorted(chances, reverse=True)
    assert len(chances) >= 2
    assert "accepted: drafted, and kept" in page.texts("#inspector")[0]
    label = page.locator("#inspector svg").get_attribute("aria-label")
    drafted, accepted = map(int, re.search(r"drafted (\d+).*?(\d+) accepted", label).groups())  # type: ignore[union-attr]
    assert page.locator("#inspector svg .node.accepted").count() == accepted
    assert page.locator("#inspector svg .node.refused").count() == drafted - accepted
    page.locator("#by-source").click()
    assert set(page.texts("#legend li")[0]) & set("recyclingsuffix")


def test_the_arrow_keys_go_through_the_tokens(page: Page) -> None:
    page.ask(tokens=12)
    page.locator("#token-view").check()
    page.locator(".tokens").focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    assert page.evaluate("[...document.querySelectorAll('.tok')].findIndex(t => t.matches('.inspected'))") == 2
    page.keyboard.press("Escape")
    assert page.locator("#inspector").is_hidden()


def test_what_else_was_likely_is_what_logprobs_say(page: Page, served: Live) -> None:
    page.ask(tokens=12)
    page.locator("#token-view").check()
    page.locator(".tok").nth(5).click()
    page.locator(".alternatives .taken").wait_for()
    body = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12, "temperature": 0}
    told = served.post("/v1/chat/completions", body | {"logprobs": True, "top_logprobs": 5})
    best = told["choices"][0]["logprobs"]["content"][5]["top_logprobs"]
    shown = page.texts(".alternatives code")
    assert {entry["token"] for entry in best} == {json.loads(text) for text in shown}


def test_plots_tell_of_every_step(page: Page) -> None:
    page.ask()
    figures = dict(zip(page.texts("#plots figcaption span"), page.texts("#plots output"), strict=True))
    (message,) = [node for node in page.stored() if node["role"] == "assistant"]
    assert float(figures["Tokens per run (τ)"]) == pytest.approx(40 / len(message["steps"]), abs=0.006)
    shares = page.evaluate("node => import('/playground/plots.js').then(m => m.acceptance(node.steps))", message)
    assert shares == pytest.approx(message["metrics"]["acceptance_by_position"], abs=1e-4)
    assert page.locator("#plots svg[role=img]").count() == 3


@pytest.mark.parametrize("cold", [True, False], ids=["cold", "warm"])
def test_a_race_is_fair_and_says_so(page: Page, cold: bool) -> None:
    page.ask(tokens=24)
    sent: list[dict[str, Any]] = []
    page.on("request", lambda request: sent.append(request.post_data_json) if request.post_data else None)
    page.locator("#race summary").click()
    page.locator("#race-repeats").fill("2")
    page.locator("#race-cold").set_checked(cold)
    page.locator("#race-start").click()
    page.locator("#race-verdict", has_text="times plain decoding").wait_for()
    page.idle()
    assert ["off" if body.get("speculation") == "off" else "auto" for body in sent] == ["off", "auto", "auto", "off"]
    salts = {body.get("cache_salt") for body in sent}
    assert len(salts) == (4 if cold else 1)
    assert not any("token_details" in body or "draft_details" in body for body in sent)
    assert "the same text each time" in page.texts("#race-verdict")[0]
    detail = page.texts("#race-detail")[0]
    assert "Medians of 2" in detail
    assert ("Learned before: nothing" in detail) == cold


def test_a_race_is_about_what_stands_in_the_box(page: Page) -> None:
    page.ask("hello the first", 8)
    page.set("max_tokens", "")
    page.locator("#race summary").click()
    page.locator("#race-repeats").fill("1")
    page.locator("#text").fill("hello typed")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.locator("#race-start").click()
    page.locator("#race-verdict", has_text="times plain decoding").wait_for()
    page.idle()
    body = sent.value.post_data_json
    assert [message["content"] for message in body["messages"]] == ["hello the first", page.answer(), "hello typed"]
    assert body["max_tokens"] == 256, "a race of whole contexts would take hours"
    assert page.locator("#text").input_value() == "hello typed", "it is raced, not sent"
    assert page.texts(".message.user .bubble") == ["hello the first"]
    page.locator("#text").fill("")
    with page.expect_request("**/v1/chat/completions") as sent:
        page.locator("#race-start").click()
    page.locator("#race-verdict", has_text="times plain decoding").wait_for()
    page.idle()
    assert [message["content"] for message in sent.value.post_data_json["messages"]] == ["hello the first"]


def test_a_race_of_nothing_asks_for_a_message(page: Page) -> None:
    page.locator("#race summary").click()
    page.locator("#race-start").click()
    page.locator("#race-state", has_text="Write a message first").wait_for()
    assert page.evaluate("document.activeElement.id") == "text"


def test_an_answer_may_fill_the_context(page: Page, llm: LLM) -> None:
    with page.expect_request("**/v1/chat/completions") as sent:
        page.set("ignore_eos", "on")
        page.write("hello")
    assert "max_tokens" not in sent.value.post_data_json
    page.locator(".note", has_text=f"The context of {llm.engine.max_seq_len} tokens is full").wait_for()
    page.idle()
    assert page.stored()[-1]["usage"]["total_tokens"] == llm.engine.max_seq_len
    assert page.locator(".note").get_by_role("button", name="Continue").count() == 0


def test_a_default_is_not_kept_as_if_it_were_chosen(page: Page) -> None:
    page.set("top_k", "7")
    assert json.loads(page.evaluate("localStorage['outrider.settings']")) == {"top_k": "7", "panel": True}
