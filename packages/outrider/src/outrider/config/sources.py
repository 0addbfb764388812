"""One record for each draft source. The core's stand here; other distributions bring theirs. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from enum import Enum
from typing import Literal

from outrider.extensions import extension, extension_names, has_extension


class DraftShape(Enum):
    """The shape of a source's drafts. The documentation shows the value."""

    AS_ASKED = "chain, or `tree`"
    """A chain, or the tree that ``SpeculationParams.tree`` asks for."""
    CHAIN = "chain"
    GROWING = "tree of up to `tree_nodes`"
    """A tree where the verifier takes one, else a chain."""
    MERGED = "merged tree"
    """Several chains, or the trees asked for, in one tree of up to ``tree_nodes`` nodes."""
    LOOKAHEAD = "tree of its own"
    """As large as ``SpeculationParams.lookahead`` makes it."""

    @property
    def branches(self) -> bool:
        """Whether drafts branch although no tree is asked for, whatever the verifier."""
        return self in (DraftShape.MERGED, DraftShape.LOOKAHEAD)

    @property
    def takes_tree(self) -> bool:
        """Whether ``SpeculationParams.tree`` has a say."""
        return self in (DraftShape.AS_ASKED, DraftShape.MERGED)


@dataclass(frozen=True, kw_only=True)
class DraftSource:
    """All that the engine, the commands, the server and the documentation know of a draft source.

    A new source is a file and a record: here, or in another distribution that names it as an entry point of the group
    ``outrider.drafters``.
    """

    name: str
    """What requests call it."""
    summary: str
    """Where its drafts come from, in one line of help."""
    builder: str | None
    """``module:function``, imported when first used: makes a ``Drafter`` from a ``DrafterContext``. None: no drafts."""
    shape: DraftShape = DraftShape.AS_ASKED
    min_draft_models: int = 0
    max_draft_models: int = 0
    any_vocabulary: bool = False
    """Whether its draft models may have other tokens than the target."""
    head_kinds: tuple[str, ...] = ()
    """The kinds of trained heads it drafts with, the preferred one first; empty: it needs no head."""
    in_model_files: bool = False
    """Whether it drafts with a head that the target's own files bring."""
    runs_target: bool = False
    """Whether it runs layers of the target."""
    request_option: str | None = None
    """The option without which it has nothing to say, as ``prediction``."""
    engine_option: str | None = None
    """The option of an engine that it can do without, as ``draft_table``."""
    cache: Literal["its own", "the target's"] | None = None
    """Where keys and values of its drafts lie, if it has any."""
    beams: Literal["each", "together"] | None = "each"
    """How it drafts for beam search: for each beam as for a request, for all at once, or not at all."""
    is_baseline: bool = False
    """Whether it is only there to be beaten."""
    page: str | None = None
    """Where ``docs/algorithms`` explains it."""

    @property
    def takes_head(self) -> bool:
        """Whether ``heads`` (--heads) may name a head for it."""
        return bool(self.head_kinds) or self.in_model_files

    @property
    def needs(self) -> str:
        """Its requirements besides the target and a prompt; empty if there are none."""
        if self.head_kinds:
            return "a trained head"
        if self.in_model_files:
            return "a model whose files have a draft head"
        if self.max_draft_models == 1:
            return "a draft model"
        if self.max_draft_models:
            between = "or" if self.max_draft_models - self.min_draft_models == 1 else "to"
            return f"{self.min_draft_models} {between} {self.max_draft_models} draft models"
        return f"`{self.request_option}`" if self.request_option else ""


_CORE = {
    source.name: source
    for source in (
        DraftSource(name="none", summary="no drafts, plain decoding", builder=None),
        DraftSource(
            name="suffix",
            summary="what followed the same text, here, in earlier responses or in a datastore",
            builder="outrider.drafters.text.suffix:build",
            engine_option="datastore",
            shape=DraftShape.GROWING,
            page="suffix",
        ),
        DraftSource(
            name="lookup",
            summary="what followed when the text last ended alike",
            builder="outrider.drafters.text.lookup:build",
            shape=DraftShape.CHAIN,
            page="lookup",
        ),
        DraftSource(
            name="ngram",
            summary="the most frequent continuation in this text",
            builder="outrider.drafters.text.ngram:build",
            page="ngram",
        ),
        DraftSource(
            name="prediction",
            summary="the text that the caller expects",
            builder="outrider.drafters.text.prediction:build",
            shape=DraftShape.GROWING,
            request_option="prediction",
            page="prediction",
        ),
        DraftSource(
            name="eagle",
            summary="a layer on the target's features",
            builder="outrider.drafters.trained.eagle:build",
            head_kinds=("eagle3", "eagle"),
            cache="its own",
            beams=None,
            page="eagle",
        ),
        DraftSource(
            name="dflash",
            summary="a layer or two on the target's features, a block of tokens in one pass",
            builder="outrider.drafters.trained.block:build",
            head_kinds=("dflash", "diffusion"),
            cache="its own",
            beams=None,
            page="dflash",
        ),
        DraftSource(
            name="dspark",
            summary="a published DSpark head: a block in one pass, and a table that makes its tokens agree",
            builder="outrider.drafters.trained.block:build_dspark",
            head_kinds=("dspark",),
            cache="its own",
            beams=None,
            page="dflash",
        ),
        DraftSource(
            name="mtp",
            summary="the draft head (multi-token prediction) in the model's own files",
            builder="outrider.drafters.trained.mtp:build",
            in_model_files=True,
            cache="its own",
            beams=None,
            page="mtp",
        ),
        DraftSource(
            name="assistant",
            summary="Gemma 4's assistant beside the model's file, which reads the target's own keys and values",
            builder="outrider.drafters.trained.assistant:build",
            in_model_files=True,
            cache="the target's",
            beams=None,
            page="assistant",
        ),
        DraftSource(
            name="model",
            summary="a smaller model",
            builder="outrider.drafters.model.model:build",
            min_draft_models=1,
            max_draft_models=1,
            cache="its own",
            beams="together",
            page="draft-model",
        ),
        DraftSource(
            name="grammar",
            summary="tokens that a structured output leaves no choice about",
            builder="outrider.drafters.text.grammar:build",
            shape=DraftShape.CHAIN,
            request_option="structured",
            page="grammar",
        ),
    )
}


class DraftSources(MutableMapping[str, DraftSource]):
    """Records by the names that requests use: the core's, then those that installed distributions bring.

    Another distribution's record is imported when it is first asked for.
    """

    def __init__(self, records: Mapping[str, DraftSource]) -> None:
        self._records = dict(records)
        self._loaded: dict[str, DraftSource] = {}

    def __getitem__(self, name: str) -> DraftSource:
        if name in self._records:
            return self._records[name]
        if not has_extension("drafters", name):
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = extension("drafters", name)
        return self._loaded[name]

    def __setitem__(self, name: str, record: DraftSource) -> None:
        self._records[name] = record

    def __delitem__(self, name: str) -> None:
        del self._records[name]

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys((*self._records, *extension_names("drafters"))))

    def __len__(self) -> int:
        return sum(1 for _ in self)


SOURCES = DraftSources(_CORE)
"""The sources that are installed, in the order in which they are listed."""


def source_record(name: str) -> DraftSource:
    """The record of a source. A user's own, and any other, drafts a chain or the tree asked for, and needs nothing."""
    return SOURCES.get(name) or DraftSource(name=name, summary="your own class", builder=None)


def head_sources() -> tuple[str, ...]:
    """Sources that need a trained head."""
    return tuple(name for name, source in SOURCES.items() if source.head_kinds)
