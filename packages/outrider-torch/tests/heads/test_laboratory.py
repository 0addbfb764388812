"""Trained drafts, not random ones: the laboratory's target and drafts (``make lab``), as they were shipped.

The target is a character model of 2.9M parameters; heads and small models were trained for it on the same text.
"""

from __future__ import annotations

import functools
from typing import Any

import pytest

from outrider import LLM, Output, SamplingParams, SpeculationParams
from tests.paths import LAB

PROMPTS = ("ROMEO:\n", "First Citizen:\nWe are", "KING RICHARD III:\nMy lord, ")
DRAFTS: dict[str, dict[str, Any]] = {
    "medusa": {"heads": str(LAB / "medusa")},
    "eagle": {"heads": str(LAB / "eagle")},
    "distilled": {"draft_model": str(LAB / "distilled")},
    "truncated": {"draft_model": str(LAB / "truncated")},
}


class Laboratory:
    """Its models, and what they said: every test compares some of the same answers."""

    def __init__(self) -> None:
        options: dict[str, Any] = {"threads": 1, "spec_length": 3, "dtype": "float32", "draft_dtype": "float32"}
        self._llms = {name: LLM(str(LAB / "target"), **options, **draft) for name, draft in DRAFTS.items()}
        self._said: dict[tuple[str, float], list[Output]] = {}

    def say(self, name: str, temperature: float, speculation: SpeculationParams | None = None) -> list[Output]:
        params = SamplingParams(max_tokens=48, temperature=temperature, seed=3, ignore_eos=True)
        if speculation is not None:
            return self._llms[name].generate(list(PROMPTS), params, speculation=speculation)
        if (name, temperature) not in self._said:
            self._said[name, temperature] = self._llms[name].generate(list(PROMPTS), params)
        return self._said[name, temperature]

    @functools.cache  # noqa: B019  it lives as long as the tests
    def plain(self, temperature: float) -> list[Output]:
        """What the target says alone, which is the same one for all drafts."""
        return self.say("eagle", temperature, SpeculationParams(draft="none"))


@pytest.fixture(scope="module")
def lab() -> Laboratory:
    return Laboratory()


def tau(outputs: list[Output]) -> float:
    """Tokens per target run."""
    return sum(len(o.token_ids) for o in outputs) / sum(o.stats.target_runs for o in outputs)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("name", DRAFTS)
def test_trained_drafts_change_no_token(lab: Laboratory, name: str, temperature: float) -> None:
    drafted = lab.say(name, temperature)
    assert [o.token_ids for o in drafted] == [o.token_ids for o in lab.plain(temperature)]
    assert all(o.stats.draft_error is None for o in drafted)


@pytest.mark.parametrize("verifier", ["rejection", "block"])
def test_trained_drafts_under_verifiers_that_compare_p_with_q(lab: Laboratory, verifier: str) -> None:
    speculation = SpeculationParams(draft="eagle", spec_length=3, verifier=verifier)  # type: ignore[arg-type]
    outputs = lab.say("eagle", 0.8, speculation)
    assert tau(outputs) > 1.2
    assert all(o.stats.draft_error is None for o in outputs)


def test_training_pays(lab: Laboratory) -> None:
    """What was trained for the target is accepted more often than its own first layers as they are."""
    found = {name: tau(lab.say(name, 0.0)) for name in DRAFTS}
    assert min(found["eagle"], found["distilled"]) > found["truncated"], found
    assert found["medusa"] > 1.1, found


def test_trees_of_a_trained_head_accept_more_than_its_chains(lab: Laboratory) -> None:
    chain = lab.say("eagle", 0.0)
    tree = lab.say("eagle", 0.0, SpeculationParams(draft="eagle", spec_length=3, tree="dynamic", tree_nodes=12))
    assert [o.token_ids for o in tree] == [o.token_ids for o in chain]
    assert tau(tree) > tau(chain)
