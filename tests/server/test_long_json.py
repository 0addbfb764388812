"""Long answers are the same JSON as short ones."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.server.http import long_json
from outrider.server.http.errors import to_json

leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
values = st.recursive(leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30)


@settings(deadline=None, database=None)
@given(value=values, depth=st.integers(0, 6))
def test_the_same_bytes(value: Any, depth: int) -> None:
    assert json.loads(long_json.to_long_json(value, depth)) == json.loads(to_json(value))


def test_long_lists() -> None:
    value = {"tokens": list(range(10_000)), "rows": [[i, {"a": str(i)}] for i in range(5_000)], "none": []}
    assert long_json.to_long_json(value) == to_json(value)
