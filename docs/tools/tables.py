"""Writes the tables of the documentation that the code knows: python docs/tools/tables.py [--check]

A table stands between ``<!-- table: NAME -->`` and ``<!-- end of table -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from outrider.cli.suggest import memory_class, needed_bytes
from outrider.config import SOURCES, DraftSource
from outrider.engine.forecast import MEASURED_CONTEXT, USUAL_FACTOR, Forecast
from outrider.native.measure import MachineRates
from outrider.weights.hub.popular import PopularModel, popular_models

DOCS = Path(__file__).parents[1]
COMMAND = "python docs/tools/tables.py"


def sources() -> str:
    """One row for each record of a draft source."""
    rows = ["| name | where drafts come from | shape | needs | |", "|---|---|---|---|---|"]
    return "\n".join([*rows, *map(_row, SOURCES.values())])


def _row(source: DraftSource) -> str:
    shape = source.shape.value if source.builder else ""
    needs = f"may have `{source.engine_option}`" if source.engine_option else source.needs
    page = f"[{source.page}](algorithms/{source.page}.md)" if source.page else ""
    return f"| `{source.name}` | {source.summary} | {shape} | {needs} | {page} |"


LAPTOP = MachineRates(read_gb_s=30.0, int8_gmac_s=400.0)
"""Two channels of DDR4, four cores with AVX2."""


def popular() -> str:
    """One row for each model that people run, by the memory that it takes."""
    rows = ["| memory | model | file, GB | needs, GB | tokens/s | tools |", "|---|---|---|---|---|---|"]
    return "\n".join([*rows, *map(_popular_row, sorted(popular_models(), key=needed_bytes))])


def _popular_row(model: PopularModel) -> str:
    speed = 1 / Forecast.of(model.config, model.sizes(), 0, LAPTOP, USUAL_FACTOR).step(MEASURED_CONTEXT)
    return (
        f"| {memory_class(model)} GB | {model.name.partition('/')[2]} | {model.file_bytes() / 1e9:.1f} "
        f"| {needed_bytes(model) / 1e9:.1f} | {speed:.{0 if speed >= 10 else 1}f} | {'yes' if model.tools else 'no'} |"
    )


TABLES: dict[str, tuple[str, Callable[[], str]]] = {
    "sources": ("sources.md", sources),
    "popular": ("models.md", popular),
}
"""By name the page that a table is on, and what writes it."""


def main() -> int:
    """Write the tables; with ``--check``, only say which are not as they should be."""
    stale: list[str] = []
    for name, (page, make) in TABLES.items():
        path = DOCS / page
        text = path.read_text(encoding="utf-8")
        table = re.compile(rf"(<!-- table: {name} -->\n).*?(<!-- end of table -->)", re.DOTALL)
        new, count = table.subn(lambda found, make=make: f"{found[1]}\n{make()}\n\n{found[2]}", text)  # type: ignore[misc]
        if count != 1:
            raise SystemExit(f"docs/{page} has {count} tables named {name!r}: it must have one")
        if new != text:
            stale.append(f"docs/{page}: the table {name!r} is out of date")
            if "--check" not in sys.argv:
                path.write_text(new, encoding="utf-8")
    if "--check" not in sys.argv or not stale:
        return 0
    print("\n".join([*stale, f"run: {COMMAND}"]), file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main())
