"""The speed of a model that earlier starts measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.engine.pass_times import last_times
from outrider.weights.packed import packed_folder

__all__ = ["measured"]


def measured(folder: Path) -> dict[str, Any]:
    """Milliseconds of passes of one row and of more, as the last start of the model in ``folder`` measured them.

    Empty: it has not been started here.
    """
    found = last_times(packed_folder(folder).name)
    threads, times = (0, {}) if found is None else found
    if not any(case[1] == 1 for case in times):
        return {}
    context = min(case[0] for case in times)
    passes = {case[1]: round(1e3 * times[case], 3) for case in sorted(times, reverse=True) if case[0] == context}
    by_rows = {str(rows): passes[rows] for rows in sorted(passes)}
    return {"measured_threads": threads, "measured_ms_by_rows": by_rows, "tokens_per_s": round(1e3 / passes[1], 2)}
