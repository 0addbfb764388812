"""``outrider serve``: an OpenAI-compatible server with a playground."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from outrider.cli import options as o
from outrider.cli.config_file import Config
from outrider.config import EngineConfig
from outrider.server.settings import ServerSettings

D = ServerSettings()
"""Defaults."""

_NETWORK, _LIMITS, _TIMES, _LOGS = "Network and access", "Limits", "Times (seconds)", "Log"
_NAMES = {
    "extra_source": "extra_sources",
    "api_key": "api_keys",
    "cors_origin": "cors_origins",
    "allowed_host": "allowed_hosts",
} | {"served_model_name": "served_model_names"}
"""Flags that may be given several times, and the settings they fill."""


def serve(
    model: o.Model = o.DEFAULT_MODEL,
    config: Config = None,
    draft: o.Draft = None,
    draft_model: o.DraftModel = None,
    spec_length: o.SpecLength = o.ENGINE.spec_length,
    verifier: o.Verifier = o.ENGINE.verifier,
    draft_temperature: o.DraftTemperature = o.ENGINE.draft_temperature,
    lenience: o.Lenience = None,
    posterior_threshold: o.PosteriorThreshold = None,
    posterior_alpha: o.PosteriorAlpha = None,
    draft_table: o.DraftTable = None,
    extra_source: Annotated[
        list[str] | None, typer.Option(help="package.module:Class of a source that requests may name; may be repeated.")
    ] = None,
    heads: o.Heads = None,
    draft_layers: o.DraftLayers = None,
    tree: o.Tree = None,
    tree_nodes: o.TreeNodes = o.ENGINE.tree_nodes,
    lookahead_window: o.LookaheadWindow = o.ENGINE.lookahead_window,
    lookahead_ngram: o.LookaheadNgram = o.ENGINE.lookahead_ngram,
    lookahead_guesses: o.LookaheadGuesses = o.ENGINE.lookahead_guesses,
    dtype: o.DType = o.ENGINE.dtype,
    draft_dtype: o.DraftDType = o.ENGINE.dtype,
    device: o.Device = o.ENGINE.device,
    threads: o.Threads = None,
    max_seq_len: o.MaxSeqLen = None,
    max_batch_size: Annotated[int, typer.Option(help="Sequences that run at once.")] = o.ENGINE.max_batch_size,
    max_batched_tokens: Annotated[int, typer.Option(help="Tokens of one run.")] = o.ENGINE.max_batched_tokens,
    kv_cache: Annotated[str, typer.Option(help="contiguous or paged.")] = o.ENGINE.kv_cache,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens the paged cache holds.", show_default="what memory allows")
    ] = None,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = D.host,
    port: Annotated[int, typer.Option(help="0 takes any free one.")] = D.port,
    uds: Annotated[str | None, typer.Option(help="Listen on this Unix socket instead.")] = D.uds,
    served_model_name: Annotated[
        list[str] | None, typer.Option(help="Name for clients; may be repeated; * for any.", show_default="the model")
    ] = None,
    ssl_certfile: Annotated[str | None, typer.Option(help="TLS certificate (PEM).")] = D.ssl_certfile,
    ssl_keyfile: Annotated[str | None, typer.Option(help="Its key (PEM).")] = D.ssl_keyfile,
    ssl_ca_certs: Annotated[str | None, typer.Option(help="Ask clients for certificates of these authorities.")] = None,
    api_key: Annotated[list[str] | None, typer.Option(help="Ask for this key; may be repeated.")] = None,
    api_key_file: Annotated[str | None, typer.Option(help="File of keys, one a line.")] = D.api_key_file,
    cors_origin: Annotated[list[str] | None, typer.Option(help="Let web pages of this origin call.")] = None,
    allowed_host: Annotated[
        list[str] | None, typer.Option(help="Host header to answer to; * for any.", show_default="see docs")
    ] = None,
    max_queue: Annotated[int, typer.Option(help="Sequences that may wait; beyond that, 429.")] = D.max_queue,
    max_body_bytes: Annotated[int, typer.Option(help="Of a request.")] = D.max_body_bytes,
    max_header_bytes: Annotated[int, typer.Option(help="Of a request.")] = D.max_header_bytes,
    max_connections: Annotated[int, typer.Option(help="At once.")] = D.max_connections,
    max_prompts: Annotated[int, typer.Option(help="Of one request.")] = D.max_prompts,
    max_n: Annotated[int, typer.Option(help="Outputs of one prompt.")] = D.max_n,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(help="Of one prompt.", show_default="the context")
    ] = D.max_prompt_tokens,
    max_tokens: Annotated[
        int | None, typer.Option(help="Of one output, at most.", show_default="the context")
    ] = D.max_tokens,
    request_timeout: Annotated[float, typer.Option(help="For a whole request, in seconds.")] = D.request_timeout,
    header_timeout: Annotated[float, typer.Option(help="For a request's head to arrive.")] = D.header_timeout,
    body_timeout: Annotated[float, typer.Option(help="For its body to arrive.")] = D.body_timeout,
    keep_alive_timeout: Annotated[float, typer.Option(help="For the next request.")] = D.keep_alive_timeout,
    write_timeout: Annotated[float, typer.Option(help="For a reader to take what was sent.")] = D.write_timeout,
    max_backlog: Annotated[int, typer.Option(help="Tokens that may wait for a slow reader.")] = D.max_backlog,
    drain_timeout: Annotated[float, typer.Option(help="To finish requests after SIGTERM.")] = D.drain_timeout,
    stream_interval: Annotated[
        float, typer.Option(help="Send streams only every so many seconds, to hide the time of tokens.")
    ] = D.stream_interval,
    stream_padding: Annotated[
        int, typer.Option(help="Pad streamed events to a multiple of so many bytes.")
    ] = D.stream_padding,
    playground: Annotated[bool, typer.Option(help="Serve the playground at /.")] = D.playground,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = D.log_level,
    log_format: Annotated[str, typer.Option(help="text or json.")] = D.log_format,
    log_prompts: Annotated[bool, typer.Option("--log-prompts", help="Log prompts and outputs.")] = D.log_prompts,
) -> None:
    """Serve a model to OpenAI's clients, with a playground at /.

    Every option can also be set in the environment: --max-queue as OUTRIDER_MAX_QUEUE. Options that may be repeated
    take several values there, separated by spaces.

    Example: outrider serve --draft lookup --api-key-file keys.txt
    """
    given: dict[str, Any] = {_NAMES.get(name, name): value for name, value in locals().items()}
    given |= {name: tuple(given[name] or ()) for name in _NAMES.values()}
    settings = ServerSettings(**o.own(ServerSettings, given))
    given |= {"draft": o.draft_or_auto(draft, draft_model), "draft_model": draft_model or None, "heads": heads or ()}
    engine = o.own(EngineConfig, given)
    EngineConfig(**engine)  # refuse what is wrong before torch is imported
    settings.keys  # noqa: B018  and a key file that cannot be read
    from outrider.server.run import serve as run

    raise typer.Exit(run(settings, **engine))
