"""Pictures of ``benchmarks.fleet_check``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.fleet_fit import Row, errors
from outrider_lab.figures.page import COLOURS, GREY, pyplot

NAMES = ("first token p50", "first token p99", "latency p50", "latency p99")


def reality(path: Path, panels: Mapping[str, Sequence[Row]]) -> None:
    """Simulated (bars) beside real (dots) latencies by number of replicas, a row of panels for each check."""
    columns = max(map(len, panels.values()))
    figure, axes = pyplot().subplots(len(panels), columns, figsize=(11, 3.0 * len(panels)), squeeze=False)
    for line, (title, rows) in zip(axes, panels.items(), strict=True):
        for pane, row in zip(line, rows, strict=False):
            found, places = errors(row), range(len(NAMES))
            simulated, real = ([found[name][side] for name in NAMES] for side in ("simulated", "real"))
            pane.barh(places, simulated, 0.6, color=COLOURS[4], label="simulated")
            pane.plot(real, places, "o", color=COLOURS[1], label="real")
            for place, name in enumerate(NAMES):
                own = found[name]
                pane.annotate(f"{own['error']:+.0%}", (max(own["simulated"], own["real"]), place), xytext=(7, 0),
                              textcoords="offset points", va="center", color=GREY)  # fmt: skip
            pane.set_yticks(places, NAMES if pane is line[0] else [""] * len(NAMES))
            pane.invert_yaxis()
            pane.set_xlim(0, 1.3 * max(*simulated, *real))
            pane.set_xlabel("seconds")
            pane.set_title(f"{title}: {row.count} replica{'s' * (row.count > 1)}, {row.routing}")
    axes[0][0].legend(loc="upper right")
    figure.tight_layout()
    figure.savefig(path)
    pyplot().close(figure)
