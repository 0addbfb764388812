"""Keyword options: where they go, what other libraries call them, and what a mistyped one is met with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import pytest

from outrider import EngineConfig, SamplingParams, SpeculationParams
from outrider.config import SOURCES, aliases, engine_config
from outrider.config.fields import field_docs
from outrider.config.options import from_vllm
from outrider.errors import ConfigError, InvalidRequestError


def test_each_option_goes_to_the_class_it_belongs_to() -> None:
    found = engine_config("m", draft="suffix", spec_length=8, dtype="float32")
    assert found == EngineConfig(
        model="m", speculation=SpeculationParams(draft="suffix", spec_length=8), dtype="float32"
    )
    assert engine_config("m", speculation=found.speculation, dtype="float32") == found
    assert engine_config("m", speculation=None) == EngineConfig(model="m")


@pytest.mark.parametrize(
    ("elsewhere", "here"),
    [
        ({"max_model_len": 64}, {"max_seq_len": 64}),
        ({"max_num_seqs": 2}, {"max_batch_size": 2}),
        ({"max_num_batched_tokens": 99}, {"max_batched_tokens": 99}),
        ({"enable_prefix_caching": False}, {"prefix_reuse": False}),
        ({"torch_dtype": "float32"}, {"dtype": "float32"}),
        ({"use_speculative_decoding": False}, {"draft": "none"}),
        ({"use_speculative_decoding": True, "draft": "suffix"}, {"draft": "suffix"}),
        ({"speculative_config": None}, {}),
        (
            {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}},
            {"draft": "lookup", "spec_length": 5},
        ),
        ({"speculative_config": {"method": "suffix"}}, {"draft": "suffix"}),
        ({"speculative_config": {"model": "small"}}, {"draft": "model", "draft_model": "small"}),
        ({"speculative_config": {"method": "eagle3", "model": "head"}}, {"draft": "eagle", "heads": "head"}),
    ],
)
def test_names_of_other_libraries(elsewhere: dict[str, Any], here: dict[str, Any]) -> None:
    assert engine_config("m", **elsewhere) == engine_config("m", **here)


@pytest.mark.parametrize(
    ("make", "alias", "name"),
    [
        (lambda: engine_config("m", max_model_len=64), "max_model_len", "max_seq_len"),
        (lambda: EngineConfig(model="m", max_num_seqs=2), "max_num_seqs", "max_batch_size"),  # type: ignore[call-arg]
        (lambda: SpeculationParams(num_speculative_tokens=2), "num_speculative_tokens", "spec_length"),  # type: ignore[call-arg]
        (lambda: SamplingParams(max_new_tokens=2), "max_new_tokens", "max_tokens"),  # type: ignore[call-arg]
    ],
)
def test_a_name_of_another_library_warns_with_ours(make: Callable[[], object], alias: str, name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"{alias} is another library's name: write {name}, as") as caught:
        make()
    assert caught[0].filename == __file__  # the caller's line is shown, not one of ours


def test_aliases_mean_options_that_there_are_and_hide_none() -> None:
    tables = aliases.ENGINE, aliases.SPECULATION, aliases.SAMPLING
    for table, kind in zip(tables, (EngineConfig, SpeculationParams, SamplingParams), strict=True):
        known = {field.name for field in fields(kind)}
        assert table
        assert set(table.values()) <= known
        assert not table.keys() & known
    assert set(aliases.METHODS.values()) <= set(SOURCES)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"spec_lenght": 3}, "LLM has no option 'spec_lenght': did you mean spec_length?"),
        ({"max_model_length": 3}, "did you mean max_model_len?"),
        ({"xyzzy": 3}, "LLM has no option 'xyzzy': it has draft, spec_length"),
        ({"temperature": 0.5}, "temperature is an option of SamplingParams: give it to generate or chat"),
        ({"max_model_len": 9, "max_seq_len": 9}, "max_model_len and max_seq_len are the same option"),
        ({"speculation": SpeculationParams(), "tree_nodes": 9}, "speculation and tree_nodes are both given"),
        ({"speculative_config": {"method": "x"}, "draft": "y"}, "speculative_config and draft are both given"),
        ({"speculative_config": {"method": "x"}, "speculation": SpeculationParams()}, "and speculation are both given"),
        ({"speculative_config": {"metod": "x"}}, "speculative_config has no option 'metod': did you mean method?"),
    ],
)
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        engine_config("m", **options)
    assert message in str(caught.value)


def test_the_classes_themselves_suggest_too() -> None:
    assert SamplingParams(max_new_tokens=3) == SamplingParams(max_tokens=3)  # type: ignore[call-arg]
    with pytest.raises(
        InvalidRequestError, match="SamplingParams has no option 'temprature': did you mean temperature"
    ):
        SamplingParams(temprature=3)  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="did you mean verifier"):
        SpeculationParams(verfier="block")  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="did you mean device"):
        EngineConfig(model="m", devise="cpu")  # type: ignore[call-arg]


def test_methods_of_vllm_that_are_sources_here_keep_their_names() -> None:
    assert from_vllm({"method": "medusa", "model": "head"}) == {"draft": "medusa", "heads": "head"}
    assert from_vllm({}) == {}


@pytest.mark.parametrize("kind", [EngineConfig, SpeculationParams, SamplingParams])
def test_every_setting_is_documented(kind: type) -> None:
    docs = field_docs(kind)
    assert [name for name in kind.__dataclass_fields__ if not docs.get(name)] == []  # type: ignore[attr-defined]


@dataclass
class Example:
    size: int = 1
    """How large
    it is.

    More for readers of the code.
    """
    colour: str = ""
    bare: int = 0


def test_the_first_paragraph_below_a_field_is_its_help() -> None:
    assert field_docs(Example) == {"size": "How large it is."}
