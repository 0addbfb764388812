"""What a first look finds: labels apart, buttons for thumbs, drawers that close, a small model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from outrider import LLM
from tests.server.live import Live
from tests.server.playground.pages import Page

PHONE = (390, 844)

LABELS = """async () => {
    const { showPlots } = await import("/playground/plots.js");
    const tokens = Array.from({ length: 40 }, (_, at) => at);
    const draft = { tokens, parents: tokens.map((at) => at - 1), accepted: tokens, proposed: 40, budget: 40 };
    const steps = Array.from({ length: 500 }, (_, at) => ({ at, tokens: [[1, "a", "bonus", "x"]], draft }));
    showPlots(document.querySelector("#plots"), { steps });
    const frame = document.querySelector("#plots").getBoundingClientRect();
    const labels = [...document.querySelectorAll("#plots figcaption > *, .position > span")];
    const boxes = labels.filter((each) => each.textContent.trim()).map((each) => {
        const range = document.createRange();
        range.selectNodeContents(each);
        return range.getBoundingClientRect();
    });
    const apart = (a, b) => a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
    return {
        count: boxes.length,
        overlapping: boxes.flatMap((a, i) => boxes.slice(i + 1).filter((b) => !apart(a, b))).length,
        outside: boxes.filter((box) => box.right > frame.right + 12 || box.left < frame.left - 12).length,
    };
}"""


@pytest.mark.parametrize("size", [(1280, 800), (1000, 700), PHONE], ids=["desktop", "tablet", "phone"])
def test_labels_of_long_drafts_stand_apart(browser: Any, served: Live, size: tuple[int, int]) -> None:
    with Page(browser, served.url, size) as page:
        if size == PHONE:
            page.get_by_role("button", name="Figures and settings", exact=True).click()
        found = page.evaluate(LABELS)
        assert found["count"] > 16
        assert (found["overlapping"], found["outside"]) == (0, 0)


def test_a_very_long_answer_can_be_drawn(page: Page) -> None:
    points = page.evaluate(
        """async () => {
            const { showPlots } = await import("/playground/plots.js");
            const tokens = [[1, "a", "target", "none"]];
            const steps = Array.from({ length: 300000 }, (_, at) => ({ at, tokens, draft: null }));
            showPlots(document.querySelector("#plots"), { steps });
            return document.querySelector("#plots polyline").getAttribute("points").split(" ").length;
        }"""
    )
    assert points <= 301


TOUCHED = "button, select, summary, input:not([type=checkbox]), textarea, label.switch"
SMALL = """(touched) => [...document.querySelectorAll(touched)]
    .filter((each) => each.checkVisibility({ visibilityProperty: true }) && each.getBoundingClientRect().width)
    .filter((each) => Math.min(each.getBoundingClientRect().height, each.getBoundingClientRect().width) < 40)
    .map((each) => each.outerHTML.slice(0, 100))"""


def test_what_is_touched_is_as_large_as_a_thumb(browser: Any, served: Live) -> None:
    with Page(browser, served.url, PHONE, has_touch=True, is_mobile=True) as page:
        page.set_default_timeout(20_000)
        page.write("hello")
        page.locator(".message.assistant .note").first.wait_for()
        page.idle()
        page.evaluate("for (const each of document.querySelectorAll('details')) each.open = true")
        assert page.evaluate(SMALL, TOUCHED) == []
        for name in ("Chats", "Figures and settings"):
            page.get_by_role("button", name=name, exact=True).tap()
            assert page.evaluate(SMALL, TOUCHED) == []
            page.locator(".drawer.open .close-drawer").tap()
            assert page.locator(".drawer.open").count() == 0
            page.get_by_role("button", name=name, exact=True).tap()
            page.touchscreen.tap(385 if name == "Chats" else 5, 400)
            assert page.locator(".drawer.open").count() == 0


def test_a_small_model_is_said_to_be_one(page: Page, llm: LLM) -> None:
    said = page.locator("#small")
    assert said.inner_text().startswith("tiny has less than a million parameters: its answers are often wrong.")
    answers = ({"larger_model": "org/Larger"}, {"num_parameters": 7_000_000_000})
    for fields in answers:
        page.route("**/v1/models", partial(_answer, fields=fields))
        page.reload()
        page.ready()
        assert said.is_visible() == (fields is answers[0])
        assert said.is_hidden() or said.inner_text().endswith("This machine has room for org/Larger.")
    page.unroute("**/v1/models")
    page.reload()
    page.ready()
    page.ask("hello", 4)
    page.reload()
    page.ready()
    page.locator("#new-chat").click()
    assert page.locator("#welcome").is_visible()
    assert said.is_hidden(), "it is said once"


def _answer(route: Any, *, fields: Mapping[str, Any]) -> None:
    told = route.fetch().json()
    route.fulfill(json={"data": [entry | fields for entry in told["data"]]})


def test_the_number_of_parameters_is_that_of_the_weights(served: Live, llm: LLM) -> None:
    (entry,) = served.client.get("/v1/models").json()["data"]
    config = llm.model.config
    width, mlp = config.hidden_size, config.intermediate_size
    layer = width * (2 * (config.num_heads + config.num_kv_heads) * config.head_dim + 3 * mlp)
    embedding = config.vocab_size * width * (1 if config.tie_embeddings else 2)
    assert entry["num_parameters"] == config.num_layers * layer + embedding
