"""No test can pass without having compared anything, and the check that says so finds those that can."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.assertions import uncertain_tests
from tests.paths import ROOT

FILES = sorted([*ROOT.glob("tests/**/test_*.py"), *ROOT.glob("packages/*/tests/**/test_*.py")])


def test_every_test_compares_something_for_certain() -> None:
    assert len(FILES) > 200
    found = {str(path.relative_to(ROOT)): uncertain for path in FILES if (uncertain := uncertain_tests(path))}
    assert found == {}, "assert outside the loop that there is something to loop over"


@pytest.mark.parametrize(
    ("certain", "body"),
    [
        (False, "for x in f(): assert x"),
        (False, "for x in []: assert x"),
        (False, "for x in NONE: assert x"),
        (False, "for x in given: assert x"),
        (False, "while f():\n        assert x"),
        (False, "if f():\n        assert x"),
        (False, "for x in range(n): assert x"),
        (False, "for x in range(0): assert x"),
        (False, "for x in zip((1, 2), f()): assert x"),
        (False, "for x in [y for y in SOME if y]: assert x"),
        (False, "for x in f():\n        with pytest.raises(E): g()"),
        (True, "assert f()\n    for x in f(): assert x"),
        (True, "for x in (1, 2): assert x"),
        (True, "for x in SOME: assert x"),
        (True, "for x, y in enumerate({**f(), 1: 2}.items()): assert x"),
        (True, "for x in range(3): assert x"),
        (True, "for x in zip((1, 2), f(), strict=True): assert x"),
        (True, "with f():\n        for x in [1]: assert x"),
        (True, "if f():\n        assert x\n    else:\n        assert y"),
        (True, "for x in f(): assert x\n    check_all(x)"),
        (True, "f()"),
    ],
)
def test_the_check_tells_certain_asserts_from_others(certain: bool, body: str, tmp_path: Path) -> None:
    path = tmp_path / "test_one.py"
    path.write_text(f"SOME, NONE = (1, 2), ()\n\n\ndef test_one(given):\n    {body}\n")
    assert uncertain_tests(path) == ([] if certain else ["4: test_one"])
