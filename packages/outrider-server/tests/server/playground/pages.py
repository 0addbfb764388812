"""The playground as a user meets it: what can be done on the page, and what it shows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from outrider import LLM
from tests.server.live import Live
from tests.server.scripted import saying

QUESTION = "hello world the world the world the world"


class Page:
    """Use it in ``with``; at the end, nothing may have been complained of in the browser's console."""

    def __init__(
        self,
        browser: Any,
        url: str,
        size: tuple[int, int] = (1280, 800),
        scheme: str = "light",
        before: Callable[[Any], None] = lambda context: None,
        panel: bool = True,
        **options: Any,
    ) -> None:
        """``before`` prepares the browser's context before it opens the page. ``panel``: opened, where it has room."""
        viewport = {"width": size[0], "height": size[1]}
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme, **options)
        before(self.context)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.complaints: list[str] = []
        self.page.on("console", lambda message: self._note(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self._note(str(error)))
        self.page.goto(url)
        self.ready()
        if panel and size[0] > 1200:
            self.page.locator("#show-panel").click()
            self.page.locator("#text").focus()

    def ready(self) -> None:
        self.page.get_by_role("status").get_by_text("ready", exact=True).wait_for()

    def _note(self, text: str) -> None:
        if "ERR_CONNECTION" not in text and "Failed to load resource" not in text:  # a server that is away, or refuses
            self.complaints.append(text)

    def __enter__(self) -> Page:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.context.close()
        if kind is None:
            assert self.complaints == []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.page, name)

    def set(self, name: str, value: str) -> None:
        """Give a setting its value; a box is "on" or "off"."""
        self.page.evaluate("document.querySelector('#panel').classList.add('open')")
        self.page.evaluate("for (const each of document.querySelectorAll('#settings, .group')) each.open = true")
        field = self.page.locator(f"#set-{name}")
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        elif field.get_attribute("type") == "checkbox":
            field.set_checked(value == "on")
        else:
            field.fill(value)

    def write(self, text: str) -> None:
        self.page.locator("#text").fill(text)
        self.page.locator("#text").press("Enter")

    def ask(self, text: str = QUESTION, tokens: int = 40) -> str:
        """Send a message and wait for the whole answer."""
        self.set("max_tokens", str(tokens))
        before = self.page.locator(".message.assistant").count()
        self.write(text)
        self.page.locator(".message.assistant").nth(before).wait_for()
        self.idle()
        return self.answer()

    def idle(self) -> None:
        self.page.locator("#stop").wait_for(state="hidden")

    def answer(self) -> str:
        """The text of the last answer, as the page keeps it."""
        stored: str = self.stored()[-1]["content"]
        return stored

    def stored(self) -> list[dict[str, Any]]:
        """The messages of the chat that was last changed, as they are kept in the browser."""
        found: list[dict[str, Any]] = self.page.evaluate(
            """async () => {
                const store = await import("/playground/store.js");
                const { path } = await import("/playground/conversation.js");
                return path(store.load(store.list()[0].id));
            }"""
        )
        return found

    def texts(self, selector: str) -> list[str]:
        found: list[str] = self.page.locator(selector).all_text_contents()
        return found


@contextmanager
def slowly(llm: LLM, seconds: float) -> Iterator[None]:
    """Let every step of the engine take so long at least."""
    engine: Any = llm.engine
    step = engine.step

    def slow() -> Any:
        time.sleep(seconds)
        return step()

    engine.step = slow
    try:
        yield
    finally:
        del engine.step


@contextmanager
def answering(server: Live, question: str, text: str) -> Iterator[None]:
    """Let the model answer the first message of a chat with ``text``."""
    count = server.post("/tokenize", {"messages": [{"role": "user", "content": question}]})["count"]
    with saying(server.service.engine.llm, text, after=count):
        yield
