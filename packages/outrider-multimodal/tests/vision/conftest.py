"""A tiny SmolVLM in a folder, as transformers has it and loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM
from tests import vision_models

SOURCES = "suffix"


@pytest.fixture(scope="session")
def made() -> Any:
    return vision_models.model()


@pytest.fixture(scope="session")
def folder(made: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return vision_models.save(made, tmp_path_factory.mktemp("smolvlm"))


@pytest.fixture(scope="session")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(str(folder), dtype="float32", draft="suffix", spec_length=4, max_batch_size=4) as loaded:
        yield loaded
