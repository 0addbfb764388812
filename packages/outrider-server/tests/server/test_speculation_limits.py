"""The cost of drafts against ``max_draft_tokens``: a level that runs a model counts its share of a pass."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.config import SpeculationParams
from outrider_server.http.errors import ApiError
from outrider_server.service import Service
from outrider_server.settings import Limits, ServerSettings
from outrider_server.speculation_limits import PASS_TOKENS


def service(**own: Any) -> Service:
    """Of a target of 30 layers with a draft model of half its size."""
    llm = SimpleNamespace(
        speculation=SpeculationParams(**{"draft": "none"} | own),
        model=SimpleNamespace(config=SimpleNamespace(num_layers=30)),
        config=SimpleNamespace(draft_layers=None),
        draft_models=(SimpleNamespace(weight_bytes=50),),
        memory_plan=SimpleNamespace(target_weights=100),
    )
    return cast(
        "Service",
        SimpleNamespace(engine=SimpleNamespace(llm=llm), settings=ServerSettings(limits=Limits(max_draft_tokens=64))),
    )


@pytest.mark.parametrize(
    ("draft", "most"), [("ngram", 64), ("layer_skip", 24), ("model", 16), ("suffix,hierarchical", 16), ("eagle", 64)]
)
def test_levels_of_a_fixed_length_count_what_they_run(draft: str, most: int) -> None:
    assert PASS_TOKENS == 8
    Service.check_speculation(service(), SpeculationParams(draft=draft, spec_length=most))
    with pytest.raises(ApiError, match="cost as much as"):
        Service.check_speculation(service(), SpeculationParams(draft=draft, spec_length=most + 1))


@pytest.mark.parametrize("draft", ["layer_skip", "model", "hierarchical", "models", "universal"])
def test_a_length_that_the_engine_chooses_is_allowed(draft: str) -> None:
    Service.check_speculation(service(), SpeculationParams(draft=draft))


def test_what_the_server_drafts_itself_is_allowed_to_all() -> None:
    own = SpeculationParams(draft="layer_skip", spec_length=64)
    Service.check_speculation(service(draft="layer_skip", spec_length=64), own)
    with pytest.raises(ApiError):
        Service.check_speculation(service(), own)
