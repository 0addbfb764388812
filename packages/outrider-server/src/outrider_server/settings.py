"""Settings of the server and their defaults. Every field but ``limits`` is a flag of ``outrider serve``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from outrider.errors import ConfigError
from outrider.utils.whole_files import check_place
from outrider_server.model_specs import ModelSpec

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits that keep one client from harming the others: constants of a server, which no flag changes."""

    max_header_bytes: int = 32 << 10
    """Of a request."""
    max_audio_bytes: int = 25 << 20
    """Of a request with sound."""
    max_audio_seconds: float = 4 * 3600.0
    """Of a sound."""
    max_images: int = 16
    """Of one prompt."""
    max_image_pixels: int = 1 << 25
    """Of one image; a small file may claim any number."""
    max_connections: int = 1024
    """At once; fewer if the limit of open files is lower."""
    max_prompts: int = 64
    """Of one request."""
    max_n: int = 16
    """Outputs of one prompt, those of ``best_of`` included."""
    max_draft_tokens: int = 64
    """Of one step, for a request that chooses its drafts; more if the server's own drafts are longer."""
    header_timeout: float = 10.0
    """Seconds for a request's head to arrive."""
    body_timeout: float = 30.0
    """Seconds for its body to arrive."""
    keep_alive_timeout: float = 15.0
    """Seconds for the next request on an idle connection."""
    write_timeout: float = 30.0
    """Seconds for a reader to take what was sent; then its connection is cut."""
    max_backlog: int = 2048
    """Tokens that may wait for a slow reader; then its request is dropped."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """Seconds, bytes and tokens throughout; validates itself."""

    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 8000
    """0 takes any free one."""
    uds: str | None = None
    """Listen on this Unix socket instead."""
    served_model_names: tuple[str, ...] = ()
    """Name for clients; may be repeated; * for any.

    None: the model as it was named to the server.
    """

    models: tuple[ModelSpec, ...] = ()
    """Serve these models, each loaded when first asked for: NAME=MODEL, ...; may be repeated.

    Or a JSON object, which can give each model options of its own: {"NAME": {"model": "MODEL", "draft": "suffix"}}.
    Other options of the command line hold for all.
    """
    max_loaded_models: int | None = None
    """Of --models, loaded at once; the one idle longest gives way.

    When all are busy, a request waits for its turn.
    """
    model_idle_seconds: float | None = None
    """Unload one of --models after this time without requests; 0: never.

    A request's ``keep_alive`` goes first.
    """

    ssl_certfile: str | None = None
    """TLS certificate (PEM)."""
    ssl_keyfile: str | None = None
    """Its key (PEM)."""
    api_keys: tuple[str, ...] = ()
    """Ask for this key; may be repeated."""
    api_key_file: str | None = None
    """File of keys, one a line.

    Blank lines and lines that begin with # are skipped.
    """
    metrics_key: str | None = None
    """Key that reads /metrics, /slots and /statistics, and nothing else.

    None: an API key reads them where there is one alone.
    """
    share_across_keys: bool = False
    """Let callers with different API keys share cached prefixes and learned text.

    A caller can then find out another's questions and answers.
    """
    allow_lossy: bool = False
    """Let requests choose verifiers that change the output.

    They are lenient and typical; without it only as the server is started.
    """
    scheduling_policy: Literal["fcfs", "priority"] = "fcfs"
    """priority: let requests set their priority; fcfs: refuse it.

    Priorities order the requests of one API key, never those of different ones.
    """
    cors_origins: tuple[str, ...] = ()
    """Let web pages of this origin call.

    None may by default.
    """
    allowed_hosts: tuple[str, ...] = ()
    """Host header to answer to; * for any.

    None: any, or only loopback names while listening on loopback alone.
    """

    max_queue: int = 64
    """Sequences of an API key that may wait; beyond that, 429."""
    max_body_bytes: int = 8 << 20
    """Of a request."""
    max_tokens: int | None = None
    """Of one output, at most.

    More may be asked for, but not given.
    """

    request_timeout: float = 600.0
    """For a whole request, in seconds."""
    drain_timeout: float = 30.0
    """To finish requests after SIGTERM."""

    stream_interval: float = 0.0
    """Send streams only at this interval in seconds, to hide the time of tokens."""
    stream_padding: int = 0
    """Pad streamed events to a multiple of this number of bytes.

    Their size then tells nothing of their text.
    """

    playground: bool = True
    """Serve the playground at /."""
    metrics_prefix: Literal["outrider", "vllm"] = "outrider"
    """Before the names in /metrics; vllm adds its labels too.

    Dashboards made for vLLM then work as they are.
    """
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """debug, info, warning or error."""
    log_format: Literal["text", "json"] = "text"
    """text or json."""
    record: str | None = None
    """Append all callers' requests and outputs to this file, for outrider replay."""
    limits: Limits = Limits()
    """Protective limits; the command line has no flag for them."""

    def __post_init__(self) -> None:
        self._check_numbers()
        if self.log_level not in ("debug", "info", "warning", "error"):
            raise ConfigError(f"log_level={self.log_level!r} is unknown: use debug, info, warning or error")
        if self.scheduling_policy not in ("fcfs", "priority"):
            raise ConfigError(f"scheduling_policy={self.scheduling_policy!r} is unknown: use fcfs or priority")
        if self.log_format not in ("text", "json"):
            raise ConfigError(f"log_format={self.log_format!r} is unknown: use text or json")
        if (self.ssl_certfile is None) != (self.ssl_keyfile is None):
            raise ConfigError("TLS needs both a certificate and its key: give --ssl-certfile and --ssl-keyfile")
        for path in (self.ssl_certfile, self.ssl_keyfile):
            if path is not None and not Path(path).is_file():
                raise ConfigError(f"there is no file {path}: check the path")
        for key in (*self.api_keys, *(() if self.metrics_key is None else (self.metrics_key,))):
            if not key or not key.isascii() or any(c.isspace() or not c.isprintable() for c in key):
                raise ConfigError("an API key is empty or has characters other than visible ASCII: choose another")

        self._check_models()
        check_place(None if self.record is None else Path(self.record))

    def _check_models(self) -> None:
        if self.models and self.served_model_names:
            raise ConfigError("served_model_names is for a single model: names of several are given in --models")
        for name in ("max_loaded_models", "model_idle_seconds"):
            if getattr(self, name) is not None and not self.models:
                raise ConfigError(f"{name} is for several models: give them with --models, or leave it out")

    def _check_numbers(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port={self.port} is not valid: use 1 to 65535, or 0 for any free port")
        for name in ("max_queue", "stream_padding", "stream_interval", "drain_timeout"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise ConfigError(f"{name}={value} is not valid: use 0 or more")
        if not (math.isfinite(self.request_timeout) and self.request_timeout > 0):
            raise ConfigError(f"request_timeout={self.request_timeout} is not valid: use a positive number of seconds")
        idle = self.model_idle_seconds
        if idle is not None and not (math.isfinite(idle) and idle >= 0):
            raise ConfigError(f"model_idle_seconds={idle} is not valid: use a number of seconds, or 0 for never")
        for name in ("max_body_bytes", "max_tokens", "max_loaded_models"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name}={value} is not valid: use at least 1, or leave it out")

    @property
    def keys(self) -> tuple[str, ...]:
        """All API keys, those of the file included. Raises ConfigError if it cannot be read or holds none."""
        if self.api_key_file is None:
            return self.api_keys
        try:
            lines = Path(self.api_key_file).read_text("ascii").splitlines()
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not ASCII text"
            raise ConfigError(f"the API keys in {self.api_key_file} cannot be read: {reason}") from None
        keys = tuple(line.strip() for line in lines if line.strip() and not line.startswith("#"))
        if not keys:
            raise ConfigError(f"there is no API key in {self.api_key_file}: write one a line")
        return ServerSettings(api_keys=(*self.api_keys, *keys)).api_keys

    @property
    def hosts(self) -> tuple[str, ...]:
        """Host names to answer to; empty for any.

        A server for this machine alone answers to loopback names only: else a web page whose name is made to point
        at 127.0.0.1 (DNS rebinding) could talk to it as its own origin.
        """
        if self.allowed_hosts or self.uds is not None or self.host not in LOOPBACK:
            return () if "*" in self.allowed_hosts else self.allowed_hosts
        return LOOPBACK
