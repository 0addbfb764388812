"""``outrider serve``: an OpenAI-compatible server with a playground."""

from __future__ import annotations

import typer

from outrider.cli import options as o
from outrider.cli.config_file import Config
from outrider.cli.generated import Given, options_from
from outrider.config import EngineConfig, SpeculationParams, engine_config
from outrider.server.settings import ServerSettings


@options_from(SpeculationParams, EngineConfig, ServerSettings, but=("prediction",))
def serve(
    model: o.Model = o.DEFAULT_MODEL,
    config: Config = None,
    *,
    given: Given,
) -> None:
    """Serve a model to OpenAI's clients, with a playground at /.

    Every option can also be set in the environment: --max-queue as OUTRIDER_MAX_QUEUE. Options that may be repeated
    take several values there, separated by spaces.

    Example: outrider serve --draft lookup --api-key-file keys.txt
    """
    settings = ServerSettings(**o.own(ServerSettings, given))
    options = o.engine(given)
    engine_config(model, **options)  # refuse what is wrong before torch is imported
    settings.keys  # noqa: B018  and a key file that cannot be read
    from outrider.server.run import serve as run

    raise typer.Exit(run(settings, model=model, **options))
