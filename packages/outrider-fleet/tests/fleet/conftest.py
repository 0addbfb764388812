"""A tiny model and two engines of it that draft, for the tests of one module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider_fleet.replica.engine_host import EngineHost
from tests.fleet.local import load_hosts
from tests.model_folders import model_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("fleet") / "tiny", max_position_embeddings=512)


@pytest.fixture(scope="module")
def hosts(folder: Path) -> Iterator[list[EngineHost]]:
    made = load_hosts(folder, 2, draft="ngram")
    yield made
    for host in made:
        host.close()
