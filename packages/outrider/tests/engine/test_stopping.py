"""Stop strings, alone and inside accepted drafts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outrider.config import SamplingParams
from outrider.drafters.api import RequestView
from outrider.engine.request_state import StopStrings
from outrider.models.toy import TableModel
from outrider.verify.draft import EMPTY, Draft
from tests.engine.counting import CYCLE, counting, oracle
from tests.small_engines import Scripted, engine, request, run

TEXT = st.text("ab", max_size=4)


def cut(pieces: list[str], stop: list[str]) -> tuple[str, bool]:
    """What is shown in the end: all, or all before the first string that is there when one first is."""
    text = ""
    for piece in pieces:
        text += piece
        hits = [at for s in stop if (at := text.find(s)) >= 0]
        if hits:
            return text[: min(hits)], True
    return text, False


@given(st.lists(TEXT, max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
@example(["a", "b", "a"], ["aba", "bb"])
@example(["ab"], ["b", "ab"])
@example(["aab"], ["ab"])
def test_shows_what_it_should_and_never_part_of_a_stop_string(pieces: list[str], stop: list[str]) -> None:
    strings = StopStrings(stop)
    shown = ""
    final, found = cut(pieces, stop)
    for n, piece in enumerate(pieces):
        shown += strings.push(piece)
        assert final.startswith(shown)  # nothing is ever taken back
        so_far = "".join(pieces[: n + 1])
        if strings.found is None:  # and nothing is held back without need
            longest = max((i for s in stop for i in range(1, len(s)) if so_far.endswith(s[:i])), default=0)
            assert shown == so_far[: len(so_far) - longest]
    assert (strings.found is not None) == found
    assert shown + strings.flush() == final


def test_the_example() -> None:
    strings = StopStrings(("END",))
    assert [strings.push(text) for text in ("foo E", "N", "Dbar", "more")] == ["foo ", "", "", ""]
    assert strings.found == "END"
    assert strings.flush() == ""


def test_of_two_that_begin_together_the_longer_is_found() -> None:
    strings = StopStrings(("ab", "abc"))
    assert strings.push("xabc") == "x"
    assert strings.found == "abc"


def test_unarmed_text_passes() -> None:
    strings = StopStrings(("END",))
    assert strings.push("END", armed=False) == "END"
    assert strings.push("ND") == "ND"
    assert strings.found is None


@pytest.mark.parametrize("spec_length", [1, 2, 3, 5, 8])
@pytest.mark.parametrize(
    ("stop", "text", "tokens"),
    [
        (["e"], "bcd", 4),
        (["de"], "bc", 4),
        (["cdefg"], "b", 6),
        (["fg", "d"], "bc", 3),
        (["def", "bx"], "bc", 5),
        (["zzz", "hia"], "bcdefg", 9),
    ],
)
def test_a_stop_inside_an_accepted_draft_cuts_exactly_there(
    stop: list[str], text: str, tokens: int, spec_length: int
) -> None:
    """The target says bcdefghiabcd..."""
    served = engine(counting(), more={"oracle": oracle()})
    for draft in ("none", "oracle"):
        r = request([0], SamplingParams(max_tokens=30, stop=stop), letters=True, draft=draft, spec_length=spec_length)
        outputs = run(served, r)["r"]
        assert r.text == text
        assert len(r.output) == tokens
        assert r.finish_reason == "stop"
        assert [o.finish_reason for o in outputs] == [None] * (tokens - 1) + ["stop"]
        if draft == "oracle":
            assert r.stats.num_accepted_draft_tokens >= tokens - 1 - r.stats.target_runs


def test_text_held_back_is_shown_at_the_end() -> None:
    r = request([0], SamplingParams(max_tokens=3, stop=["dxyz"]), letters=True)
    outputs = run(engine(counting()), r)["r"]
    assert [o.text for o in outputs] == ["b", "c", "d"]
    assert r.finish_reason == "length"


@pytest.mark.parametrize("spec_length", [1, 4, 8])
@pytest.mark.parametrize("draft", ["none", "oracle"])
def test_minimum_length(draft: str, spec_length: int) -> None:
    """Neither end-of-text nor stop strings end it sooner; the banned token's place is taken by another."""
    served = engine(counting(), eos=[3], more={"oracle": oracle()})
    options: dict[str, Any] = {"draft": draft, "spec_length": spec_length, "letters": True, "stop_ids": [3]}
    r = request([0], SamplingParams(max_tokens=30), **options)
    run(served, r)
    assert list(r.output) == [1, 2, 3]
    r = request([0], SamplingParams(max_tokens=30, min_tokens=5), **options)
    run(served, r)
    assert r.stats.completion_tokens > 5
    assert 3 not in r.output[:5]
    r = request(
        [0], SamplingParams(max_tokens=30, min_tokens=12, stop=["d"], ignore_eos=True), **options | {"stop_ids": []}
    )
    run(served, r)
    assert r.stats.completion_tokens >= 12
    r = request([0], SamplingParams(max_tokens=30, min_tokens=6, stop=["c"]), **options | {"stop_ids": []})
    run(served, r)
    assert r.text.count("c") == 1  # the one that came too early to count
    assert r.finish_reason == "stop"


