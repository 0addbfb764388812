"""The native library drafts what ``suffix_tree`` drafts, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.drafters.datastore import Datastore, collect
from outrider.drafters.text import suffix
from outrider.drafters.text.suffix import SuffixDrafter
from outrider.native.library import library
from outrider.verify.draft import Draft
from tests.drafters.views import grow, request

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

VOCABULARY = 5


def both(answers: list[list[int]], stored: Datastore | None) -> list[SuffixDrafter]:
    """A drafter by the library and one without it, which have learned the same answers."""
    drafters = [SuffixDrafter(VOCABULARY, datastore=stored)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "library", lambda: None)
        drafters.append(SuffixDrafter(VOCABULARY, datastore=stored))
    for drafter in drafters:
        for i, answer in enumerate(answers):
            drafter.learn(f"earlier {i}", "", "", answer)
    return drafters


def drafts(drafter: SuffixDrafter, prompt: list[int], output: list[int], budget: int, **options: object) -> list[Draft]:
    """Drafts at the end of the prompt and after every few tokens of the output."""
    view = request(prompt, speculation=options)
    drafter.start(view)
    found = drafter.propose([view], [budget])
    for at in range(0, len(output), 3):
        grow(drafter, view, output[at : at + 3])
        found += drafter.propose([view], [budget])
    drafter.finish(view.id)
    return found


answers = st.lists(st.lists(st.integers(0, VOCABULARY - 1), max_size=60), max_size=4)
spans = st.lists(st.tuples(st.integers(0, 80), st.integers(0, 30), st.integers(0, VOCABULARY - 1)), max_size=5)


@settings(max_examples=60)
@given(
    prompt=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=90),
    spans=spans,
    earlier=answers,
    stored=answers,
    budget=st.integers(0, 40),
    depth=st.integers(1, 20),
    branching=st.booleans(),
)
def test_equal_drafts(
    prompt: list[int],
    spans: list[tuple[int, int, int]],
    earlier: list[list[int]],
    stored: list[list[int]],
    budget: int,
    depth: int,
    branching: bool,
) -> None:
    """Of outputs that copy the prompt with changes, answers and a datastore."""
    output = [token for start, length, new in spans for token in (*prompt[start : start + length], new)]
    texts = [([0, 1], answer) for answer in stored if answer]
    store = collect(texts, VOCABULARY) if texts else None
    options: dict[str, object] = {"spec_length": depth} | ({} if branching else {"verifier": "rejection"})
    native, plain = (drafts(each, prompt, output, budget, **options) for each in both(earlier, store))
    assert native == plain


def test_equal_drafts_of_long_copies_with_a_tree_as_large_as_it_gets() -> None:
    rng = np.random.default_rng(3)
    prompt = rng.integers(0, VOCABULARY, 400).tolist()
    output = [*prompt[50:120], 1, 2, *prompt[121:200], *prompt[300:330]]
    native, plain = (drafts(each, prompt, output, 200, spec_length=60) for each in both([prompt[::2]], None))
    assert native == plain
    assert max(len(draft) for draft in native) > 32  # more than there was room for at first
    assert any(not draft.is_chain for draft in native)
    assert any(draft.tokens and draft.scores and draft.scores[0] > 0.9 for draft in native)


def test_answers_that_are_copied_from_are_kept_by_both() -> None:
    left = []
    for drafter in both([[0, 1, 2, 3, 4, 0, 0], [4, 4, 3, 3, 2, 2, 1]], None):
        drafts(drafter, [2, 0, 1, 2, 3], [], 4)
        held = drafter.responses.open("").store
        held.evict()
        left.append(held.text.tolist()[:7])
    assert left == [[0, 1, 2, 3, 4, 0, 0]] * 2
