"""Loads an engine from its options: target, draft models, heads, caches and draft sources."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from outrider.config import SOURCES, EngineConfig, source_record
from outrider.config.combination import AUTO, USUAL, WITH_ASSISTANT, WITH_DSPARK, WITH_OWN_HEAD, parse
from outrider.drafters.context import DrafterContext
from outrider.drafters.datastore import Datastore, read_origin
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.registry import DrafterRegistry
from outrider.drafters.shared_answers import SharedAnswers, shared_answers
from outrider.drafters.trained.assistant_files import has_assistant, require_assistant
from outrider.drafters.trained.dspark_files import dspark_beside
from outrider.drafters.trained.mtp_head import MtpHead, mtp_head, require_head
from outrider.engine.draft_length.cost import StepCost, calibrate
from outrider.engine.engine import Engine
from outrider.engine.memory_plan import MemoryPlan, available_bytes, plan_memory
from outrider.errors import IncompatibleDraftError
from outrider.extensions import extension, has_extension, missing_extension
from outrider.models.base import LoadedModel, Model
from outrider.models.inputs import TEXT_ONLY, has_encoder
from outrider.models.native_llama import NativeLlamaModel
from outrider.native.context import own_context
from outrider.native.processor import set_num_threads
from outrider.sessions import open_sessions
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.tokenizer.vocabularies import check_same_vocabulary
from outrider.utils.memory import read_rate
from outrider.verify.shapes import Acceptance
from outrider.weights.families.elsewhere import is_vision_language
from outrider.weights.hub.catalog import file_of, resolve
from outrider.weights.loader import load_model

logger = logging.getLogger(__name__)

PLAIN = "none"
"""Default for speech models: speech rarely repeats, and text sources made decoding a fifth slower (docs/speech.md)."""


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """A loaded model with its draft sources. In ``config``, ``draft="auto"`` is resolved to sources."""

    config: EngineConfig
    folder: Path
    tokenizer: Tokenizer
    model: LoadedModel
    draft_models: tuple[LoadedModel, ...]
    memory_plan: MemoryPlan
    eos_token_ids: tuple[int, ...]
    drafters: DrafterRegistry
    engine: Engine
    vision: Any  # the ``Vision`` that reads images, or a str: the reason why images are not supported


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
    folder = resolve(config.model, progress=progress)
    tokenizer = Tokenizer.from_folder(folder, config.model)
    draft_models, draft_tokenizers, same = _load_draft_models(config, tokenizer, progress)
    model = _load_target(config, folder, progress)
    vision = _load_vision(folder, tokenizer, model)  # before memory is divided
    for each in draft_models:
        if has_encoder(each):
            each.match_target(model)
    draft, heads, head_bytes = _load_heads(config, model, progress)
    config = replace(config, speculation=replace(config.speculation, draft=draft))
    if progress and model.implementation not in ("native", "torch"):
        print(f"{model.config.family}: computed by {model.implementation}", file=sys.stderr)
    native = [each for each in (model, *draft_models) if isinstance(each, NativeLlamaModel)]
    files = {each.mapped_file: each.mapped_bytes for each in native}
    available, mapped = available_bytes(model.device), sum(files.values())
    plan = plan_memory(model, draft_models, config, available, *head_bytes, mapped=mapped)
    _report(plan, progress)
    if plan.beyond:
        _warn(plan.beyond, mapped, available, next(file for file in files if file is not None))
    vocab_size = min(tokenizer.vocab_size, model.config.vocab_size)
    cache = plan.cache_spec(config, model.config.max_seq_len)
    kv_cache = model.new_cache(cache)
    drafters = DrafterRegistry(
        DrafterContext(
            vocab_size=vocab_size,
            cache=cache,
            draft_models=draft_models,
            tokenizer=tokenizer,
            draft_tokenizers=draft_tokenizers,
            same_vocabulary=same,
            heads=heads,
            target=model,
            target_cache=kv_cache,
            draft_layers=config.draft_layers,
            draft_table=config.draft_table,
            datastore=_load_datastore(config, folder, vocab_size),
            custom_sources=config.custom_sources,
        )
    )
    _check_table(config, drafters)
    eos = tuple({*tokenizer.eos_token_ids, *model.config.eos_token_ids})
    engine = Engine(
        model,
        drafters=drafters,
        eos_token_ids=eos,
        vocab_size=vocab_size,
        cache=cache,
        kv_cache=kv_cache,
        sessions=open_sessions(config, folder, model),
        max_batched_tokens=config.max_batched_tokens,
        measured=partial(_measured_acceptance, heads),
        step_cost=step_cost,
    )
    if draft != "none" and config.speculation.spec_length == "auto":
        engine.calibrate(config.speculation.combination.names)
    return LoadedEngine(config, folder, tokenizer, model, draft_models, plan, eos, drafters, engine, vision)


def _load_vision(folder: Path, tokenizer: Tokenizer, model: LoadedModel) -> Any:
    """The ``Vision`` that reads images, or the reason why images are not supported."""
    if not is_vision_language(folder) or not has_extension("input_sources", "images"):
        return TEXT_ONLY
    return extension("input_sources", "images").open_vision(folder, tokenizer, model)


def _load_target(config: EngineConfig, folder: Path, progress: bool) -> LoadedModel:
    size = config.tensor_parallel_size
    if size == 1:
        return load_model(folder, config.target_options(), progress=progress)
    load_parallel = extension("backends", "tensor_parallel", f"tensor_parallel_size={size}")
    model: LoadedModel = load_parallel(folder, config.target_options(), size, threads=config.threads, name=config.model)
    return model


def _load_heads(
    config: EngineConfig, model: LoadedModel, progress: bool
) -> tuple[str, Mapping[str, Any], tuple[int, int]]:
    """The draft sources (``auto`` resolved), the heads by source, and the bytes of their weights and of a cache row."""
    draft, heads, place = config.speculation.draft, dict[str, Any](), file_of(config.model)
    if config.heads or any(source_record(name).head_kinds for name in parse(draft).names):
        from outrider.drafters.trained.heads import load_heads

        draft, heads = load_heads(config, model, progress=progress)
    elif draft == AUTO:
        draft = PLAIN if model.config.hears else USUAL if mtp_head(model) is None else WITH_OWN_HEAD
        draft = WITH_ASSISTANT if has_assistant(place, model) else draft
        beside = dspark_beside(place, model) if draft == USUAL else None
        if beside is not None:
            draft, heads["dspark"] = WITH_DSPARK, beside
    if "mtp" in parse(draft).names and "mtp" not in heads:
        heads["mtp"] = require_head(model, config.model)
    if "assistant" in parse(draft).names:
        heads["assistant"] = require_assistant(place, model)
    if not heads:
        return draft, heads, (0, 0)
    from outrider.drafters.trained.heads import head_memory

    return draft, heads, head_memory(heads, model)


def _measured_acceptance(heads: Mapping[str, Any], source: str) -> Acceptance:
    """The acceptance by depth and rank that was measured when the source's head was trained; () without a head."""
    if source in heads and isinstance(heads[source], MtpHead):
        return heads[source].acceptance  # type: ignore[no-any-return]
    config = heads[source].config if source in heads else None
    if not isinstance(config, HeadConfig):
        return ()
    measured: Acceptance = config.acceptance
    own = ((1.0,),) if config.kind == "pass" and measured else ()  # its first guess is the target's own token
    return own + measured


