"""The inputs for building draft sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from outrider.cache import CacheSpec, KVCache
from outrider.cache.sessions import SessionStore
from outrider.drafters.datastore import Datastore
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.shared_answers import SharedAnswers
from outrider.models.base import HeadTarget, Model
from outrider.tokenizer.tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class DrafterContext:
    """The argument of a draft source's builder."""

    vocab_size: int  # token ids without padding, shared by target and draft models
    cache: CacheSpec  # the target's
    draft_models: tuple[Model, ...] = ()
    tokenizer: Tokenizer | None = None  # the target's
    draft_tokenizers: tuple[Tokenizer, ...] = ()  # the draft models'
    same_vocabulary: bool = True  # whether draft models have the target's tokens
    draft_table: str | None = None  # file of counts for unigram and bigram; None: they learn live
    datastore: Datastore | SharedAnswers | None = None  # answers that ``suffix`` copies from
    custom_sources: tuple[str, ...] = ()  # the user's sources that may be imported
    heads: Mapping[str, Any] = field(default_factory=dict)  # trained heads of the target, by source
    target: HeadTarget | None = None  # for ``layer_skip`` and heads
    target_cache: KVCache | None = None
    sessions: SessionStore | None = None  # where rows of the target's cache and of heads' are kept on a disk
    draft_layers: int | None = None  # layers of the target for ``layer_skip``; None: a third

    @cached_property
    def cached_draft_models(self) -> tuple[DraftModel, ...]:
        """The draft models with their caches, shared by all sources."""
        sizes = [self.vocab_size] * len(self.draft_models)
        if not self.same_vocabulary:
            sizes = [
                min(model.config.vocab_size, tokenizer.vocab_size)
                for model, tokenizer in zip(self.draft_models, self.draft_tokenizers, strict=True)
            ]
        return tuple(
            DraftModel(model, vocab_size=size, cache=self.cache)
            for model, size in zip(self.draft_models, sizes, strict=True)
        )

    def require_tokenizers(self) -> tuple[Tokenizer, tuple[Tokenizer, ...]]:
        """The tokenizers of the target and the draft models, for a source that converts between vocabularies."""
        assert self.tokenizer is not None
        return self.tokenizer, self.draft_tokenizers

    def require_target(self) -> tuple[HeadTarget, KVCache]:
        """The target and its cache, for a source whose record requires them."""
        assert self.target is not None
        assert self.target_cache is not None
        return self.target, self.target_cache
