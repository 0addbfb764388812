"""What several tests of the documentation need."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import stand_in


@pytest.fixture(scope="session")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user cache with small models under the names of the built-in ones."""
    cache = tmp_path_factory.mktemp("cache")
    stand_in.prepare(cache)
    return cache
