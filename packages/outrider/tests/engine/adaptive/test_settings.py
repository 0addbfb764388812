"""The constants of the adaptive length, and the table that explains them."""

from __future__ import annotations

import re
from dataclasses import fields

from outrider.engine.adaptive.settings import AdaptiveSettings
from tests.paths import ROOT

PAGE = ROOT / "docs" / "algorithms" / "adaptive.md"


def test_the_page_explains_every_constant_with_its_default() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| ([^|]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    assert rows.pop("measured_rows") == "1 to 32"
    defaults = {field.name: field.default for field in fields(AdaptiveSettings) if field.name != "measured_rows"}
    assert {name: float(value) for name, value in rows.items()} == defaults
