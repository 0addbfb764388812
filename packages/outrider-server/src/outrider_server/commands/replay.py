"""``outrider replay``: recorded requests run again on this machine, and the first token that differs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outrider.cli.shared import options as o
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig, SpeculationParams
from outrider.errors import ConfigError

if TYPE_CHECKING:
    from outrider.recording.records import Recorded


@options_from(SpeculationParams, EngineConfig, but=("prediction", "verifier", "lenience"))
def replay(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A record of outrider serve --record.")],
    model: o.Model = "",
    *,
    given: Given,
    as_json: o.AsJson = False,
) -> None:
    """Run recorded requests again: exit code 0 if all tokens are the recorded ones, 1 if not.

    The first token that differs is named, with its step and the likeliest tokens there. Without --model, the model is
    the recorded one, if it is here.

    Example: outrider serve --record talk.jsonl, later: outrider replay talk.jsonl --draft none
    """
    from outrider.recording.records import read_record
    from outrider.utils.working import working
    from outrider_server.replaying import Replayed, other_model, replay

    recorded = list(read_record(file))
    if not recorded:
        raise ConfigError(f"{file} has no requests")
    llm = o.load(model or _recorded_model(file, recorded), **o.engine(given))
    others = other_model(llm, recorded)
    found: list[Replayed] = []
    try:
        with working("replay", total=len(recorded)) as tick:
            for one in replay(llm, recorded):
                found.append(one)
                tick(one.recorded.id)
    except KeyboardInterrupt:
        pass  # the requests before it are reported
    differ = [one.difference for one in found if one.difference is not None]
    left_out = [one for one in found if one.left_out is not None]
    equal, complete = len(found) - len(differ) - len(left_out), len(found) == len(recorded)
    if as_json:
        whole = {"equal": equal, "complete": complete, "other_model": others, "requests": [x.as_data() for x in found]}
        typer.echo(json.dumps(whole, ensure_ascii=False))
    else:
        lines = [*others, *(one.line() for one in differ)]
        lines += [f"{one.recorded.id}: left out, as {one.left_out}" for one in left_out]
        total = f"{equal} of {len(recorded)} outputs are the recorded ones"
        typer.echo("\n".join([*lines, total + ("" if complete else "; interrupted")]))
    if not complete:
        raise typer.Exit(130)
    if differ or not equal:
        raise typer.Exit(1)


def _recorded_model(file: Path, recorded: Sequence[Recorded]) -> str:
    """The one model of a record, if it is built in, a path, or in a store here. Raises ConfigError."""
    from outrider.weights.hub.builtin import BUILTINS
    from outrider.weights.hub.catalog import found_model

    names = sorted({one.model for one in recorded})
    if len(names) > 1:
        raise ConfigError(f"{file} is of {len(names)} models: name one of {', '.join(names)} with -m")
    name = names[0]
    if name in BUILTINS or os.path.exists(name) or found_model(name) is not None:
        return name
    raise ConfigError(f"{file} is of the model {name!r}, which is not here: name it, or its file, with -m")
