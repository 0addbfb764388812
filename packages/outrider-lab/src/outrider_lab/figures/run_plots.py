"""Plots of measurements: a trace, draft quality, agreement on the target's text, theory beside measurement."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outrider_lab.agreement import LENIENCES, Agreement
from outrider_lab.comparison import ComparisonRow
from outrider_lab.draft_quality import DraftQuality
from outrider_lab.figures.page import COLOURS, GREY, MARKERS, Table, WrittenFigure, pyplot, write
from outrider_lab.trace import Trace

_KINDS = {"target": COLOURS[0], "draft": COLOURS[5]}


def trace_diagram(out: Path, traces: dict[str, Trace], title: str, tokens: int = 20) -> WrittenFigure:
    """Figure 5: a row for each setting and a block for each forward pass, up to ``tokens`` tokens."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(10, 0.75 * len(traces) + 1.3))
    rows: list[Sequence[str | float]] = []
    ends = []
    for height, (name, trace) in enumerate(reversed(traces.items())):
        end = trace.tokens[min(tokens, len(trace.tokens) - 1)][0]
        ends.append(end)
        for kind, colour in _KINDS.items():
            blocks = [e for e in trace.events if e.kind == kind and e.end <= end]
            axes.broken_barh(
                [(1e3 * e.begin, 1e3 * (e.end - e.begin)) for e in blocks],
                (height - 0.28, 0.56),
                facecolor=colour,
                edgecolor="white",
                linewidth=0.6,
            )
            rows += [(name, kind, e.begin, e.end) for e in blocks]
        axes.annotate(
            f"{1e3 * end:.0f} ms", (1e3 * end, height), xytext=(6, 0), textcoords="offset points", va="center"
        )
    axes.set_yticks(range(len(traces)), list(reversed(traces)))
    axes.set(xlabel="milliseconds", xlim=(0, 1.08e3 * max(ends)), ylim=(-0.6, len(traces) - 0.4))
    axes.grid(axis="y", visible=False)
    axes.set_title(f"{tokens} tokens: {title}", pad=22)
    handles = [plt.Rectangle((0, 0), 1, 1, color=colour) for colour in _KINDS.values()]
    axes.legend(
        handles,
        ["run of the target", "run of the draft model"],
        loc="lower right",
        bbox_to_anchor=(1, 1.0),
        ncols=2,
        borderaxespad=0.2,
    )
    table = Table(("setting", "kind", "begin_s", "end_s"), rows)
    return write(out, "trace", f"when target and draft ran, {title} (figure 5)", table, figure)


def draft_quality_plot(out: Path, levels: Sequence[DraftQuality], steps: int) -> WrittenFigure:
    """Acceptance against both distances, with the theory's curves."""
    figure, panes = pyplot().subplots(1, 2, figsize=(9.6, 3.9), sharey=True)
    names = list(levels[0].accepted)
    distances = {
        "total variation D_LK(p, q)": [g.total_variation for g in levels],
        "KL(p ‖ q), nats": [g.kl for g in levels],
    }
    for pane, (label, distance) in zip(panes, distances.items(), strict=True):
        pane.plot(
            distance, [1 - g.total_variation for g in levels], color=GREY, linewidth=1.2, label="1 − D_LK (theory)"
        )
        pane.plot(
            distance, [g.coupled for g in levels], color=GREY, linewidth=1.2, linestyle=":", label="coupled (theory)"
        )
        for name, colour, marker in zip(names, COLOURS, MARKERS, strict=False):
            pane.plot(distance, [g.accepted[name] for g in levels], marker, color=colour, label=name)
        pane.set(xlabel=label, ylim=(0, 1.03), xlim=(0, None))
    panes[0].set_ylabel("share of drafts accepted")
    panes[0].set_title(f"Acceptance over {steps:,} steps a point")
    panes[1].legend(loc="upper right")
    table = Table(
        ("quality", "kl_nats", "total_variation", "one_minus_d_lk", "coupled", *names),
        [(g.quality, g.kl, g.total_variation, 1 - g.total_variation, g.coupled, *g.accepted.values()) for g in levels],
    )
    return write(out, "graded_drafts", "acceptance against KL and total variation", table, figure)


