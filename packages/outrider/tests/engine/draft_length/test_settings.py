"""The constants of the adaptive length, and the table that explains them."""

from __future__ import annotations

import re
from dataclasses import fields

from outrider.engine.draft_length.settings import DraftLengthSettings
from tests.paths import ROOT

PAGE = ROOT / "docs" / "algorithms" / "adaptive.md"


def test_the_page_explains_every_constant_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    defaults = {field.name: field.default for field in fields(DraftLengthSettings)}
    assert {name: float(value) for name, value in rows.items()} == defaults
