"""The page of statistics: figures of all callers, for those alone who may read /metrics."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from outrider import LLM
from tests.server.live import Live
from tests.server.playground.pages import QUESTION

BODY = {"messages": [{"role": "user", "content": QUESTION}], "max_tokens": 20, "temperature": 0}
FILES = ("/statistics", "/playground/statistics.js", "/playground/style.css")


def login(browser: Any, key: str) -> Any:
    page = browser.new_context(http_credentials={"username": "", "password": key}).new_page()
    page.set_default_timeout(20_000)
    return page


def shown(page: Any) -> dict[str, str]:
    page.locator("#requests .tile").first.wait_for()
    labels, figures = page.locator(".tile dt").all_text_contents(), page.locator(".tile dd").all_text_contents()
    return dict(zip(labels, figures, strict=True))


def test_figures_are_those_of_the_metrics(browser: Any, served: Live) -> None:
    served.post("/v1/chat/completions", BODY)
    page = browser.new_page()
    page.goto(served.url + "/statistics")
    figures = shown(page)
    made = sum(sample.value for metric in served.service.metrics.registry.collect() for sample in metric.samples
               if sample.name == "outrider:generation_tokens_total")  # fmt: skip
    assert int(figures["tokens made"].replace(",", "")) == made
    assert figures["running"] == "0"
    assert "suffix" in "".join(page.locator("#sources tbody").all_text_contents())
    assert page.locator("#times tbody td").first.text_content() != "–"
    page.close()


def test_a_quantile_lies_between_its_bucket_s_bounds(browser: Any, served: Live) -> None:
    page = browser.new_page()
    page.goto(served.url + "/statistics")
    text = "\n".join(
        f'outrider:x_bucket{{le="{le}"}} {count}' for le, count in (("1.0", 10), ("2.0", 30), ("+Inf", 40))
    )
    quantiles = page.evaluate(
        """async (text) => {
            const { parse, quantile } = await import("/playground/prometheus.js");
            const metrics = parse(text);
            return [0.1, 0.5, 0.99].map((share) => quantile(metrics, "x", share));
        }""",
        text,
    )
    assert quantiles == pytest.approx([0.4, 1.5, 2.0])
    page.close()


def test_they_do_not_leak_between_keys(browser: Any, llm: LLM) -> None:
    with Live(llm, api_keys=("one", "two"), metrics_key="figures") as server:
        server.post("/v1/chat/completions", BODY, headers={"X-Api-Key": "one"})
        page = login(browser, "two")
        page.goto(server.url + "/statistics")
        page.locator("#key-form").wait_for()
        assert page.locator("#figures").is_hidden()
        assert page.locator("#requests .tile").count() == 0
        page.locator("#key").fill("wrong")
        page.locator("#key").press("Enter")
        page.get_by_text("may not read these figures").wait_for()
        page.locator("#key").fill("figures")
        page.locator("#key").press("Enter")
        assert shown(page)["tokens made"] != "0"
        page.close()

        page = login(browser, "figures")
        page.goto(server.url + "/statistics")
        assert shown(page)["tokens made"] != "0"
        page.close()


def test_the_metrics_key_opens_this_page_and_nothing_else(llm: LLM) -> None:
    with Live(llm, api_keys=("one", "two"), metrics_key="figures") as server:
        basic = {"Authorization": "Basic " + base64.b64encode(b":figures").decode()}
        assert [server.client.get(path, headers=basic).status_code for path in FILES] == [200] * 3
        for path in ("/", "/v1/models", "/playground", "/statistics/more", "/openapi.json"):
            assert server.client.get(path, headers=basic).status_code == 401, path
        assert server.client.post("/v1/chat/completions", json=BODY, headers=basic).status_code == 401
        assert [server.client.get(path).status_code for path in FILES] == [401] * 3
