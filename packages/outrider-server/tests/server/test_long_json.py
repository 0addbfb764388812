"""Long answers are the same JSON as short ones."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider_server.http.errors import to_json, to_long_json

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


@settings(max_examples=40, deadline=None, database=None)
@given(value=values, depth=st.integers(0, 6))
def test_the_same_bytes(value: Any, depth: int) -> None:
    assert json.loads(to_long_json(value, depth)) == json.loads(to_json(value))


def test_long_lists() -> None:
    value = {"tokens": list(range(10_000)), "rows": [[i, {"a": str(i)}] for i in range(5_000)], "none": []}
    assert to_long_json(value) == to_json(value)


@pytest.mark.parametrize("count", [0, 1, 15, 16, 17, 100])
def test_iterators_are_lists(count: int) -> None:
    rows = [{"token": str(i), "top": [i, i + 1]} for i in range(count)]
    expected = to_json({"choices": [{"logprobs": rows, "none": None}]})
    for write in (to_long_json, to_json):
        assert write({"choices": [{"logprobs": iter(rows), "none": None}]}) == expected


def test_a_lone_surrogate_is_escaped_and_other_text_is_not() -> None:
    value = {"a": ["é\ud800", "\udfff😀"], "b": iter(["\ud83d"])}
    assert to_json(value) == '{"a":["é\\ud800","\\udfff😀"],"b":["\\ud83d"]}'.encode()


def test_what_has_no_json_is_an_error() -> None:
    with pytest.raises(TypeError, match="set has no JSON"):
        to_json({"a": {1}})


def test_other_threads_run_while_a_long_answer_is_written() -> None:
    """One call for all of it would hold Python's lock to its end."""
    value = {"numbers": [1000.5] * 1_000_000}
    began = time.perf_counter()
    to_json(value)
    alone = time.perf_counter() - began
    writing = threading.Thread(target=to_long_json, args=(value,))
    longest, last, goes_on = 0.0, time.perf_counter(), True
    writing.start()
    while goes_on:
        time.sleep(0)
        goes_on, now = writing.is_alive(), time.perf_counter()
        longest, last = max(longest, now - last), now
    assert longest < alone / 3
