"""What draft sources are built from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from outrider.cache import CacheSpec, KVCache
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.draft_table import DraftTable
from outrider.models.base import HeadTarget, Model


@dataclass(frozen=True, kw_only=True)
class DrafterContext:
    """What a builder of a draft source is given."""

    vocab_size: int  # ids with a meaning, shared by target and draft models
    cache: CacheSpec  # the target's
    draft_models: tuple[Model, ...] = ()
    draft_table: DraftTable | None = None  # counts for unigram and bigram, which otherwise learn live
    custom_sources: tuple[str, ...] = ()  # the user's own that may be imported
    heads: Mapping[str, nn.Module] = field(default_factory=dict)  # trained for the target, by source
    target: HeadTarget | None = None  # for ``layer_skip`` and heads, with its cache
    target_cache: KVCache | None = None
    draft_layers: int | None = None  # of the target; None: a third

    @cached_property
    def cached_draft_models(self) -> tuple[DraftModel, ...]:
        """The draft models with their caches, which all sources share."""
        return tuple(DraftModel(m, vocab_size=self.vocab_size, cache=self.cache) for m in self.draft_models)

    def require_target(self) -> tuple[HeadTarget, KVCache]:
        """The target and its cache, for a source whose record says that it needs them."""
        assert self.target is not None
        assert self.target_cache is not None
        return self.target, self.target_cache
