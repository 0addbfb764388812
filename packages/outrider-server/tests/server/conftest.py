"""One model and one server for all tests that do not change them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from outrider import LLM
from tests.model_folders import model_folder
from tests.server.live import Live


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("served") / "tiny", max_position_embeddings=1024)


def load(folder: Path) -> LLM:
    return LLM(str(folder), draft="ngram", spec_length=4, max_batch_size=4, threads=1)


@pytest.fixture(scope="session")
def live(folder: Path) -> Iterator[Live]:
    """The tiny model, drafting with n-grams, four sequences at a time."""
    with Live(load(folder)) as server:
        yield server
