"""The engines that a benchmark compares: Outrider's draft sources, other libraries, and servers."""

from __future__ import annotations

import json
import resource
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from outrider import __version__
from outrider.config import SamplingParams, SpeculationParams
from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.folder import gguf_weights
from outrider_lab.bench.arrivals import ServedRequest, closed_loop, poisson
from outrider_lab.bench.process import PeerProcess


class BenchBackend(Protocol):
    """An engine that continues a group of prompts at once."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """Name and version of the library that runs; empty if unknown."""
        ...

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[ServedRequest]]:
        """Tokens of each prompt, seconds until the last token, and the requests' timings if they are known.

        ``salt`` is the requests' ``cache_salt``: sources learn nothing across salts.
        """
        ...

    def peak_mb(self) -> float:
        """The largest resident memory so far, in MB."""
        ...


@dataclass(frozen=True)
class OutriderBackend:
    """One of Outrider's draft sources; all sources share one model."""

    name: str
    llm: LLM
    params: SamplingParams
    speculation: SpeculationParams
    concurrency: int
    rate: float | None
    version: str = f"outrider {__version__}"

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[ServedRequest]]:
        began = time.perf_counter()
        if self.rate is None:
            served = closed_loop(self.llm, prompts, self.params, self.speculation, self.concurrency, salt)
        else:
            served = poisson(self.llm, prompts, self.params, self.speculation, self.rate, salt)
        return [s.tokens for s in served], time.perf_counter() - began, served

    def peak_mb(self) -> float:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class PeerBackend:
    """Another engine, in its own process."""

    def __init__(self, worker: PeerProcess, max_tokens: int, name: str | None = None) -> None:
        """``name``: None is the worker's, with folders by their last part."""
        self.name = name or ":".join(Path(part).name for part in worker.name.split(":"))
        self._worker, self._max_tokens = worker, max_tokens
        self.version = f"{self.name.partition(':')[0]} {worker.started['version']}"
        self._peak = 0.0

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[ServedRequest]]:
        answer = self._worker.generate([list(p) for p in prompts], self._max_tokens)
        self._peak = answer["peak_mb"]
        return answer["tokens"], answer["s"], []

    def peak_mb(self) -> float:
        return self._peak


def peer_file(given: str, folder: Path, model: str) -> Path:
    """The GGUF file that llama.cpp reads: the one ``given``, else that of the model's ``folder``.

    Raises:
        ConfigError: there is no such file.
    """
    file = Path(given).expanduser() if given else gguf_weights(folder)
    if file is not None and file.is_file():
        return file
    if given:
        raise ConfigError(f"peer='llama.cpp:{given}': there is no such file")
    raise ConfigError(f"peer='llama.cpp': {model} has no GGUF file: name one, llama.cpp:FILE.gguf")


class EndpointBackend:
    """A completions server. It gets prompts as token ids; the model's tokenizer turns its text into tokens again."""

    def __init__(self, url: str, tokenizer: Tokenizer, max_tokens: int, concurrency: int, model: str) -> None:
        self.name, self.version = url, ""
        self._url = f"{url.rstrip('/').removesuffix('/v1')}/v1/completions"
        self._tokenizer, self._max_tokens, self._concurrency = tokenizer, max_tokens, concurrency
        self._model = model

    def run(self, prompts: Sequence[list[int]], salt: str) -> tuple[list[list[int]], float, list[ServedRequest]]:
        began = time.perf_counter()
        with ThreadPoolExecutor(self._concurrency) as pool:
            texts = list(pool.map(self._complete, prompts))
        seconds = time.perf_counter() - began
        return [self._tokenizer.encode(text, add_special_tokens=False) for text in texts], seconds, []

    def peak_mb(self) -> float:
        """0: a server's memory is not known."""
        return 0.0

    def _complete(self, prompt: list[int]) -> str:
        body: dict[str, Any] = {
            "model": self._model, "prompt": prompt, "max_tokens": self._max_tokens, "temperature": 0,
        }  # fmt: skip
        request = urllib.request.Request(self._url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=600) as response:
                return str(json.load(response)["choices"][0]["text"])
        except urllib.error.HTTPError as error:
            raise ConfigError(
                f"{self._url} answered {error.code}: {error.read(300).decode(errors='replace')}"
            ) from None
        except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
            raise ConfigError(
                f"{self._url} does not answer as it should ({error!r}): is it the right server?"
            ) from None
