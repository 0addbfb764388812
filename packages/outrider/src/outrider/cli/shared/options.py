"""Options that several commands share, and their meaning to the library. Defaults come from ``outrider.config``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.shared import flags
from outrider.cli.shared.generated import option
from outrider.cli.shared.help import LONG_HELP
from outrider.config import EngineConfig, SamplingParams, engine_config
from outrider.config.combination import draft_help
from outrider.config.options import ENGINE_OPTIONS
from outrider.config.sources import source_record
from outrider.config.structured import MAX_SOURCE_BYTES, StructuredOutput
from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.output import Output

DEFAULT_MODEL = "smollm2-135m-instruct"

SAMPLING = SamplingParams()
ENGINE = EngineConfig(model=DEFAULT_MODEL)

LONG_HELP["draft"] = draft_help


LOADING = ("dtype", "draft_dtype", "kv_cache_dtype", "device", "implementation", "threads")
"""Fields that affect the loading of models."""
MANY_REQUESTS = ("extra_sources", "kv_cache", "kv_tokens", "prefix_reuse", "max_batch_size", "max_batched_tokens")
"""Fields without effect on a single request."""

Model = Annotated[
    str,
    typer.Option(
        "--model",
        "-m",
        help="Built-in name, folder, .gguf file or hub id.",
        autocompletion=flags.completer(flags.models),
    ),
]
DraftModel = Annotated[list[str] | None, option(EngineConfig, "draft_model")]
MaxTokens = Annotated[int, option(SamplingParams, "max_tokens")]
Temperature = Annotated[float, option(SamplingParams, "temperature")]
DType = Annotated[str, option(EngineConfig, "dtype")]
DraftDType = Annotated[str, option(EngineConfig, "draft_dtype")]
Device = Annotated[str, option(EngineConfig, "device")]
Threads = Annotated[int | None, option(EngineConfig, "threads")]
_FORM = "Form of the answer"
JsonSchema = Annotated[
    str | None, typer.Option(help="Answer in JSON of this schema: a file, or the schema itself.", rich_help_panel=_FORM)
]
JsonObject = Annotated[
    bool, typer.Option("--json-object", help="Answer with a JSON object.", rich_help_panel=_FORM, hidden=True)
]
Regex = Annotated[
    str | None, typer.Option(help="Answer with a text that matches (Rust syntax).", rich_help_panel=_FORM, hidden=True)
]
Choice = Annotated[
    list[str] | None,
    typer.Option(help="Answer with this text; repeat it for each one possible.", rich_help_panel=_FORM, hidden=True),
]
Grammar = Annotated[
    Path | None,
    typer.Option(help="Answer with a text of this grammar: a Lark or GBNF file.", rich_help_panel=_FORM, hidden=True),
]
Record = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Append requests and answers to this file, for outrider replay.", hidden=True),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def structured(
    json_schema: str | None, json_object: bool, regex: str | None, choice: list[str] | None, grammar: Path | None
) -> StructuredOutput | None:
    """The requested form, None without one. Raises InvalidRequestError for two forms or an unreadable file."""
    given: dict[str, Any] = {
        "json_schema": json_schema,
        "json_object": json_object or None,
        "regex": regex,
        "choice": choice or None,
        "grammar": grammar,
    }
    given = {name: value for name, value in given.items() if value is not None}
    if grammar is not None:
        given["grammar"] = _read("grammar", grammar)
    if json_schema is not None and not json_schema.lstrip().startswith("{"):
        given["json_schema"] = _read("json_schema", Path(json_schema))
    return StructuredOutput(**given) if given else None


def _read(param: str, path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(MAX_SOURCE_BYTES + 1).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise InvalidRequestError(f"{param}={str(path)!r} cannot be read: {reason}", param=param) from None


def own(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A command's options that are fields of the dataclass ``kind``."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in given.items() if name in names}


def engine(given: Mapping[str, Any]) -> dict[str, Any]:
    """A command's options that are arguments of ``LLM``."""
    return {name: value for name, value in given.items() if name in ENGINE_OPTIONS}


def require_chat_model(model: str) -> None:
    """Raise InvalidRequestError if the model has no chat template. Its weights are not read."""
    from outrider.tokenizer.chat_template import find_template
    from outrider.utils.json_files import read_json_object
    from outrider.weights.hub.catalog import resolve

    folder = resolve(model, progress=True)
    file = folder / "tokenizer_config.json"
    if find_template(folder, read_json_object(file).get("chat_template") if file.exists() else None) is None:
        raise InvalidRequestError(
            f"{model} is no chat model (it has no chat template): continue a text with "
            f"`outrider generate --raw -m {model}`, or use an instruct model"
        )


def load(model: str, **options: Any) -> LLM:
    """Load the model; ``options`` are those of ``LLM``. Downloads are reported on stderr."""
    config = engine_config(model, **options)  # refuses wrong options before torch is imported
    if config.custom_sources and "" not in sys.path:
        sys.path.insert(0, "")  # finds the user's draft sources in the working directory, as with `python -m`
    from outrider.llm import LLM

    return LLM(model, progress=True, **options)


def draft_to_load(model: str, draft_models: Sequence[str], sources: Iterable[str] | None) -> str:
    """The draft to load an engine with, so that it has the heads of ``sources`` (None: all) and the draft models."""
    if sources is None:
        from outrider.drafters.trained.heads import sources_with_shipped_heads

        sources = sources_with_shipped_heads(model)
    records = {name: source_record(name) for name in sources}
    found = [name for name, record in records.items() if record.head_kinds]
    if draft_models:
        any_vocabulary = [name for name, record in records.items() if record.any_vocabulary]
        found += any_vocabulary or ["model" if len(draft_models) == 1 else "models"]
    return ",".join(found) or "none"


def as_json(output: Output, *, model: str, draft: str) -> dict[str, Any]:
    """The object that ``--json`` prints."""
    result: dict[str, Any] = {
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "model": model,
        "draft": draft,
        "seed": output.seed,
        "stats": output.stats.as_dict(),
    }
    if output.score is not None:
        result["score"] = output.score
    if output.steps and output.steps[0].logprobs is not None:
        result["logprobs"] = [dict(step.logprobs or {}) for step in output.steps]
    return result
