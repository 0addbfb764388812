"""An engine from its options."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from outrider.cache import CacheSpec, KVCache
from outrider.config import SOURCES, EngineConfig
from outrider.drafters.context import DrafterContext
from outrider.drafters.datastore import Datastore, read_origin
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.shared_answers import SharedAnswers, shared_answers
from outrider.engine.draft_length.calibration import calibrate
from outrider.engine.draft_length.cost import StepCost
from outrider.engine.engine import Engine
from outrider.engine.memory_plan import MemoryPlan
from outrider.extensions import missing_extension
from outrider.loading.drafts import load_draft
from outrider.loading.memory import divide_memory
from outrider.loading.models import LoadedModels, load_models
from outrider.models.base import Model
from outrider.native.context import own_context
from outrider.native.processor import set_num_threads
from outrider.sessions import SessionStore, open_sessions


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A loaded model with its draft sources. In ``config``, ``draft="auto"`` is resolved to sources."""

    config: EngineConfig
    models: LoadedModels
    memory_plan: MemoryPlan
    drafters: DrafterRegistry
    engine: Engine


def load(
    config: EngineConfig, *, progress: bool = False, step_cost: Callable[[Model], StepCost] = calibrate
) -> LoadedEngine:
    """Load the models that ``config`` names. ``progress``: report downloads and the memory budget on the terminal.

    ``step_cost``: measures the cost of steps of the target, for adaptive draft lengths (``Engine``).

    Raises ``OutriderError`` if a model cannot be found or loaded, or the memory does not suffice.
    """
    if config.threads is not None:
        set_num_threads(config.threads)
    with own_context():
        return _load(config, progress, step_cost)


def _load(config: EngineConfig, progress: bool, step_cost: Callable[[Model], StepCost]) -> LoadedEngine:
    if config.datastore not in ("auto", "none"):
        read_origin(Path(config.datastore).expanduser())  # raises before weights are read
    models = load_models(config, progress=progress)
    default = load_draft(config, models.target, progress=progress)
    config = replace(config, speculation=replace(config.speculation, draft=default.draft))
    plan = divide_memory(models, config, default.head_bytes, progress=progress)
    cache = plan.cache_spec(config, models.target.config.max_seq_len)
    kv_cache = models.target.new_cache(cache)
    sessions = open_sessions(config, models.folder, models.target)
    drafters = _make_drafters(config, models, default.heads, cache, kv_cache, sessions)
    engine = Engine(
        models.target,
        drafters=drafters,
        eos_token_ids=models.eos_token_ids,
        vocab_size=models.vocab_size,
        cache=cache,
        kv_cache=kv_cache,
        sessions=sessions,
        max_batched_tokens=config.max_batched_tokens,
        measured=default.measured_acceptance,
        step_cost=step_cost,
    )
    if default.draft != "none" and config.speculation.spec_length == "auto":
        engine.calibrate(config.speculation.combination.names)
    return LoadedEngine(config, models, plan, drafters, engine)


def _make_drafters(
    config: EngineConfig,
    models: LoadedModels,
    heads: Mapping[str, Any],
    cache: CacheSpec,
    kv_cache: KVCache,
    sessions: SessionStore | None,
) -> DrafterRegistry:
    drafters = DrafterRegistry(
        DrafterContext(
            vocab_size=models.vocab_size,
            cache=cache,
            draft_models=models.drafts,
            tokenizer=models.tokenizer,
            draft_tokenizers=models.draft_tokenizers,
            same_vocabulary=models.same_vocabulary,
            heads=heads,
            target=models.target,
            target_cache=kv_cache,
            sessions=sessions,
            draft_layers=config.draft_layers,
            draft_table=config.draft_table,
            datastore=_load_datastore(config, models.folder, models.vocab_size),
            custom_sources=config.custom_sources,
        )
    )
    _check_table(config, drafters)
    return drafters


def _load_datastore(config: EngineConfig, folder: Path, vocab_size: int) -> Datastore | SharedAnswers | None:
    if config.datastore == "none":
        return None
    if config.datastore == "auto":
        answers = shared_answers(folder, vocab_size)
        if answers is not None and "suffix" in config.speculation.combination.names:
            answers.load()  # not when the first request comes
        return answers
    store = Datastore.load(Path(config.datastore).expanduser())
    store.check_vocabulary(vocab_size)
    return store


def _check_table(config: EngineConfig, drafters: DrafterRegistry) -> None:
    """Build the sources that read ``draft_table``, so that its errors are raised before requests.

    Raises:
        ConfigError: the file is invalid, or no installed source reads a table.
    """
    if config.draft_table is not None:
        readers = [name for name, source in SOURCES.items() if source.engine_option == "draft_table"]
        if not readers:
            raise missing_extension("drafters", "bigram", f"draft_table={config.draft_table!r}")
        for name in readers:
            drafters[name]
