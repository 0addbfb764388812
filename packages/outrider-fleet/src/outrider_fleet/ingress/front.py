"""The model as an ingress has it: its tokenizer, settings and limits. Weights and caches are the replicas'."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from outrider.adapters import Adapters
from outrider.config import EngineConfig, SpeculationParams
from outrider.drafters.registry import DrafterRegistry
from outrider.engine.engine import Engine
from outrider.engine.engine_stats import EngineStats, SourceStats
from outrider.engine.memory_plan import MemoryPlan
from outrider.engine.request import Request
from outrider.engine.request_checks import check_request
from outrider.input_processor import InputProcessor
from outrider.llm import LLM
from outrider.models.adapters import Adapter
from outrider.models.base import LoadedModel
from outrider.models.config import Experts, ModelConfig
from outrider.models.inputs import InputSource
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.hub.catalog import resolve
from outrider_fleet.messages.wire import Message


class Front(LLM):
    """An ``LLM`` that makes and checks requests, and cannot run them."""

    def __init__(self, model: str, description: Message) -> None:
        """``model``: where its tokenizer is; ``description``: of a replica (``EngineHost.description``)."""
        config = dict(description["config"])
        speculation = SpeculationParams(**config.pop("speculation"))
        shape = dict(description["model"])
        shape["experts"] = shape["experts"] and Experts(**shape["experts"])
        self.fingerprint: str = description["fingerprint"]
        self.config = EngineConfig(**config | {"model": model}, speculation=speculation)
        self.speculation = speculation
        self.tokenizer = Tokenizer.from_folder(resolve(model))
        self.tokenizer.prepare()
        self.model = cast("LoadedModel", _RemoteModel(ModelConfig(**shape), description))
        self.draft_models = ()
        self.memory_plan = MemoryPlan(description["weights"], 0, 0, 0, 0, 0)
        self.drafters = cast("DrafterRegistry", dict.fromkeys(description["drafters"]))
        self.remote = RemoteEngine(description)
        self.engine = cast("Engine", self.remote)
        self.eos_token_ids = tuple(description["eos"])
        self._input_processor = InputProcessor(
            self.tokenizer,
            self.eos_token_ids,
            speculation,
            _RemoteAdapters(self.model, description["adapters"]),
            vision="images are not passed on to replicas",
        )
        self._inboxes: dict[str, deque[Any]] = {}


class _RemoteModel:
    """The part of a model that the server uses."""

    def __init__(self, config: ModelConfig, description: Message) -> None:
        self.config, self.precision, self.cache_dtype = config, description["precision"], description["cache_dtype"]
        self.implementation: str = description["implementation"]
        self.device = description["device"]

    def final_norm(self, x: Any) -> Any:
        """Where a request has it, it wants the prompt's embedding: the replica's own norm is applied there."""
        return x


class _RemoteAdapters(Adapters):
    """The names of adapters, and the keys that separate their caches; replicas have the matrices."""

    def __init__(self, model: LoadedModel, keys: Mapping[str, str]) -> None:
        super().__init__(model, enabled=False)
        self._found = {name: ("", cast("Adapter", _RemoteAdapter(name, key))) for name, key in keys.items()}


class _RemoteAdapter(InputSource):
    """The name of an adapter."""

    def __init__(self, name: str, key: str) -> None:
        self.name, self.key = name, key

    @property
    def digest(self) -> str:
        return self.key


class RemoteEngine:
    """The part of an engine that the server uses: checks of requests, and the counts of all replicas together."""

    def __init__(self, description: Message) -> None:
        self.max_seq_len: int = description["max_seq_len"]
        self.vocab_size: int = description["vocab_size"]
        self._eos: Sequence[int] = description["eos"]
        self._drafters: Sequence[str] = description["drafters"]
        self.count: Callable[[], tuple[EngineStats, int]] = lambda: (EngineStats(), 0)
        """Of all replicas together: their counts, and the tokens that their caches have room for."""
        self.sessions = None  # the replicas have their own
        self.memory = SimpleNamespace(free_kv_tokens=lambda: self.count()[1])

    @property
    def stats(self) -> EngineStats:
        return self.count()[0]

    @property
    def busy(self) -> bool:
        stats = self.stats
        return bool(stats.running or stats.waiting)

    def check(self, request: Request) -> None:
        """As ``Engine.check``."""
        check_request(request, self.max_seq_len, self.vocab_size, self._drafters, self._eos)


def add_counts(total: EngineStats, status: Message) -> None:
    """Add the counts of a replica's life."""
    for name in ("steps", "tokens", "preemptions", "busy_s", "draft_s"):
        setattr(total, name, getattr(total, name) + status[name])
    for name, (drafts, drafted, accepted, by_depth) in status["sources"].items():
        known = total.sources.get(name, SourceStats())
        total.sources[name] = SourceStats(
            known.num_drafts + drafts,
            known.num_draft_tokens + drafted,
            known.num_accepted_draft_tokens + accepted,
            known.accepted_at + Counter({int(depth): count for depth, count in by_depth}),
        )
