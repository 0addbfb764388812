"""A server for other people's clients."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_folders import model_folder
from tests.server.conftest import load
from tests.server.live import Live
from tests.server.test_chat import TEMPLATE, _set_template


@pytest.fixture(scope="session")
def tool_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = model_folder(tmp_path_factory.mktemp("conformance") / "tiny", max_position_embeddings=1024)
    _set_template(folder, TEMPLATE)
    return folder


@pytest.fixture(scope="session")
def served(tool_folder: Path) -> Iterator[Live]:
    """The tiny model with a chat template that knows tools, behind an API key."""
    with Live(load(tool_folder), api_keys=("sk-test",)) as server:
        yield server
