"""Several models that come and go, in the browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.server.conftest import load
from tests.server.live import Live
from tests.server.playground.pages import Page


def test_a_model_is_loaded_when_it_is_asked(browser: Any, folder: Path) -> None:
    loaders = {name: lambda: load(folder) for name in ("one", "two")}
    with Live(None, loaders=loaders) as server, Page(browser, server.url) as page:
        assert page.texts("#model-choice option") == ["one (unloaded)", "two (unloaded)"]
        page.locator("#model-choice").select_option("two")
        page.locator("#model-choice option", has_text="two (unloaded)").wait_for(state="detached")
        page.ready()
        assert "auto (ngram)" in page.texts("#set-draft option"), "it is loaded before it is asked"
        page.ask(tokens=5)
        assert page.stored()[-1]["model"] == "two"
        assert page.texts("#model-choice option") == ["one (unloaded)", "two"]
        assert "ngram" in page.texts("#set-draft option")
        assert "auto (ngram)" in page.texts("#set-draft option")
