"""Draft sources: their records, what combinations of them mean, and what is refused."""

from __future__ import annotations

import pytest

from outrider import EngineConfig, SpeculationParams
from outrider.config import engine_config
from outrider.config.combination import CASCADE, Combination, check_known, parse
from outrider.config.sources import SOURCES, DraftShape, head_sources, source_record
from outrider.drafters.heads.config import HEAD_KINDS
from outrider.drafters.registry import builder_of
from outrider.errors import ConfigError
from tests.paths import ROOT


@pytest.mark.parametrize(
    ("draft", "groups", "best"),
    [
        ("none", (), False),
        ("suffix", (("suffix",),), False),
        ("suffix,ngram", (("suffix",), ("ngram",)), False),
        (" suffix , ngram ", (("suffix",), ("ngram",)), False),
        ("suffix/ngram/model", (("suffix",), ("ngram",), ("model",)), True),
        ("suffix+model", (("suffix", "model"),), False),
        ("prediction,suffix+model", (("prediction",), ("suffix", "model")), False),
        ("a.b:C,suffix", (("a.b:C",), ("suffix",)), False),
        ("cascade", tuple((name,) for name in CASCADE.split(",")), False),
        ("cascade,model", (*((name,) for name in CASCADE.split(",")), ("model",)), False),
    ],
)
def test_parse(draft: str, groups: tuple[tuple[str, ...], ...], best: bool) -> None:
    assert parse(draft) == Combination(groups, best)
    assert SpeculationParams(draft=draft).combination == parse(draft)


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        ("", "empty part"),
        ("suffix,", "empty part"),
        ("suffix++ngram", "empty part"),
        ("suffix,ngram,suffix", "'suffix' twice"),
        ("suffix+suffix", "'suffix' twice"),
        ("cascade,suffix", "'suffix' twice"),
        ("none,suffix", "combines 'none'"),
        ("suffix+none", "combines 'none'"),
        ("suffix,ngram/model", "mixes"),
        (3, "draft=3"),
    ],
)
def test_what_is_refused(draft: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message.replace("+", r"\+")):
        SpeculationParams(draft=draft)


@pytest.mark.parametrize("draft", ["telepathy", "suffix,telepathy", "suffix/telepathy", "suffix+cascade"])
def test_unknown_names_are_refused_with_the_list(draft: str) -> None:
    with pytest.raises(ConfigError, match="is unknown") as caught:
        engine_config("m", draft=draft)
    assert all(name in str(caught.value) for name in SOURCES)


def test_a_draft_model_is_asked_for_wherever_it_is_named() -> None:
    with pytest.raises(ConfigError, match=r"draft='model' needs a draft model"):
        engine_config("m", draft="suffix,model")
    with pytest.raises(ConfigError, match="would not be used"):
        engine_config("m", draft="suffix,ngram", draft_model="x")
    assert engine_config("m", draft="suffix+model", draft_model="x").speculation.draft == "suffix+model"


def test_sources_of_one_s_own() -> None:
    assert check_known("suffix,a.b:C").names == ("suffix", "a.b:C")
    config = engine_config("m", draft="x:Y,suffix", extra_sources=["a.b:C", "x:Y"])
    assert config.custom_sources == ("x:Y", "a.b:C")
    with pytest.raises(ConfigError, match="extra_sources names 'suffix'"):
        EngineConfig(model="m", extra_sources=["suffix"])
    with pytest.raises(ConfigError, match="is one string"):
        EngineConfig(model="m", extra_sources="a:B")


def test_a_prediction_is_text_or_token_ids() -> None:
    assert SpeculationParams(prediction="words").prediction == "words"
    assert SpeculationParams(prediction=[3, 4]).prediction == (3, 4)
    with pytest.raises(ValueError, match="prediction=-1"):
        SpeculationParams(prediction=[-1])


PAGES = ROOT / "docs" / "algorithms"


@pytest.mark.parametrize("name", SOURCES)
def test_a_record_is_complete(name: str) -> None:
    source = SOURCES[name]
    assert source.name == name
    assert source.summary
    assert not source.summary.endswith(".")
    assert source.min_draft_models <= source.max_draft_models
    if name != "none":
        assert callable(builder_of(source))
        assert (PAGES / f"{source.page}.md").exists()


def test_every_kind_of_head_has_one_source() -> None:
    kinds = [kind for source in SOURCES.values() for kind in source.head_kinds]
    assert sorted(kinds) == sorted(HEAD_KINDS)
    assert head_sources() == ("eagle", "dflash", "dspark", "medusa", "blockwise", "pass")


def test_a_source_without_a_record_drafts_as_asked() -> None:
    unknown = source_record("package.module:Class")
    assert (unknown.shape, unknown.needs, unknown.cache) == (DraftShape.AS_ASKED, "", None)
    assert "package.module:Class" not in SOURCES
