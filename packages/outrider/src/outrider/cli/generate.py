"""``outrider generate``: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli.shared import options as o
from outrider.cli.shared.config_file import Config
from outrider.cli.shared.generated import Given, options_from
from outrider.config import EngineConfig, SamplingParams, SpeculationParams
from outrider.errors import InvalidRequestError
from outrider.utils.whole_files import check_place


@options_from(SpeculationParams, EngineConfig, SamplingParams, but=o.MANY_REQUESTS)
def generate(
    text: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The message to answer, or the text to continue.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The same, as an option.", show_default="read stdin")
    ] = None,
    model: o.Model = o.DEFAULT_MODEL,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt as a text, without a chat template.")] = False,
    system: Annotated[str | None, typer.Option(help="System message.")] = None,
    image: Annotated[
        list[Path] | None, typer.Option(metavar="FILE", hidden=True, help="Show this image; may be repeated.")
    ] = None,
    config: Config = None,
    *,
    given: Given,
    json_schema: o.JsonSchema = None,
    json_object: o.JsonObject = False,
    regex: o.Regex = None,
    choice: o.Choice = None,
    grammar: o.Grammar = None,
    record: o.Record = None,
    as_json: o.AsJson = False,
) -> None:
    """Answer a prompt, or continue it with --raw.

    On a terminal, accepted draft tokens are green, tokens in place of a refused draft yellow, and tokens after a
    fully accepted draft cyan. NO_COLOR turns that off. A model without a chat template continues the prompt.

    Example: outrider generate "Name three rivers." --draft suffix -k 15
    """
    if raw and system is not None:
        raise InvalidRequestError(f"system={system!r} is part of a chat: leave it out, or leave out --raw")
    if raw and image:
        raise InvalidRequestError(f"image={str(image[0])!r} is part of a chat: leave it out, or leave out --raw")
    form = o.structured(json_schema, json_object, regex, choice, grammar)
    params = SamplingParams(**o.own(SamplingParams, given), structured=form)
    words, options = _prompt(text, prompt), o.engine(given)
    answer(words, params, model, options, raw=raw, system=system, image=image, record=record, as_json=as_json)


def answer(
    words: str,
    params: SamplingParams,
    model: str,
    options: Mapping[str, Any],
    *,
    raw: bool = False,
    system: str | None = None,
    image: Sequence[Path] | None = None,
    record: Path | None = None,
    as_json: bool = False,
) -> None:
    """Load ``model`` with ``options``, and write its answer to one prompt, as ``generate`` documents it."""
    if system is not None or image:
        o.require_chat_model(model)
    check_place(record)
    llm = o.load(model, **options, max_batch_size=1)
    if record is not None:
        llm.record(record, logits=True)
    shown = [{"type": "image", "image": file} for file in image or ()]
    content = [*shown, {"type": "text", "text": words}] if shown else words
    messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    is_chat = system is not None or bool(shown) or (not raw and llm.tokenizer.chat_template is not None)
    request: Any = messages if is_chat else words
    if as_json:
        output = (llm.chat if is_chat else llm.generate)(request, params)
        typer.echo(json.dumps(o.as_json(output, model=model, draft=llm.speculation.draft), ensure_ascii=False))
        return
    from outrider.cli.shared.first_words import say_first_words
    from outrider.cli.shared.screen import Screen, report

    screen = Screen()
    for step in llm.stream(request, params):
        screen.show(step)
    screen.end()
    report(llm.last)
    if sys.stdout.isatty():
        say_first_words(llm, model)


def _prompt(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None:
        raise InvalidRequestError(f"prompt={argument!r} is given a second time with --prompt: leave one out")
    given = option if argument is None else argument
    text = piped() if given is None else given
    if not text:
        raise InvalidRequestError("the prompt is empty: give at least one character", param="prompt")
    return text


def piped() -> str:
    """The text of stdin. Raises InvalidRequestError if stdin is a terminal, or no text."""
    if sys.stdin.isatty():
        raise InvalidRequestError("no prompt: write one behind the command, or pipe a text in", param="prompt")
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError:
        raise InvalidRequestError("stdin is not UTF-8 text: convert it", param="prompt") from None
