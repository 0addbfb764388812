"""Draft sources by the name a request gives them, built from their records (``outrider.config.sources``)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from typing import Any, cast

from outrider.cache.sessions import SessionStore
from outrider.config.sources import SOURCES, DraftSource
from outrider.drafters import custom
from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.errors import ConfigError

Builder = Callable[[DrafterContext], Drafter]


class DrafterRegistry(Mapping[str, Drafter]):
    """All sources that ``context`` allows, each built on first access. A user's own sources are imported at once."""

    def __init__(self, context: DrafterContext) -> None:
        self._context = context
        self._built = {name: custom.load(name, context) for name in context.custom_sources}

    def __getitem__(self, name: str) -> Drafter:
        """The drafter of a source; always the same object.

        Raises:
            KeyError: no source has this name.
            ConfigError: the context lacks something that the source needs.
        """
        if name not in self._built:
            source = SOURCES.get(name)
            if source is None or source.builder is None:
                raise KeyError(name)
            if (missing := _missing(source, self._context)) is not None:
                raise ConfigError(f"draft={name!r} needs {missing}")
            self._built[name] = builder_of(source)(self._context)
        return self._built[name]

    def renewed(self, heads: Mapping[str, Any], sessions: SessionStore | None, *, keep_texts: bool) -> DrafterRegistry:
        """The same sources, to be built anew, with these trained heads and this place for their rows.

        ``keep_texts``: those that only read texts stay as they are, with what they have learned.
        """
        fresh = DrafterRegistry(replace(self._context, heads=heads, sessions=sessions))
        if keep_texts:
            fresh._built |= {name: built for name, built in self._built.items() if _reads_texts(SOURCES.get(name))}
        return fresh

    @property
    def heads(self) -> Mapping[str, Any]:
        """Trained heads of the target, by source."""
        return self._context.heads

    @property
    def built(self) -> Mapping[str, Drafter]:
        """The sources built so far."""
        return self._built

    def __iter__(self) -> Iterator[str]:
        yield from self._context.custom_sources
        for name, source in SOURCES.items():
            if source.builder is not None and _missing(source, self._context) is None:
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)


def builder_of(source: DraftSource) -> Builder:
    """Import the function that a record names as ``module:function``."""
    assert source.builder is not None
    module, _, function = source.builder.partition(":")
    return cast("Builder", getattr(import_module(module), function))


def _reads_texts(source: DraftSource | None) -> bool:
    """Whether a source depends on nothing but tokens; None: a user's own source."""
    if source is None:
        return False
    return not (source.head_kinds or source.in_model_files or source.runs_target or source.max_draft_models)


def _missing(source: DraftSource, context: DrafterContext) -> str | None:
    """The source's first requirement that ``context`` lacks, with the remedy; None if it lacks none."""
    no_target = context.target is None or context.target_cache is None
    if source.head_kinds and (no_target or source.name not in context.heads):
        return "a trained head: name its folder with heads (--heads)"
    if source.in_model_files and (no_target or source.name not in context.heads):
        return "a model whose files have a draft head (multi-token prediction), named in draft when it is loaded"
    if source.runs_target and no_target:
        return "the target's layers: none are at hand"
    if len(context.draft_models) < source.min_draft_models:
        return "draft models: name them with draft_model (--draft-model)"
    if source.any_vocabulary and context.tokenizer is None:
        return "the tokenizers of the models: none are at hand"
    if source.max_draft_models and not source.any_vocabulary and not context.same_vocabulary:
        return "draft models of the target's vocabulary: with others, use draft='universal'"
    return None
