"""A browser, where one is installed, and a server that drafts as a plain ``outrider serve`` does."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM
from tests.server.live import Live
from tests.server.playground.pages import Page

ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync"]


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Closed with this package: its driver keeps an event loop running, which other tests must not find."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="install outrider[browser]")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("no Chromium is installed")
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture(scope="session")
def llm(folder: Path) -> LLM:
    """The default sources. The length is fixed: a controller that measures times would draft now and then only."""
    return LLM(str(folder), spec_length=4, max_batch_size=4, threads=1)


@pytest.fixture(scope="session")
def served(llm: LLM) -> Iterator[Live]:
    with Live(llm) as server:
        yield server


@pytest.fixture
def page(browser: Any, served: Live) -> Iterator[Page]:
    """The playground in a browser that has never seen it."""
    with Page(browser, served.url) as opened:
        yield opened
