"""Options that several commands share, and what they mean to the library. Defaults come from ``outrider.config``."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.config import LENIENCE, POSTERIOR_ALPHA, POSTERIOR_THRESHOLD, EngineConfig, SamplingParams
from outrider.config.combination import AUTO, draft_help
from outrider.config.sources import source_record
from outrider.config.structured import MAX_SOURCE_BYTES, StructuredOutput
from outrider.errors import InvalidRequestError

if TYPE_CHECKING:
    from outrider.llm import LLM, Output

DEFAULT_MODEL = "smollm2-135m-instruct"

SAMPLING = SamplingParams()
ENGINE = EngineConfig(model=DEFAULT_MODEL)

_DRAFTS = draft_help()

Model = Annotated[str, typer.Option("--model", "-m", help="Built-in name, folder, .gguf file or hub id.")]
Draft = Annotated[
    str | None, typer.Option(help=_DRAFTS, show_default="auto; model with --draft-model, prediction with --prediction")
]


def _spec_length(value: str | int) -> int | str:
    """``auto`` or a number; what else is wrong with it is for ``SpeculationParams`` to say."""
    return int(value) if str(value).lstrip("-").isdigit() else str(value)


SpecLength = Annotated[
    Any,
    typer.Option(
        "--spec-length", "-k", metavar="K", parser=_spec_length, help="Draft tokens on a path at most, or auto."
    ),
]
DraftModel = Annotated[
    list[str] | None, typer.Option(help="A smaller model of the same vocabulary, as draft; may be repeated.")
]
Heads = Annotated[
    list[str] | None, typer.Option(help="Folder of a head trained for the model; may be repeated for other kinds.")
]
DraftLayers = Annotated[int | None, typer.Option(help="First layers that draft (layer_skip).", show_default="a third")]
Tree = Annotated[
    str | None, typer.Option(help="Draft trees: widths by depth (4,2,1), parents (-1,-1,0), dynamic or learned.")
]
TreeNodes = Annotated[int, typer.Option(help="Nodes of a dynamic tree, or of the drafts of several models.")]
LookaheadWindow = Annotated[int, typer.Option(help="Columns improved in each run (lookahead).")]
LookaheadNgram = Annotated[int, typer.Option(help="Length of collected n-grams (lookahead).")]
LookaheadGuesses = Annotated[int, typer.Option(help="Collected n-grams verified per step (lookahead).")]
DraftTable = Annotated[
    str | None, typer.Option(help="Counts from `outrider train table`, for bigram and unigram.", show_default="live")
]
Prediction = Annotated[
    Path | None, typer.Option(help="A file of text that the answer is expected to resemble, for --draft prediction.")
]
Verifier = Annotated[
    str,
    typer.Option(
        help="matching: same tokens as without drafts; rejection, block, iterative, specinfer, sequoia: same "
        "distribution; lenient, typical: neither."
    ),
]
Lenience = Annotated[
    float | None, typer.Option(help="lenient: no token more than 1/l times too likely.", show_default=str(LENIENCE))
]
PosteriorThreshold = Annotated[
    float | None,
    typer.Option(help="typical: likelier tokens are always accepted.", show_default=str(POSTERIOR_THRESHOLD)),
]
PosteriorAlpha = Annotated[
    float | None,
    typer.Option(help="typical: accept from alpha exp(-entropy).", show_default=str(POSTERIOR_ALPHA)),
]
DraftTemperature = Annotated[
    float | None, typer.Option(help="Sampling temperature of the draft model.", show_default="the request's")
]
MaxTokens = Annotated[int, typer.Option("--max-tokens", "-n", help="Tokens to generate at most.")]
MinTokens = Annotated[int, typer.Option(help="No end before this many tokens.")]
Temperature = Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")]
TopK = Annotated[int, typer.Option(help="Keep the k most likely tokens; 0 keeps all.")]
TopP = Annotated[float, typer.Option(help="Keep the most likely tokens with this probability together.")]
MinP = Annotated[float, typer.Option(help="Keep tokens this many times as likely as the most likely.")]
RepetitionPenalty = Annotated[float, typer.Option(help="Above 1 discourages tokens of prompt and output.")]
PresencePenalty = Annotated[float, typer.Option(help="Subtracted from logits of tokens in the output.")]
FrequencyPenalty = Annotated[float, typer.Option(help="Subtracted for each occurrence in the output.")]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same tokens.", show_default="random")]
Stop = Annotated[list[str] | None, typer.Option(help="End before this string; may be repeated.")]
IgnoreEos = Annotated[bool, typer.Option("--ignore-eos", help="Go on after end-of-text.")]
LogitBias = Annotated[list[str] | None, typer.Option(help="ID:VALUE added to a token's logit; may be repeated.")]
JsonSchema = Annotated[str | None, typer.Option(help="Answer in JSON of this schema: a file, or the schema itself.")]
JsonObject = Annotated[bool, typer.Option("--json-object", help="Answer with a JSON object.")]
Regex = Annotated[str | None, typer.Option(help="Answer with a text that matches (Rust syntax).")]
Choice = Annotated[list[str] | None, typer.Option(help="Answer with this text; repeat it for each one possible.")]
Grammar = Annotated[Path | None, typer.Option(help="Answer with a text of this grammar: a Lark or GBNF file.")]
Logprobs = Annotated[int | None, typer.Option(help="Report log-probabilities and this many alternatives (--json).")]
DType = Annotated[str, typer.Option(help="auto, bfloat16, float32 or int8 (weights).")]
DraftDType = Annotated[str, typer.Option(help="The draft model's dtype.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
MaxSeqLen = Annotated[int | None, typer.Option(help="Context length.", show_default="the model's")]
Threads = Annotated[int | None, typer.Option(help="CPU threads.", show_default="one per core")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def parse_logit_bias(pairs: list[str] | None) -> dict[int, float]:
    """``["42:-1.5"]`` to ``{42: -1.5}``; raises InvalidRequestError naming what cannot be read."""
    bias: dict[int, float] = {}
    for pair in pairs or ():
        token, _, value = pair.partition(":")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise InvalidRequestError(
                f"logit_bias={pair!r} is not valid: write ID:VALUE, as in 42:-1.5", param="logit_bias"
            ) from None
    return bias


def read_prediction(path: Path | None) -> str | None:
    """The text of ``--prediction``; raises InvalidRequestError if it cannot be read."""
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequestError(f"prediction={str(path)!r} cannot be read: {error}", param="prediction") from None


def structured(
    json_schema: str | None, json_object: bool, regex: str | None, choice: list[str] | None, grammar: Path | None
) -> StructuredOutput | None:
    """The form asked for, if one was; raises InvalidRequestError for two, or a file that cannot be read."""
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


def draft_or_auto(draft: str | None, draft_model: Sequence[str] | None, expected: object = None) -> str | None:
    """What ``--draft`` stands for: where it is left out, what goes best with the other options."""
    if draft is not None or draft_model:
        return draft
    return AUTO if expected is None else "prediction"


def own(kind: type[Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a command's options that are fields of the dataclass ``kind``."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in given.items() if name in names}


def load(model: str, **options: Any) -> LLM:
    """Load the model; ``options`` are fields of ``EngineConfig``. Downloads are reported on stderr."""
    config = EngineConfig(model=model, **options)  # refuse what is wrong before torch is imported
    if config.custom_sources and "" not in sys.path:
        sys.path.insert(0, "")  # a draft source of one's own may lie in the working directory, as with `python -m`
    from outrider.llm import LLM

    return LLM(model, progress=True, **options)


def draft_with_heads(model: str, draft_models: Sequence[str], sources: Iterable[str] | None) -> str | None:
    """What to load so that ``sources`` (None: all) have the heads they need; None: they need none."""
    if sources is None:
        from outrider.drafters.trained.heads import sources_with_shipped_heads

        sources = sources_with_shipped_heads(model)
    names = dict.fromkeys(name for name in sources if source_record(name).head_kinds)
    with_model = {} if not names or not draft_models else {"model" if len(draft_models) == 1 else "models": None}
    return ",".join(names | with_model) or None


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
    if output.steps and output.steps[0].logprobs is not None:
        result["logprobs"] = [dict(step.logprobs or {}) for step in output.steps]
    return result
