"""The files and functions that a request passes before the engine has it, measured and not counted by hand.

Two walks end where ``Engine.add`` is entered::

    chat        POST /v1/chat/completions, from the application's first middleware
    generate    LLM.generate("...")

A profile function (``sys.setprofile``) on every thread notes each function of ``outrider*`` that is entered. A first
request is answered before, so that imports and caches made once do not count. The *route* of the chat walk begins with
the endpoint's own function: the guards and the body's parser stand before it.

    python -m benchmarks.request_path [--json]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import httpx

from outrider import LLM
from outrider.engine.engine import Engine
from outrider_server.app import create_app
from outrider_server.models import Models
from outrider_server.openai import chat
from outrider_server.service import Service
from outrider_server.settings import ServerSettings
from tests.model_folders import model_folder

QUESTIONS = ("What is a river?", "What is a lake?")
"""The first is asked unobserved."""


@dataclass
class Walk:
    """Functions in the order in which they were first entered: (file from the package's name on, function)."""

    steps: list[tuple[str, str]] = field(default_factory=list)

    @property
    def files(self) -> list[str]:
        return list(dict.fromkeys(file for file, _ in self.steps))

    def of(self, package: str) -> list[str]:
        """The files of one distribution, by its import name."""
        return [file for file in self.files if file.startswith(f"{package}/")]

    def since(self, function: str) -> Walk:
        """The walk from the first function of that name on."""
        start = next(i for i, (_, name) in enumerate(self.steps) if name == function)
        return Walk(self.steps[start:])

    def as_dict(self) -> dict[str, Any]:
        packages = sorted({file.partition("/")[0] for file in self.files})
        by_file = {file: [name for own, name in self.steps if own == file] for file in self.files}
        return {"files": {package: len(self.of(package)) for package in packages}, "functions": by_file}


class Recorder:
    """Notes the functions of ``outrider*`` that any thread enters, until ``Engine.add`` is."""

    def __init__(self) -> None:
        self.walk = Walk()
        self.is_on = False
        self._seen: set[CodeType] = set()
        self._end = Engine.add.__code__

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if not self.is_on or event != "call" or frame.f_code in self._seen:
            return
        code = frame.f_code
        self._seen.add(code)
        if (place := _place(code.co_filename)) is not None:
            self.walk.steps.append((place, code.co_qualname))
        if code is self._end:
            self.is_on = False


def _place(filename: str) -> str | None:
    """``outrider_server/app.py`` of a file of a distribution; None of any other file."""
    parts = Path(filename).parts
    packages = [i for i, part in enumerate(parts) if i and parts[i - 1] == "src" and part.startswith("outrider")]
    return "/".join(parts[packages[-1] :]) if packages else None


@contextmanager
def recorded() -> Iterator[Recorder]:
    """A recorder that every thread started inside has."""
    recorder = Recorder()
    before = sys.getprofile()
    threading.setprofile(recorder)
    sys.setprofile(recorder)
    try:
        yield recorder
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@contextmanager
def small_model() -> Iterator[LLM]:
    """Two random layers with a chat template: a walk does not depend on weights."""
    with tempfile.TemporaryDirectory() as folder, LLM(str(model_folder(Path(folder) / "small")), threads=1) as llm:
        yield llm


def chat_walk() -> Walk:
    """A chat completion, asked of the application without a socket."""
    with recorded() as recorder, small_model() as llm:
        service = Service(ServerSettings(), "target")
        service.attach(llm)
        try:
            asyncio.run(_ask(service, recorder))
        finally:
            service.close()
    return recorder.walk


async def _ask(service: Service, recorder: Recorder) -> None:
    transport = httpx.ASGITransport(create_app(Models.of(service)))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for question in QUESTIONS:
            idle = threading.Event()
            service.engine.call(idle.set)  # after the commands of the question before
            await asyncio.to_thread(idle.wait)
            recorder.is_on = question == QUESTIONS[-1]
            messages = [{"role": "user", "content": question}]
            answer = await client.post("/v1/chat/completions", json={"messages": messages, "max_tokens": 2, "seed": 1})
            answer.raise_for_status()


def generate_walk() -> Walk:
    """``LLM.generate`` of one text."""
    with recorded() as recorder, small_model() as llm:
        for question in QUESTIONS:
            recorder.is_on = question == QUESTIONS[-1]
            llm.generate(question, max_tokens=2, seed=1)
    return recorder.walk


WALKS: dict[str, Callable[[], Walk]] = {"chat": chat_walk, "generate": generate_walk}
ROUTE = chat.chat.__qualname__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="write one JSON object")
    as_json = parser.parse_args().json
    walks = {name: walk() for name, walk in WALKS.items()}
    walks["chat, from the route"] = walks["chat"].since(ROUTE)
    if as_json:
        print(json.dumps({name: walk.as_dict() for name, walk in walks.items()}))
        return
    for name, walk in walks.items():
        counts = ", ".join(f"{count} of {package}" for package, count in walk.as_dict()["files"].items())
        print(f"\n{name}: {len(walk.files)} files ({counts})")
        for file, functions in walk.as_dict()["functions"].items():
            print(f"  {file:<48} {', '.join(functions)}")


if __name__ == "__main__":
    main()
