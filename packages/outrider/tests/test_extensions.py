"""Extensions are found by their entry points, and an absent one says how to install it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from outrider import extensions
from outrider.errors import ConfigError, MissingExtensionError
from outrider.extensions import extension, extension_names, has_extension


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def points(group: str) -> list[EntryPoint]:
        return [EntryPoint("echo", "tests.test_extensions:ECHO", group)] if group == "outrider.commands" else []

    monkeypatch.setattr(extensions, "entry_points", points)
    extensions._found.cache_clear()
    yield
    extensions._found.cache_clear()


ECHO = "an extension"


def test_an_entry_point_brings_an_extension(installed: None) -> None:
    assert extension_names("commands") == ("echo",)
    assert has_extension("commands", "echo")
    assert not has_extension("commands", "serve")
    found: Any = extension("commands", "echo")
    assert found == ECHO


def test_an_absent_extension_names_its_extra(installed: None) -> None:
    with pytest.raises(
        MissingExtensionError, match=r"draft='medusa' is not installed: pip install 'outrider\[torch\]'"
    ):
        extension("drafters", "medusa", "draft='medusa'")
    with pytest.raises(ConfigError, match="no installed package brings drafters 'nonsense'"):
        extension("drafters", "nonsense")
