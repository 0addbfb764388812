"""Options of ``serve`` and settings of the server."""

from __future__ import annotations

import inspect

from outrider.cli.generate import generate
from outrider.config.fields import field_docs
from outrider.config.options import ENGINE_OPTIONS
from outrider_server.commands.serve import serve
from outrider_server.settings import ServerSettings


def test_every_engine_option_of_generate_is_one_of_serve() -> None:
    """Options that say how the model is loaded or drafts are made; those of a request are the client's."""
    options = set(ENGINE_OPTIONS) - {"prediction"}
    assert options & set(inspect.signature(generate).parameters) <= set(inspect.signature(serve).parameters)


def test_every_setting_is_documented() -> None:
    docs = field_docs(ServerSettings)
    assert [name for name in ServerSettings.__dataclass_fields__ if not docs.get(name)] == []