def agreement_table(out: Path, found: dict[float, dict[str, Agreement]], about: str) -> WrittenFigure:
    """Table 3: α by source and temperature."""
    rows: list[Sequence[str | int | float]] = [
        (source, temperature, total.mean(total.rejection), total.mean(total.coupled), total.positions)
        for temperature, sources in found.items()
        for source, total in sources.items()
    ]
    figure, axes = pyplot().subplots(figsize=(6.4, 3.6))
    sources = list(next(iter(found.values())))
    bars = [
        (f"T = {t:g}{suffix}", [getattr(found[t][s], kind) / max(1, found[t][s].positions) for s in sources])
        for t in found
        for kind, suffix in (
            (("rejection", ""),) if t == 0 else (("rejection", ", rejection"), ("coupled", ", matching"))
        )
    ]
    width = 0.8 / len(bars)
    for i, (label, heights) in enumerate(bars):
        at = [x + (i - (len(bars) - 1) / 2) * width for x in range(len(sources))]
        drawn = axes.bar(at, heights, width * 0.92, color=COLOURS[i], label=label)
        axes.bar_label(drawn, fmt="%.2f", fontsize=8, padding=1)
    axes.set_xticks(range(len(sources)), sources)
    axes.grid(axis="x", visible=False)
    axes.set(ylabel="α", ylim=(0, 1.05))
    axes.set_title("How often a draft token is accepted")
    axes.legend(loc="upper left")
    table = Table(("draft", "temperature", "alpha", "alpha_matching", "tokens"), rows)
    return write(out, "alpha_by_source", f"α by draft and temperature, {about} (table 3)", table, figure)


def lenience_table(out: Path, found: dict[str, Agreement], about: str) -> WrittenFigure:
    """Table 5: α by lenience, at the temperature of the texts."""
    rows: list[Sequence[str | float]] = [
        (source, *(total.mean(total.lenient[x]) for x in LENIENCES)) for source, total in found.items()
    ]
    table = Table(("draft", *(f"l={x:g}" for x in LENIENCES)), rows)
    return write(out, "lenience", f"α by lenience, {about} (table 5)", table)


def theory_and_measurement(out: Path, compared: Sequence[ComparisonRow], about: str) -> WrittenFigure:
    """Table 4, and a plot of it: points on the diagonal are exact predictions."""
    figure, axes = pyplot().subplots(figsize=(5.6, 5.0))
    most = 1.12 * max(max(c.expected, c.predicted, c.measured) for c in compared)
    least = 0.9 * min(min(c.expected, c.predicted, c.measured) for c in compared)
    axes.plot([least, most], [least, most], color=GREY, linewidth=1, linestyle=":")
    kinds = (("expected", "theorem 3.8 (scoring is free)", 1), ("predicted", "with this machine's costs", 0))
    for kind, label, number in kinds:
        values = [getattr(c, kind) for c in compared]
        axes.plot(
            values, [c.measured for c in compared], MARKERS[number], color=COLOURS[number], label=label, alpha=0.85
        )
    axes.set(xlabel="speedup expected", ylabel="speedup measured", xlim=(least, most), ylim=(least, most))
    axes.set_aspect("equal")
    axes.set_title("Theory and measurement")
    axes.legend(loc="upper left")
    rows = [(c.setting, c.temperature, c.k, c.alpha, c.tau, c.c, c.expected, c.predicted, c.measured) for c in compared]
    columns = ("setting", "temperature", "K", "alpha", "tau", "c", "theorem_3_8", "predicted", "measured")
    return write(
        out,
        "theory_and_measurement",
        f"speedups predicted and measured, {about} (table 4)",
        Table(columns, rows),
        figure,
    )
