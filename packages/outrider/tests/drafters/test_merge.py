"""Several drafts in one tree."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from outrider.drafters.merge import Trie, merge
from outrider.verify.draft import EMPTY, Draft
from outrider.verify.tree import path_to


def test_equal_beginnings_are_joined() -> None:
    drafts = [Draft.chain([1, 2, 3]), Draft.chain([1, 4]), Draft.chain([5]), EMPTY]
    merged = merge(drafts, 9, "both")
    assert (merged.tokens, merged.parents) == ((1, 2, 3, 4, 5), (-1, 0, 1, 0, -1))
    assert (merged.q_logits, merged.source) == (None, "both")


def test_trees_are_joined_and_cut() -> None:
    tree = Draft((1, 2, 3, 4), (-1, -1, 0, 1))
    assert merge([tree, tree], 9, "x").tokens == tree.tokens
    merged = merge([Draft.chain([1, 9]), tree], 3, "x")
    assert (merged.tokens, merged.parents) == ((1, 9, 2), (-1, 0, -1))
    merged = merge([Draft.chain([1, 3, 7]), Draft.chain([6, 7]), Draft.chain([1, 3, 7, 8])], 3, "x")
    assert merged.tokens == (1, 3, 7)
    assert merge([], 3, "x") is EMPTY
    assert merge([tree], 0, "x") is EMPTY


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {tuple(draft.tokens[i] for i in path_to(draft.parents, node)) for node in range(len(draft))}


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=5), st.integers(0, 30))
def test_it_holds_the_paths_of_its_parts_and_no_others(chains: list[list[int]], budget: int) -> None:
    merged = merge([Draft.chain(chain) for chain in chains], budget, "x")
    wanted = {tuple(chain[:i]) for chain in chains for i in range(1, len(chain) + 1)}
    assert len(merged) == min(budget, len(wanted))
    assert len(paths(merged)) == len(merged)
    assert paths(merged) <= wanted


def test_a_trie_knows_its_children() -> None:
    trie = Trie()
    assert [trie.add(-1, 5), trie.add(0, 5), trie.add(-1, 5), trie.add(-1, 6)] == [0, 1, 0, 2]
    assert (0, 5) in trie
    assert (1, 5) not in trie
    assert len(trie) == 3
