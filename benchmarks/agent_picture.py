"""The picture of ``benchmarks.agent_trace``: reads and answers of all turns by the clock."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from benchmarks.agent_trace import Turn


def plot(turns: Sequence[Turn], path: Path, title: str) -> None:
    """A waterfall: the wait for the first token, and the tokens after it, those from drafts darker."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(10, 0.2 * len(turns) + 1.2))
    for row, turn in enumerate(sorted(turns, key=lambda each: each.began)):
        color = ("#2a6f97", "#b5651d")[turn.agent % 2]
        first = turn.whole if turn.first is None else turn.first
        answer, behind = turn.whole - first, turn.began + first
        share = (turn.drafted or 0) / max(1, turn.made)
        axes.barh(row, first, left=turn.began, color=color)
        axes.barh(row, answer * share, left=behind, color=color, alpha=0.6)
        axes.barh(row, answer * (1 - share), left=behind + answer * share, color=color, alpha=0.25)
        parts = ["" if turn.read is None else f"{turn.read:,} read", f"{turn.made} made"]
        parts += [f"{turn.drafted} of them drafted"] if turn.drafted else []
        parts += [turn.note, "failed" if turn.failed else ""]
        axes.text(turn.began + turn.whole, row, f"  {', '.join(filter(None, parts))}", va="center", fontsize=7)
    axes.invert_yaxis()
    legend = "until the first token (dark), tokens from drafts (middle), other tokens (light)"
    axes.set(xlabel="seconds", yticks=[])
    axes.set_title(f"{title}{legend}", loc="left", fontsize=10)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.margins(x=0.28, y=0.01)
    axes.set_xlim(left=0)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
