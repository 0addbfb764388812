"""Equal tokens on every processor have exceptions. Each is shown to be one, and the documented list names them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from outrider import LLM, Output, SamplingParams
from outrider.config import SpeculationParams, VerifierName
from outrider.verify.verifiers.catalog import VERIFIERS
from tests.paths import DOCS, LAB

MODEL = str(LAB / "target")
PROMPT = "The cat sat on the mat. The cat sat on the mat. The cat"
LISTED = ("Other verifiers than `matching`.", "Drafts.", "torch operations.")


@pytest.fixture(scope="module")
def native() -> Iterator[LLM]:
    with LLM(MODEL, threads=1, dtype="bfloat16") as llm:
        yield llm


def drawn(llm: LLM, draft: str, verifier: VerifierName = "matching", seed: int = 0, length: int = 4) -> Output:
    params = SamplingParams(max_tokens=24, temperature=1, ignore_eos=True, seed=seed)
    how = SpeculationParams(draft=draft, verifier=verifier, spec_length=length)
    found = llm.generate([PROMPT], params, speculation=how, reports_logits=True)
    return found[0]


def test_the_documented_list_is_the_one_that_is_tested() -> None:
    section = (
        (DOCS / "native.md").read_text(encoding="utf-8").partition("## What is not covered")[2].partition("\n## ")[0]
    )
    assert tuple(re.findall(r"^\* \*\*(.+?)\*\*", section, re.MULTILINE)) == LISTED


@pytest.mark.parametrize("verifier", [name for name, v in VERIFIERS.items() if v.exact and not v.shares_noise])
def test_other_verifiers_give_tokens_that_depend_on_the_draft(native: LLM, verifier: VerifierName) -> None:
    def differ(seed: int) -> bool:
        plain, drafted = (drawn(native, draft, verifier, seed).token_ids for draft in ("none", "lookup"))
        return plain != drafted

    assert any(map(differ, range(4)))


def test_drafts_may_be_others_and_tokens_are_not(native: LLM) -> None:
    short, long = (drawn(native, "lookup", length=length) for length in (1, 7))
    assert short.stats.num_draft_tokens != long.stats.num_draft_tokens
    assert short.token_ids == long.token_ids


def test_torch_operations_round_in_another_way(native: LLM) -> None:
    """The digests of the first token's logits differ, by no more than rounding: its log-probabilities are close."""
    here = drawn(native, "none").steps[0].logits
    with LLM(MODEL, threads=1, dtype="bfloat16", implementation="torch") as other:
        there = drawn(other, "none").steps[0].logits
    assert here is not None
    assert there is not None
    assert here.digest != there.digest
    shared = here.logprobs.keys() & there.logprobs.keys()
    assert len(shared) >= 3
    assert [there.logprobs[token] for token in shared] == pytest.approx([here.logprobs[t] for t in shared], abs=0.05)
