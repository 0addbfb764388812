"""Firefox by WebDriver BiDi (https://w3c.github.io/webdriver-bidi/), which it speaks without further programs."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

LISTENING = re.compile(r"WebDriver BiDi listening on (ws://\S+)")


class Firefox:
    """A browser with one page. Use it in ``with``."""

    def __init__(self, program: str, profile: Path) -> None:
        from websockets.sync.client import connect

        self.complaints: list[str] = []
        self._ids = itertools.count(1)
        self._log = profile.with_suffix(".log")
        profile.mkdir()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                [program, "--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0"],
                stderr=log,
                stdout=log,
            )
        self._open = ExitStack()
        self._socket = self._open.enter_context(connect(f"{self._address()}/session", max_size=None, open_timeout=30))
        self.call("session.new", capabilities={})
        self.call("session.subscribe", events=["log.entryAdded"])
        self._page = self.call("browsingContext.getTree")["contexts"][0]["context"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()
        self._process.terminate()
        self._process.wait(30)

    def call(self, method: str, **params: Any) -> Any:
        """The result of a command. Raises AssertionError if the browser refuses it."""
        own = next(self._ids)
        self._socket.send(json.dumps({"id": own, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv(timeout=60))
            if message.get("method") == "log.entryAdded" and message["params"]["level"] == "error":
                self.complaints.append(message["params"]["text"])
            if message.get("id") == own:
                assert message["type"] == "success", message
                return message["result"]

    def goto(self, url: str) -> None:
        self.call("browsingContext.navigate", context=self._page, url=url, wait="complete")

    def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression gives, which may be a promise, as JSON has it."""
        found = self.call(
            "script.evaluate",
            expression=f"(async () => JSON.stringify(await ({expression})))()",
            target={"context": self._page},
            awaitPromise=True,
        )
        assert found["type"] == "success", found
        value = found["result"].get("value")
        return None if value is None else json.loads(value)

    def wait_for(self, expression: str, seconds: float = 60) -> Any:
        """What the expression gives as soon as that is true."""
        until = time.monotonic() + seconds
        while not (found := self.evaluate(expression)):
            assert time.monotonic() < until, f"not within {seconds} s: {expression}"
            time.sleep(0.1)
        return found

    def type(self, text: str) -> None:
        """Press the keys of ``text`` where the cursor is; ``\\ue007`` is Enter, ``\\ue00c`` Escape."""
        keys = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.call("input.performActions", context=self._page, actions=[{"type": "key", "id": "keys", "actions": keys}])

    def _address(self) -> str:
        until = time.monotonic() + 60
        while not (found := LISTENING.search(self._log.read_text())):
            assert self._process.poll() is None, self._log.read_text()
            assert time.monotonic() < until, "Firefox does not listen"
            time.sleep(0.1)
        return found[1]
