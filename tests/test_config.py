"""Options are refused where they are made: the value, and the remedy."""

from __future__ import annotations

import math
from typing import Any

import pytest

from outrider import EngineConfig, SamplingParams, SpeculationParams
from outrider.errors import ConfigError, InvalidRequestError


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
        (lambda: SpeculationParams(verifier="lenient", lenience=1.1), "lenience=1.1"),
        (lambda: SpeculationParams(verifier="lenient", lenience=math.nan), "lenience=nan"),
        (lambda: SpeculationParams(lenience=0.5), "do nothing with verifier='matching': use verifier='lenient'"),
        (lambda: SpeculationParams(verifier="typical", posterior_threshold=-0.1), "posterior_threshold=-0.1"),
        (lambda: SpeculationParams(verifier="typical", posterior_alpha=2), "posterior_alpha=2"),
        (lambda: SpeculationParams(verifier="lenient", posterior_alpha=0.3), "use verifier='typical', or leave it out"),
        (lambda: EngineConfig(model="m", posterior_threshold=0.1), "do nothing with verifier='matching'"),
        (lambda: EngineConfig(model="m", dtype="float8"), "dtype='float8'"),  # type: ignore[arg-type]
        (lambda: EngineConfig(model="m", max_seq_len=1), "max_seq_len=1"),
    ],
)
def test_other_options_that_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


def test_options_are_normalised() -> None:
    params = SamplingParams(stop="END", top_k=-1, stop_token_ids=[3, 4])
    assert (params.stop, params.top_k, params.stop_token_ids) == (("END",), 0, (3, 4))
    assert params.greedy
    assert not SamplingParams(temperature=0.1).greedy
