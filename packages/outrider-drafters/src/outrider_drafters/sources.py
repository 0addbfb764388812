"""Records of this distribution's draft sources. Their drafters are imported at first use."""

from __future__ import annotations

from outrider.config.sources import DraftShape, DraftSource

RECYCLING = DraftSource(
    name="recycling",
    summary="what the target held likely after the same tokens",
    builder="outrider_drafters.recycling:build",
    shape=DraftShape.GROWING,
    page="recycling",
)
LOOKAHEAD = DraftSource(
    name="lookahead",
    summary="guesses that each forward pass improves",
    builder="outrider_drafters.lookahead:build",
    shape=DraftShape.LOOKAHEAD,
    beams=None,
    page="lookahead",
)
MODELS = DraftSource(
    name="models",
    summary="several smaller models, merged into one tree",
    builder="outrider_drafters.models:build",
    shape=DraftShape.MERGED,
    min_draft_models=2,
    max_draft_models=8,
    cache="its own",
    beams=None,
    page="draft-model",
)
UNIVERSAL = DraftSource(
    name="universal",
    summary="a smaller model of any vocabulary, by way of text",
    builder="outrider_drafters.universal:build",
    shape=DraftShape.CHAIN,
    min_draft_models=1,
    max_draft_models=1,
    any_vocabulary=True,
    cache="its own",
    beams=None,
    page="universal",
)
LAYER_SKIP = DraftSource(
    name="layer_skip",
    summary="the target's own first layers",
    builder="outrider_drafters.layer_skip:build",
    runs_target=True,
    engine_option="draft_layers",
    cache="the target's",
    beams=None,
    page="layer-skip",
)
HIERARCHICAL = DraftSource(
    name="hierarchical",
    summary="a smaller model that is itself drafted for",
    builder="outrider_drafters.hierarchical:build",
    shape=DraftShape.CHAIN,
    min_draft_models=1,
    max_draft_models=2,
    cache="its own",
    beams=None,
    page="hierarchical",
)
BIGRAM = DraftSource(
    name="bigram",
    summary="the most frequent follower of the last token",
    builder="outrider_drafters.baselines:build_bigram",
    engine_option="draft_table",
    page="tables",
)
UNIGRAM = DraftSource(
    name="unigram",
    summary="the most frequent token",
    builder="outrider_drafters.baselines:build_unigram",
    engine_option="draft_table",
    is_baseline=True,
    page="tables",
)
RANDOM = DraftSource(
    name="random",
    summary="uniformly random tokens",
    builder="outrider_drafters.baselines:build_random",
    shape=DraftShape.CHAIN,
    is_baseline=True,
    page="tables",
)
