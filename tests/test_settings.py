"""How many settings ``LLM`` and ``outrider serve`` have, the rare ones that ``--help-all`` shows included."""

from __future__ import annotations

from dataclasses import fields

from outrider.config import EngineConfig, SpeculationParams
from outrider_fleet.settings import FleetSettings
from outrider_server.settings import ServerSettings

MOST = 72


def test_settings_are_few() -> None:
    """A new one takes the place of one that nobody needs."""
    kinds = (EngineConfig, SpeculationParams, ServerSettings, FleetSettings)
    names = [field.name for kind in kinds for field in fields(kind) if field.name != "speculation"]  # that holds others
    assert len(names) == len(set(names))
    assert 0 < len(names) <= MOST, f"{len(names)} settings"
