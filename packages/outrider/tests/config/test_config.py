"""Options are refused where they are made: the value, and the remedy."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outrider import EngineConfig, SamplingParams, SpeculationParams
from outrider.config import CHAIN_VERIFIERS, engine_config
from outrider.errors import ConfigError, InvalidRequestError
from outrider.verify.verifiers.catalog import VERIFIERS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 0}, "max_tokens=0"),
        ({"max_tokens": -3}, "max_tokens=-3"),
        ({"max_tokens": True}, "max_tokens=True"),
        ({"min_tokens": -1}, "min_tokens=-1"),
        ({"min_tokens": 9, "max_tokens": 8}, "use at most max_tokens=8"),
        ({"temperature": -0.1}, "temperature=-0.1"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_k": -2}, "top_k=-2"),
        ({"top_p": 0.0}, "top_p=0.0"),
        ({"top_p": 1.01}, "top_p=1.01"),
        ({"top_p": math.nan}, "top_p=nan"),
        ({"min_p": -0.1}, "min_p=-0.1"),
        ({"min_p": 1.5}, "min_p=1.5"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0"),
        ({"presence_penalty": math.inf}, "presence_penalty=inf"),
        ({"frequency_penalty": 1e9}, "frequency_penalty"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias=-1"),
        ({"logit_bias": {3: math.nan}}, "logit_bias=nan"),
        ({"allowed_token_ids": ()}, "allow at least one"),
        ({"banned_token_ids": (-4,)}, "banned_token_ids=-4"),
        ({"stop": ""}, "stop strings are not empty"),
        ({"stop": ["ok", ""]}, "stop strings are not empty"),
        ({"seed": 1.5}, "seed=1.5"),
        ({"logprobs": 21}, "logprobs=21"),
    ],
)
def test_sampling_options_that_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message) as caught:
        SamplingParams(**options)
    assert caught.value.param in options
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SpeculationParams(spec_length=0), "spec_length=0"),
        (lambda: SpeculationParams(verifier="hope"), "verifier='hope'"),  # type: ignore[arg-type]
        (lambda: SpeculationParams(draft_temperature=-1.0), "draft_temperature=-1.0"),
        (lambda: SpeculationParams(verifier="lenient", lenience=0.0), "lenience=0.0"),
        (lambda: SpeculationParams(verifier="lenient", lenience=1e-300), "lenience=1e-300 is not valid: use a number"),
        (lambda: SpeculationParams(verifier="lenient", lenience=0.099), "from 0.1 to 1"),
        (lambda: SpeculationParams(verifier="typical", posterior_threshold=0.009), "from 0.01 to 1"),
        (lambda: SpeculationParams(verifier="lenient", lenience=1.1), "lenience=1.1"),
        (lambda: SpeculationParams(verifier="lenient", lenience=math.nan), "lenience=nan"),
        (lambda: SpeculationParams(lenience=0.5), "do nothing with verifier='matching': use verifier='lenient'"),
        (lambda: SpeculationParams(verifier="typical", posterior_threshold=-0.1), "posterior_threshold=-0.1"),
        (
            lambda: SpeculationParams(verifier="lenient", posterior_threshold=0.3),
            "use verifier='typical', or leave it out",
        ),
        (lambda: engine_config("m", posterior_threshold=0.1), "do nothing with verifier='matching'"),
        (lambda: SpeculationParams(tree="4,2,x"), "tree='4,2,x' is not valid: use"),
        (lambda: SpeculationParams(tree=""), "tree='' is not valid"),
        (lambda: SpeculationParams(tree=()), r"tree=\(\) is not valid"),
        (lambda: SpeculationParams(tree=3), "tree=3 is not valid"),  # type: ignore[arg-type]
        (lambda: SpeculationParams(tree=(2, 0)), "widths are at least 1"),
        (lambda: SpeculationParams(tree=(2, 1.5)), "is not valid"),  # type: ignore[arg-type]
        (lambda: SpeculationParams(tree=(-1, 1)), "parents come before their children"),
        (lambda: SpeculationParams(tree=(-2, -1)), "widths are at least 1"),
        (lambda: SpeculationParams(tree=(8, 8, 8, 8)), "has 4680 nodes: use at most 1024"),
        (lambda: SpeculationParams(tree=(2, 1), verifier="rejection"), "branches, and verifier='rejection'"),
        (lambda: SpeculationParams(draft="models", verifier="rejection"), "draft='models' branches"),
        (lambda: SpeculationParams(draft="lookahead", verifier="rejection"), "draft='lookahead' branches"),
        (lambda: SpeculationParams(draft="lookup", tree="dynamic"), "would not be used: draft='lookup'"),
        (lambda: SpeculationParams(tree_nodes=0), "tree_nodes=0"),
        (lambda: SpeculationParams(lookahead=(0, 3, 3)), r"lookahead=\(0, 3, 3\) is not valid: use W,N,G of at least"),
        (lambda: SpeculationParams(lookahead="5,1,3"), "lookahead='5,1,3' is not valid"),
        (lambda: SpeculationParams(lookahead=(5, 3, -1)), "is not valid"),
        (lambda: SpeculationParams(lookahead="5,3"), "is not valid"),
        (lambda: SpeculationParams(lookahead="five"), "is not valid"),
        (lambda: SpeculationParams(lookahead=(500, 3, 100)), "has 1200 nodes: use at most 1024"),
        (lambda: engine_config("m", tree="2,x"), "tree='2,x'"),
        (lambda: engine_config("m", draft_layers=0, draft="layer_skip"), "draft_layers=0"),
        (lambda: engine_config("m", draft_layers=2), "draft_layers=2 is for draft='layer_skip'"),
        (
            lambda: engine_config("m", heads=["a"], draft="ngram"),
            "would not be used with draft='ngram': use one of",
        ),
        (lambda: engine_config("m", heads="a", draft_model="b"), "would not be used with draft='model'"),
        (lambda: engine_config("m", draft="models", draft_model="a"), "needs 2 draft models: name them"),
        (lambda: engine_config("m", draft="model", draft_model=("a", "b")), "does not take 2 draft models"),
        (lambda: engine_config("m", draft="hierarchical"), "needs a draft model"),
        (lambda: engine_config("m", draft="hierarchical", draft_model=("a", "b", "c")), "name at most 2"),
        (lambda: EngineConfig(model="m", dtype="float8"), "dtype='float8'"),  # type: ignore[arg-type]
        (lambda: EngineConfig(model="m", dtype="float16"), "dtype='float16' is unknown: did you mean bfloat16\\? Use"),  # type: ignore[arg-type]
        (
            lambda: EngineConfig(model="m", speculation=SpeculationParams(draft="suffx")),
            "did you mean suffix\\? Use one",
        ),
        (lambda: EngineConfig(model="m", draft_dtype="q5_0"), "use one of auto, bfloat16, float32, q8_0, q4_0, q4_1"),  # type: ignore[arg-type]
        (lambda: EngineConfig(model="m", max_seq_len=1), "max_seq_len=1"),
    ],
)
def test_other_options_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def draft(**options: Any) -> str:
    return engine_config("m", **options).speculation.draft


def test_draft_models_choose_the_source() -> None:
    assert draft() == "auto"
    assert draft(draft_model="a") == draft(draft="auto", draft_model="a") == "model"
    assert engine_config("m", draft_model="a").draft_models == ("a",)
    assert draft(draft_model=["a", "b"]) == "models"
    assert engine_config("m", draft="hierarchical", draft_model=["a", "b"]).draft_models == ("a", "b")


def test_heads_and_predictions_choose_the_source() -> None:
    assert draft(heads="folder") == draft(heads="folder", prediction="words") == "auto"
    assert EngineConfig(model="m", heads="folder").heads == ("folder",)
    assert engine_config("m", heads=["a", "b"], draft="eagle+medusa").heads == ("a", "b")
    assert draft(prediction="words") == "prediction"
    assert draft(prediction="words", draft_model="a") == "model"


def test_trees_are_read_from_text() -> None:
    assert SpeculationParams(tree="learned").tree == "learned"
    assert SpeculationParams(tree="4, 2,1").tree == (4, 2, 1)
    assert SpeculationParams(tree="-1,-1,0").tree == (-1, -1, 0)
    assert SpeculationParams(tree=[3, 1]).tree == (3, 1)
    assert engine_config("m", tree="dynamic").speculation.tree == "dynamic"


def test_the_table_of_verifiers_for_chains_is_true() -> None:
    assert set(CHAIN_VERIFIERS) == {name for name, verifier in VERIFIERS.items() if not verifier.takes_trees}


def test_options_are_normalised() -> None:
    params = SamplingParams(stop="END", top_k=-1, stop_token_ids=[3, 4])
    assert (params.stop, params.top_k, params.stop_token_ids) == (("END",), 0, (3, 4))
    assert params.greedy
    assert not SamplingParams(temperature=0.1).greedy