@pytest.mark.parametrize(("min_tokens", "tokens"), [(1, 5), (5, 5), (6, 5 + CYCLE), (5 + CYCLE, 5 + CYCLE)])
def test_the_token_that_reaches_the_minimum_may_be_the_last(min_tokens: int, tokens: int) -> None:
    params = SamplingParams(max_tokens=30, min_tokens=min_tokens, stop=["f"])
    r = request([0], params, letters=True)
    run(engine(counting()), r)
    assert r.stats.completion_tokens == tokens


@pytest.mark.parametrize("spec_length", [1, 2, 5, 8])
def test_end_of_text_inside_an_accepted_draft(spec_length: int) -> None:
    served = engine(counting(), eos=[4], more={"oracle": oracle()})
    r = request([0], SamplingParams(max_tokens=30), stop_ids=[4], draft="oracle", spec_length=spec_length)
    outputs = run(served, r)["r"]
    assert list(r.output) == [1, 2, 3, 4]
    assert r.finish_reason == outputs[-1].finish_reason == "stop"
    r = request([0], SamplingParams(max_tokens=30, ignore_eos=True), draft="oracle", spec_length=spec_length)
    run(served, r)
    assert list(r.output) == [(i + 1) % CYCLE for i in range(30)]
    assert r.finish_reason == "length"


def test_where_tokens_come_from() -> None:
    """Accepted, then recovered if one was refused, else bonus; target where nothing was drafted."""

    def script(view: RequestView, budget: int) -> Draft:
        at = len(view.tokens)
        right = [(at + i) % CYCLE for i in range(3)]
        if at == 1 or at > 11:
            return EMPTY
        if at == 2:
            return Draft.chain(right, source="s")  # all right
        if at == 6:
            return Draft.chain([right[0], 0, right[2]], source="s")  # second wrong
        if at == 8:
            return Draft.chain([0], source="s")
        return Draft((right[0], 0, right[1], 0), (-1, -1, 0, 0), source="s")  # a tree, its best path right

    served = engine(counting(), more={"s": Scripted(script)})
    r = request([0], SamplingParams(max_tokens=13), draft="s", spec_length=4)
    outputs = run(served, r)["r"]
    assert list(r.output) == [(i + 1) % CYCLE for i in range(13)]
    assert [o.origin for o in outputs] == [
        "target",
        *["accepted"] * 3,
        "bonus",
        *["accepted", "recovered"],
        "recovered",
        *["accepted"] * 2,
        "bonus",
        *["target"] * 2,
    ]
    assert [o.source for o in outputs] == ["none", *["s"] * 10, "none", "none"]
    stats = r.stats
    assert (stats.target_runs, stats.num_drafts) == (7, 4)
    assert (stats.num_draft_tokens, stats.num_accepted_draft_tokens) == (11, 6)
    assert stats.acceptance_by_position == [3 / 4, 2 / 3, 1 / 2]


def test_the_last_accepted_token_counts_once() -> None:
    """A request that ends inside its draft counts what it used, and sources hear only of committed tokens."""
    source = oracle()
    served = engine(TableModel(counting().table), more={"oracle": source})
    r = request([0], SamplingParams(max_tokens=30, stop_token_ids=[3]), draft="oracle", spec_length=8)
    run(served, r)
    assert (r.stats.target_runs, r.stats.num_accepted_draft_tokens, r.stats.num_draft_tokens) == (1, 3, 8)
    assert r.stats.mean_acceptance_length == 3.0
    assert source.outcomes == []  # it was over
    assert source.running == set()
