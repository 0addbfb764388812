"""Ollama's commands: ``run`` and ``ps``. ``pull``, ``list``, ``show`` and ``rm`` are those of ``outrider models``."""

from __future__ import annotations

import json
import sys
import urllib.error
import urllib.request
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from outrider.cli.chat import MAX_TOKENS, OPTIONS, talk
from outrider.cli.generate import answer, piped
from outrider.cli.shared import flags
from outrider.cli.shared import options as o
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig, SamplingParams, SpeculationParams
from outrider.errors import InvalidRequestError, OutriderError

_PATIENCE_S = 10.0
_FOREVER_S = 10 * 365 * 86400.0  # a server says so of a model that it does not unload
_MAX_ANSWER = 1 << 20  # bytes


@options_from(SpeculationParams, EngineConfig, SamplingParams, only=OPTIONS, max_tokens=MAX_TOKENS)
def run(
    name: Annotated[
        str,
        typer.Argument(
            help="Built-in name, folder, .gguf file or hub id.", autocompletion=flags.completer(flags.models)
        ),
    ],
    words: Annotated[list[str] | None, typer.Argument(metavar="PROMPT", help="The message to answer.")] = None,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    *,
    given: Given,
    record: o.Record = None,
    as_json: o.AsJson = False,
) -> None:
    """Talk with a model, or answer one prompt, given here or piped in.

    `outrider chat -m NAME` and `outrider generate -m NAME` in one, as Ollama has it.
    """
    if not words and sys.stdin.isatty():
        if as_json:
            raise InvalidRequestError("--json is for one answer: give a prompt", param="prompt")
        talk(name, given, system=system, record=record)
        return
    text = " ".join(words or ()) or piped()
    if not text:
        raise InvalidRequestError("the prompt is empty: give at least one character", param="prompt")
    params = SamplingParams(**o.own(SamplingParams, given))
    answer(text, params, name, o.engine(given), system=system, record=record, as_json=as_json)


def ps(
    url: Annotated[str, typer.Option(help="Where the server is.")] = "http://127.0.0.1:8000",
    api_key: Annotated[str | None, typer.Option(envvar="OUTRIDER_API_KEY", help="Key of the server.")] = None,
    as_json: o.AsJson = False,
) -> None:
    """Show the models that a server (`outrider serve`) has loaded."""
    models = _loaded(url, api_key)
    if as_json:
        typer.echo(json.dumps(models))
        return
    if not models:
        typer.echo("no model is loaded")
    for model in models:
        details = model.get("details") or {}
        kind = " ".join(str(details[key]) for key in ("family", "quantization_level") if details.get(key))
        size = f"{model.get('size', 0) / 1e6:,.0f} MB"
        typer.echo(f"{model.get('name')}  {kind}, {size}, context {model.get('context_length')}, {_until(model)}")


def _loaded(url: str, api_key: str | None) -> list[dict[str, Any]]:
    """Raises OutriderError where no server of ours answers."""
    if not url.startswith(("http://", "https://")):
        raise InvalidRequestError(f"url={url!r} is no address of a server: use one such as http://127.0.0.1:8000")
    keys = (api_key or "").split()  # a server may have several
    headers = {"Authorization": f"Bearer {keys[0]}"} if keys else {}
    request = urllib.request.Request(f"{url.rstrip('/')}/api/ps", headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as reply:
            found = json.loads(reply.read(_MAX_ANSWER))["models"]
    except urllib.error.HTTPError as error:
        remedy = "give its key with --api-key" if error.code in (401, 403) else "is it `outrider serve`?"
        raise OutriderError(f"the server at {url} answers {error.code} {error.reason}: {remedy}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise OutriderError(
            f"no server answers at {url} ({reason}): start one with `outrider serve`, or name it with --url"
        ) from None
    except (ValueError, KeyError, TypeError):
        raise OutriderError(f"what answers at {url} is no `outrider serve`: name another with --url") from None
    return [model for model in found if isinstance(model, dict)]


def _until(model: dict[str, Any]) -> str:
    try:
        left = datetime.fromisoformat(str(model.get("expires_at"))) - datetime.now(UTC)
    except (ValueError, TypeError):
        return "loaded"
    seconds = left.total_seconds()
    return "stays loaded" if seconds > _FOREVER_S else f"unloaded in {max(0.0, seconds):.0f} s if idle"
