"""Draft sources by the name a request gives them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from outrider.config import DRAFT_MODELS
from outrider.config.sources import HEAD_SOURCES, SOURCES
from outrider.drafters import custom
from outrider.drafters.api import Drafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.draft_cache import DraftModel
from outrider.drafters.model.hierarchical import HierarchicalDrafter
from outrider.drafters.model.layer_skip import LayerSkipDrafter
from outrider.drafters.model.model import ModelDrafter
from outrider.drafters.model.models import ModelsDrafter
from outrider.drafters.text import baselines
from outrider.drafters.text.grammar import GrammarDrafter
from outrider.drafters.text.lookahead import LookaheadDrafter
from outrider.drafters.text.lookup import LookupDrafter
from outrider.drafters.text.ngram import NgramDrafter
from outrider.drafters.text.prediction import PredictionDrafter
from outrider.drafters.text.recycling import RecyclingDrafter
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.drafters.trained.heads import make_head_drafter
from outrider.errors import ConfigError


def _model(around: DrafterContext) -> Drafter:
    return ModelDrafter(_draft_models(around, "model")[0])


def _models(around: DrafterContext) -> Drafter:
    return ModelsDrafter([ModelDrafter(model, "models") for model in _draft_models(around, "models")])


def _hierarchical(around: DrafterContext) -> Drafter:
    """The first draft model, drafted for by the second, or by n-gram tables if there is but one."""
    model, *others = _draft_models(around, "hierarchical")
    return HierarchicalDrafter(model, ModelDrafter(others[0]) if others else NgramDrafter(around.vocab_size))


def _layer_skip(around: DrafterContext) -> Drafter:
    if around.target is None or around.target_cache is None:
        raise ConfigError("draft='layer_skip' needs the target's layers: none are at hand")
    count = around.target.config.num_layers
    layers = max(1, count // 3) if around.draft_layers is None else around.draft_layers
    if layers > count:
        raise ConfigError(f"draft_layers={layers} is more than the target's {count} layers: use fewer")
    return LayerSkipDrafter(around.target, around.target_cache, layers=layers, vocab_size=around.vocab_size)


def _head(source: str) -> Callable[[DrafterContext], Drafter]:
    def build(around: DrafterContext) -> Drafter:
        if source not in around.heads or around.target is None or around.target_cache is None:
            raise ConfigError(f"draft={source!r} needs a trained head: name its folder with heads (--heads)")
        head, vocab_size = around.heads[source], around.vocab_size
        return make_head_drafter(head, around.target, around.target_cache, vocab_size=vocab_size, cache=around.cache)

    return build


def _draft_models(around: DrafterContext, source: str) -> tuple[DraftModel, ...]:
    if len(around.draft_models) < DRAFT_MODELS[source][0]:
        raise ConfigError(f"draft={source!r} needs draft models: name them with draft_model (--draft-model)")
    return around.drafting


BUILDERS: Mapping[str, Callable[[DrafterContext], Drafter]] = {
    "ngram": lambda around: NgramDrafter(around.vocab_size),
    "lookup": lambda around: LookupDrafter(),
    "suffix": lambda around: SuffixDrafter(around.vocab_size),
    "recycling": lambda around: RecyclingDrafter(around.vocab_size),
    "prediction": lambda around: PredictionDrafter(),
    "bigram": lambda around: baselines.bigram(around.vocab_size, around.draft_table),
    "unigram": lambda around: baselines.unigram(around.vocab_size, around.draft_table),
    "random": lambda around: baselines.RandomDrafter(around.vocab_size),
    "model": _model,
    "models": _models,
    "layer_skip": _layer_skip,
    "hierarchical": _hierarchical,
    "lookahead": lambda around: LookaheadDrafter(),
    "grammar": lambda around: GrammarDrafter(),
    **{source: _head(source) for source in HEAD_SOURCES},
}
"""One line a source."""


class Sources(Mapping[str, Drafter]):
    """Every source that can be built here, built when first asked for. A user's own are imported at once."""

    def __init__(self, around: DrafterContext) -> None:
        self._around = around
        self._built = {name: custom.load(name, around) for name in around.custom_sources}

    def __getitem__(self, name: str) -> Drafter:
        if name not in self._built:
            if name not in BUILDERS:
                raise KeyError(name)
            self._built[name] = BUILDERS[name](self._around)
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        yield from self._around.custom_sources
        yield from (name for name in SOURCES if name in BUILDERS and self._can_build(name))

    def _can_build(self, name: str) -> bool:
        if name == "layer_skip" or name in HEAD_SOURCES:
            there = self._around.target is not None and self._around.target_cache is not None
            return there and (name == "layer_skip" or name in self._around.heads)
        return len(self._around.draft_models) >= DRAFT_MODELS.get(name, (0, 0))[0]

    def __len__(self) -> int:
        return sum(1 for _ in self)
