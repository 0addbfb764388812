"""Draft sources by the name a request gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from outrider.cache import CacheSpec
from outrider.config import SOURCES
from outrider.drafters.base import Drafter
from outrider.drafters.lookup import LookupDrafter
from outrider.drafters.model import ModelDrafter
from outrider.drafters.ngram import NgramDrafter
from outrider.errors import ConfigError
from outrider.models.base import Model


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What sources can be built from."""

    vocab_size: int  # ids with a meaning, shared by target and draft models
    cache: CacheSpec  # the target's
    draft_models: tuple[Model, ...] = ()


def _model(around: Surroundings) -> Drafter:
    if not around.draft_models:
        raise ConfigError("draft='model' needs a draft model: name one with draft_model (--draft-model)")
    return ModelDrafter(around.draft_models[0], vocab_size=around.vocab_size, cache=around.cache)


BUILDERS: Mapping[str, Callable[[Surroundings], Drafter]] = {
    "ngram": lambda around: NgramDrafter(around.vocab_size),
    "lookup": lambda around: LookupDrafter(),
    "model": _model,
}
"""One line a source."""


class Sources(Mapping[str, Drafter]):
    """Every source that can be built here, built when first asked for."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._built: dict[str, Drafter] = {}

    def __getitem__(self, name: str) -> Drafter:
        if name not in self._built:
            if name not in BUILDERS:
                raise KeyError(name)
            self._built[name] = BUILDERS[name](self._around)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in SOURCES if name in BUILDERS and (name != "model" or self._around.draft_models))

    def __len__(self) -> int:
        return sum(1 for _ in self)
