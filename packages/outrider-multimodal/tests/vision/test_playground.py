"""A picture in the playground, in a browser, and a model that sees it."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import LLM
from tests.server.live import Live
from tests.server.playground import conftest
from tests.server.playground.pages import Page
from tests.vision_models import image

browser = conftest.browser  # the fixture


def test_a_picture_is_seen(request: pytest.FixtureRequest, llm: LLM, tmp_path: Path) -> None:
    image(1).save(tmp_path / "cat.png")
    with Live(llm) as server, Page(request.getfixturevalue("browser"), server.url) as page:
        tokens = []
        for picture in (False, True):
            if picture:
                page.locator("#files").set_input_files(tmp_path / "cat.png")
                page.locator(".chip canvas").wait_for()
            page.ask("what is this", 4)
            tokens.append(page.stored()[-1]["usage"]["prompt_tokens"])
            page.locator("#new-chat").click()
        assert tokens[1] >= tokens[0] + 16, "those of the picture"
