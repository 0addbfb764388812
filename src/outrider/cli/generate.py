"""``outrider generate``: one prompt, one answer."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from typing import Annotated, Any

import typer

from outrider.cli import options as o
from outrider.cli.config_file import Config
from outrider.config import EngineConfig, SamplingParams
from outrider.errors import InvalidRequestError


def generate(
    text: Annotated[str | None, typer.Argument(metavar="[PROMPT]", help="The text to continue.")] = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The same, as an option.", show_default="read stdin")
    ] = None,
    model: o.Model = o.DEFAULT_MODEL,
    chat: Annotated[bool, typer.Option("--chat", help="Send the prompt as a chat message.")] = False,
    system: Annotated[str | None, typer.Option(help="System message; implies --chat.")] = None,
    config: Config = None,
    draft: o.Draft = None,
    draft_model: o.DraftModel = None,
    heads: o.Heads = None,
    draft_layers: o.DraftLayers = None,
    draft_table: o.DraftTable = None,
    prediction: o.Prediction = None,
    spec_length: o.SpecLength = o.ENGINE.spec_length,
    tree: o.Tree = None,
    tree_nodes: o.TreeNodes = o.ENGINE.tree_nodes,
    lookahead_window: o.LookaheadWindow = o.ENGINE.lookahead_window,
    lookahead_ngram: o.LookaheadNgram = o.ENGINE.lookahead_ngram,
    lookahead_guesses: o.LookaheadGuesses = o.ENGINE.lookahead_guesses,
    verifier: o.Verifier = o.ENGINE.verifier,
    lenience: o.Lenience = None,
    posterior_threshold: o.PosteriorThreshold = None,
    posterior_alpha: o.PosteriorAlpha = None,
    draft_temperature: o.DraftTemperature = o.ENGINE.draft_temperature,
    max_tokens: o.MaxTokens = o.SAMPLING.max_tokens,
    min_tokens: o.MinTokens = o.SAMPLING.min_tokens,
    temperature: o.Temperature = o.SAMPLING.temperature,
    top_k: o.TopK = o.SAMPLING.top_k,
    top_p: o.TopP = o.SAMPLING.top_p,
    min_p: o.MinP = o.SAMPLING.min_p,
    repetition_penalty: o.RepetitionPenalty = o.SAMPLING.repetition_penalty,
    presence_penalty: o.PresencePenalty = o.SAMPLING.presence_penalty,
    frequency_penalty: o.FrequencyPenalty = o.SAMPLING.frequency_penalty,
    logit_bias: o.LogitBias = None,
    seed: o.Seed = None,
    stop: o.Stop = None,
    ignore_eos: o.IgnoreEos = False,
    json_schema: o.JsonSchema = None,
    json_object: o.JsonObject = False,
    regex: o.Regex = None,
    choice: o.Choice = None,
    grammar: o.Grammar = None,
    logprobs: o.Logprobs = None,
    dtype: o.DType = o.ENGINE.dtype,
    draft_dtype: o.DraftDType = o.ENGINE.dtype,
    device: o.Device = o.ENGINE.device,
    max_seq_len: o.MaxSeqLen = None,
    threads: o.Threads = None,
    as_json: o.AsJson = False,
) -> None:
    """Continue a text, or answer a message with --chat.

    On a terminal, tokens are coloured by where they came from: accepted drafts green, tokens the model put in
    place of a refused draft yellow, tokens it added after a fully accepted draft cyan. NO_COLOR turns that off.

    Example: outrider generate --chat "Name three rivers." --draft suffix -k 15
    """
    given: dict[str, Any] = dict(locals())
    form = o.structured(json_schema, json_object, regex, choice, grammar)
    given |= {"logit_bias": o.parse_logit_bias(logit_bias), "stop": stop or (), "structured": form}
    params = SamplingParams(**o.own(SamplingParams, given))
    words, expected = _prompt(text, prompt), o.read_prediction(prediction)
    given |= {"draft": o.draft_or_auto(draft, draft_model, None if heads else expected)}
    given |= {"draft_model": draft_model or None, "heads": heads or (), "max_batch_size": 1}
    llm = o.load(**o.own(EngineConfig, given))
    messages = [{"role": "user", "content": words}]
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    request: Any = messages if chat or system is not None else words
    speculation = replace(llm.speculation, prediction=expected)
    if as_json:
        answer = llm.chat if request is messages else llm.generate
        output = answer(request, params, speculation=speculation)
        typer.echo(json.dumps(o.as_json(output, model=model, draft=llm.speculation.draft), ensure_ascii=False))
        return
    from outrider.cli.screen import Screen, report

    screen = Screen()
    for step in llm.stream(request, params, speculation=speculation):
        screen.show(step)
    screen.end()
    report(llm.last)


def _prompt(argument: str | None, option: str | None) -> str:
    if argument is not None and option is not None:
        raise InvalidRequestError(f"prompt={argument!r} is given a second time with --prompt: leave one out")
    given = option if argument is None else argument
    text = _piped() if given is None else given
    if not text:
        raise InvalidRequestError("the prompt is empty: give at least one character", param="prompt")
    return text


def _piped() -> str:
    if sys.stdin.isatty():
        raise InvalidRequestError("no prompt: write one behind the command, or pipe a text in", param="prompt")
    try:
        return sys.stdin.read().removesuffix("\n")
    except UnicodeDecodeError:
        raise InvalidRequestError("stdin is not UTF-8 text: convert it", param="prompt") from None
