"""A chat request passes few files on its way to the engine: the server's share is measured, and may only shrink."""

from __future__ import annotations

import pytest

from benchmarks.request_path import ROUTE, Walk, chat_walk


@pytest.fixture(scope="module")
def walk() -> Walk:
    return chat_walk()


def test_the_route_passes_few_files_of_the_server(walk: Walk) -> None:
    own = walk.since(ROUTE).of("outrider_server")
    assert own[0] == "outrider_server/openai/chat.py"
    assert len(own) <= 7, own


def test_the_application_passes_few_files_before_the_route(walk: Walk) -> None:
    own = walk.of("outrider_server")
    assert own[0] == "outrider_server/http/guards.py"
    assert len(own) <= 11, own


def test_the_walk_ends_in_the_engine(walk: Walk) -> None:
    assert walk.steps[-1] == ("outrider/engine/engine.py", "Engine.add")