def _load_draft_models(
    config: EngineConfig, target: Tokenizer, progress: bool
) -> tuple[tuple[LoadedModel, ...], tuple[Tokenizer, ...], bool]:
    """The draft models, their tokenizers, and whether all have the target's vocabulary.

    Raises ``IncompatibleDraftError`` for another vocabulary unless a default source supports it.
    """
    by_text = any(source_record(name).any_vocabulary for name in parse(config.speculation.draft).names)
    same = True
    models: list[LoadedModel] = []
    tokenizers: list[Tokenizer] = []
    for name in config.draft_models:
        folder = resolve(name, progress=progress)
        tokenizers.append(Tokenizer.from_folder(folder))
        try:
            check_same_vocabulary(target, tokenizers[-1])  # before weights are read
        except IncompatibleDraftError:
            if not by_text:
                raise
            same = False
        models.append(load_model(folder, config.draft_options(), progress=progress))
    return tuple(models), tuple(tokenizers), same


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


def _warn(beyond: int, mapped: int, available: int, file: Path) -> None:
    rate = read_rate(file)
    logger.warning(
        "weights of %.1f GB and the caches need %.1f GB more than the %.1f GB of memory that are free: a pass may read "
        "as much from the disk, %.1f s at %.1f GB/s. Use a smaller type of weights, or a smaller max_seq_len",
        mapped / 1e9, beyond / 1e9, available / 1e9, beyond / rate, rate / 1e9,
    )  # fmt: skip


def _report(plan: MemoryPlan, progress: bool) -> None:
    if progress:
        print(plan.line(), file=sys.stderr)
    for line in plan.lines():
        logger.info("memory: %s", line)
