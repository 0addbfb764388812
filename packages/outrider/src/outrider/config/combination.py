"""How a request combines draft sources: text in, a checked ``Combination`` out. No torch.

draft = "suffix"                    one source
draft = "prediction,suffix,ngram"   a cascade: in every step, the first source that proposes a draft
draft = "suffix/model"              a choice: in every step, the source with most accepted tokens on average
draft = "suffix+model"              merged: the drafts of both in one tree
draft = "prediction,suffix+model"   ``+`` binds more tightly
draft = "cascade"                   short for CASCADE
draft = "package.module:Class"      a source of your own (docs/sources.md)
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain

from outrider.config.sources import SOURCES, DraftSource
from outrider.errors import ConfigError
from outrider.extensions import is_known, missing_extension
from outrider.utils.suggest import unknown

AUTO = "auto"
"""An engine's choice: the first of ``head_sources()`` that it was given a head for; else, for a model whose files have
a draft head, ``WITH_OWN_HEAD``; with an assistant or a DSpark head beside it, ``WITH_ASSISTANT`` or ``WITH_DSPARK``;
else ``USUAL``."""
USUAL = "suffix"
"""The fastest that needs nothing but the model, and the one that hardly ever loses (benchmarks/README.md)."""
WITH_OWN_HEAD = "suffix,mtp"
"""The same, and the model's own head where nothing is to be copied."""
WITH_ASSISTANT = "suffix,assistant"
"""The same, with the assistant that lies beside the model."""
WITH_DSPARK = "suffix,dspark"
"""The same, with the DSpark head that lies beside the model."""

CASCADE = "prediction,suffix"
"""What ``cascade`` stands for."""

Group = tuple[str, ...]  # sources whose drafts are merged


@dataclass(frozen=True)
class Combination:
    """The draft sources of a request, in groups. ``none`` has no groups."""

    groups: tuple[Group, ...]
    best: bool = False  # whether groups are tried in the order of what they won, not in the order given

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all sources, without duplicates."""
        return tuple(chain.from_iterable(self.groups))


def is_custom(name: str) -> bool:
    """Whether a source is named as ``package.module:Class``."""
    return ":" in name


@lru_cache(maxsize=256)
def parse(draft: str) -> Combination:
    """Read a ``draft`` option. Names are not looked up: an engine may know more than ``SOURCES``.

    Raises:
        ConfigError: a part is empty or named twice, ``none`` is combined, or ``,`` and ``/`` are mixed.
    """
    if not isinstance(draft, str):
        raise ConfigError(f"draft={draft!r} is not valid: use the name of a draft source, such as 'suffix'")
    if "," in draft and "/" in draft:
        raise ConfigError(f"draft={draft!r} mixes ',' (the first that has something) and '/' (the best): use one")
    best = "/" in draft
    groups: list[Group] = []
    for part in draft.split("/" if best else ","):
        if part.strip() == "cascade" and not best:
            groups += parse(CASCADE).groups
        else:
            groups.append(tuple(name.strip() for name in part.split("+")))
    names = list(chain.from_iterable(groups))
    for name in names:
        if not name:
            raise ConfigError(
                f"draft={draft!r} has an empty part: write sources as in 'suffix,ngram' or 'suffix+model'"
            )
        if names.count(name) > 1:
            raise ConfigError(f"draft={draft!r} names {name!r} twice: leave one out")
        if name == "none" and len(names) > 1:
            raise ConfigError(f"draft={draft!r} combines 'none' with others: leave it out")
    return Combination((), False) if names == ["none"] else Combination(tuple(groups), best)


def check_known(draft: str) -> Combination:
    """``parse``, and refuse names that are neither installed nor of the form ``package.module:Class``."""
    combination = parse(draft)
    for name in combination.names:
        if name not in SOURCES and not is_custom(name):
            if is_known("drafters", name):
                raise missing_extension("drafters", name, f"draft={name!r}")
            raise ConfigError(
                f"{unknown('draft', name, (*SOURCES, 'cascade'))}, package.module:Class for "
                "one of your own, or several: 'a,b' (the first that has something), 'a/b' (the best), 'a+b' (merged)"
            )
    return combination


def draft_help() -> str:
    """Help of the option ``draft``: every source by its requirements, then how to combine sources."""
    groups: dict[str, list[str]] = {}
    for name, source in SOURCES.items():
        groups.setdefault(_group(source), []).append(f"{name} ({source.summary})")
    listed = ". ".join(f"{group}: {', '.join(lines)}" for group, lines in groups.items())
    return (
        f"Where drafts come from. {listed}. {AUTO} is the first source that --heads has a head for, else {USUAL}, and "
        f"{WITH_OWN_HEAD} if the model's files have a draft head, {WITH_ASSISTANT} if Gemma 4's assistant lies "
        f"beside it, {WITH_DSPARK} if a DSpark head does. cascade is {CASCADE}. "
        "package.module:Class is your own. Combine them: 'a,b' (the first that has something), 'a/b' (what has won "
        "most), 'a+b' (one tree of both)."
    )


def _group(source: DraftSource) -> str:
    if source.head_kinds:
        return "With a trained head (--heads, or shipped)"
    if source.in_model_files:
        return "With a model that brings a head"
    return "With --draft-model" if source.max_draft_models else "Without a model"
