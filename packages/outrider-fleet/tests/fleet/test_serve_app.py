"""``outrider_fleet.serve:app``: arguments of Ray Serve become settings. Without Ray, which only runs them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider_fleet.serve import app


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What applications are made of."""
    given: list[Any] = []
    fake = SimpleNamespace(application=lambda *parts: given.extend(parts))
    monkeypatch.setitem(sys.modules, "outrider_fleet.ray.application", fake)
    return given


def test_arguments_that_are_text_are_read_as_options(made: list[Any]) -> None:
    app({"model": "m", "replicas": "2", "threads": "1", "served_model_names": "tiny,t", "api_keys": "12345",
         "share_drafts": "false", "request_timeout": "1.5", "lora_modules": "sql=./sql"})  # fmt: skip
    settings, fleet, told = made
    assert settings.served_model_names == ("tiny", "t")
    assert settings.api_keys == ("12345",), "a key that is cut into letters is no key"
    assert settings.request_timeout == 1.5
    assert (fleet.bounds, fleet.share_drafts) == ((2, 2), False)
    assert told["options"] == {"threads": 1, "lora_modules": ("sql=./sql",)}


def test_arguments_of_a_file_keep_their_types(made: list[Any]) -> None:
    app({"model": "m", "replicas": 3, "allowed_hosts": ["*"], "lora_modules": {"sql": "./sql"}})
    settings, fleet, told = made
    assert (settings.allowed_hosts, fleet.bounds) == (("*",), (3, 3))
    assert told["options"] == {"lora_modules": {"sql": "./sql"}}


@pytest.mark.parametrize("args", [{"no_such": "1"}, {"models": "a"}, {"replicas": "none"}])
def test_what_nothing_takes_is_refused(made: list[Any], args: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        app(args)
    assert not made
