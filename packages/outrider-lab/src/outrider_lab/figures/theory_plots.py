"""Figures of the equations, which need no model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from outrider_lab import theory
from outrider_lab.figures.page import COLOURS, GREY, MARKERS, Table, WrittenFigure, pyplot, write

ALPHAS = np.linspace(0, 1, 201)
TABLE_1 = ((0.6, 2), (0.7, 3), (0.8, 2), (0.8, 5), (0.9, 2), (0.9, 10))


def all_of_them(out: Path) -> list[WrittenFigure]:
    """Every figure of theory, written into ``out``."""
    return [make(out) for make in (expected_tokens, best_k, speed_and_operations, by_k, tokens_per_run, table_1)]


def expected_tokens(out: Path) -> WrittenFigure:
    """Figure 2 of Leviathan et al. (2023)."""
    ks = (1, 3, 5, 7, 10)
    curves = {k: theory.expected_tokens(ALPHAS, k) for k in ks}
    figure, axes = pyplot().subplots()
    for k, colour in zip(ks, COLOURS, strict=False):
        axes.plot(ALPHAS, curves[k], color=colour)
        axes.annotate(f"K = {k}", (1, k + 1), xytext=(5, 0), textcoords="offset points", va="center", color=colour)
    bounded = ALPHAS[ALPHAS < 0.908]
    axes.plot(bounded, theory.oracle_tokens(bounded), color=GREY, linestyle=":")
    axes.annotate("oracle, 1/(1 − α)", (0.9, 10), xytext=(-6, 0), textcoords="offset points", ha="right", color=GREY)
    axes.set(xlabel="acceptance rate α", ylabel="tokens per target run", xlim=(0, 1), ylim=(0.8, 11.4))
    axes.set_title("Expected tokens per run of the target")
    table = Table(("alpha", *(f"K={k}" for k in ks)), _columns(ALPHAS, *curves.values()))
    return write(out, "expected_tokens", "tokens per target run against α (figure 2 of the 2023 paper)", table, figure)


def best_k(out: Path) -> WrittenFigure:
    """Figure 3."""
    cs = (0.01, 0.02, 0.05, 0.1, 0.2)
    alphas = np.linspace(0.3, 0.97, 269)
    curves = {c: theory.best_k(alphas, c, limit=200) for c in cs}
    figure, axes = pyplot().subplots()
    for c, colour in zip(cs, COLOURS, strict=False):
        axes.step(alphas, curves[c], color=colour, where="mid", label=f"c = {c:g}")
    axes.set(xlabel="acceptance rate α", ylabel="best K", xlim=(0.3, 0.97), ylim=(0, 40))
    axes.set_title("How many tokens to draft, by the draft's cost c")
    axes.legend(loc="upper left")
    table = Table(("alpha", *(f"c={c:g}" for c in cs)), _columns(alphas, *curves.values()))
    return write(out, "best_k", "best K against α for several c (figure 3)", table, figure)


def speed_and_operations(out: Path) -> WrittenFigure:
    """Figure 4, with c = ĉ = 0."""
    ks = (3, 5, 7, 10)
    speed = {k: theory.improvement(ALPHAS, k) for k in ks}
    work = {k: theory.operations(ALPHAS, k) for k in ks}
    figure, panes = pyplot().subplots(1, 2, figsize=(9.2, 3.8))
    for pane, curves, title in zip(panes, (speed, work), ("Speed", "Arithmetic operations"), strict=True):
        for k, colour in zip(ks, COLOURS, strict=False):
            pane.plot(ALPHAS, curves[k], color=colour, label=f"K = {k}")
        pane.set(xlabel="acceptance rate α", ylabel="times plain decoding", xlim=(0, 1))
        pane.set_title(title)
        pane.legend(loc="best")
        pane.set_ylim(bottom=0)
    table = Table(
        ("alpha", *(f"speed K={k}" for k in ks), *(f"operations K={k}" for k in ks)),
        _columns(ALPHAS, *speed.values(), *work.values()),
    )
    return write(out, "speed_and_operations", "speed and operations against α (figure 4)", table, figure)


def by_k(out: Path) -> WrittenFigure:
    """Theorems 3.8 and 3.11 against K, with a draft of a tenth of the target's cost."""
    alphas, ks, c = (0.5, 0.7, 0.8, 0.9), np.arange(0, 21), 0.1
    speed = {a: theory.improvement(a, ks, c) for a in alphas}
    work = {a: theory.operations(a, ks, c) for a in alphas}
    figure, panes = pyplot().subplots(1, 2, figsize=(9.2, 3.8))
    for pane, curves, title in zip(panes, (speed, work), ("Speed", "Arithmetic operations"), strict=True):
        for alpha, colour, marker in zip(alphas, COLOURS, MARKERS, strict=False):
            pane.plot(ks, curves[alpha], color=colour, marker=marker, markevery=4, label=f"α = {alpha:g}")
        pane.axhline(1, color=GREY, linewidth=1, linestyle=":")
        pane.set(xlabel="draft tokens per step K", ylabel="times plain decoding", xlim=(0, 20))
        pane.set_xticks(range(0, 21, 4))
        pane.set_title(f"{title}, c = ĉ = {c:g}")
        pane.set_ylim(bottom=0)
    panes[1].legend(loc="upper left")
    table = Table(
        ("K", *(f"speed alpha={a:g}" for a in alphas), *(f"operations alpha={a:g}" for a in alphas)),
        _columns(ks, *speed.values(), *work.values()),
    )
    return write(out, "speed_by_k", "speed and operations against K (theorems 3.8 and 3.11)", table, figure)


def tokens_per_run(out: Path) -> WrittenFigure:
    """Tokens per target run, which grow with K without bound, and speed, which has an optimum if drafts cost time."""
    alphas, ks, cs = (0.5, 0.7, 0.85), np.arange(0, 21), (0.02, 0.1)
    figure, panes = pyplot().subplots(1, 3, figsize=(11, 3.7), sharey=True)
    columns: dict[str, Any] = {f"tokens alpha={a:g}": theory.expected_tokens(a, ks) for a in alphas}
    for pane, c in zip(panes, (0.0, *cs), strict=True):
        for alpha, colour, marker in zip(alphas, COLOURS, MARKERS, strict=False):
            curve = theory.improvement(alpha, ks, c)
            pane.plot(ks, curve, color=colour, label=f"α = {alpha:g}")
            if c > 0:
                best = int(theory.best_k(alpha, c))
                pane.plot(best, curve[best], marker, color=colour, markersize=7)
                below = alpha == alphas[0]  # the lowest curve has room below it, the others to their upper right
                pane.annotate(
                    f"K = {best}", (best, curve[best]), xytext=(0, -15) if below else (3, 6), textcoords="offset points"
                )
                columns[f"speed alpha={alpha:g} c={c:g}"] = curve
        pane.set(xlabel="draft tokens per step K", xlim=(0, 20), ylim=(0.5, 6.9))
        pane.set_xticks(range(0, 21, 4))
        pane.set_title("Tokens per target run" if c == 0 else f"Speed, draft cost c = {c:g}")
    panes[0].set_ylabel("tokens per run, or times plain decoding")
    panes[0].legend(loc="upper left")
    table = Table(("K", *columns), _columns(ks, *columns.values()))
    return write(
        out, "tokens_per_run_by_k", "tokens per target run against K, and the best K where drafts cost", table, figure
    )


def table_1(out: Path) -> WrittenFigure:
    """Table 1: operations and speed at c = ĉ = 0."""
    rows = [
        (alpha, k, round(float(theory.operations(alpha, k)), 2), round(float(theory.improvement(alpha, k)), 2))
        for alpha, k in TABLE_1
    ]
    return write(out, "table_1", "table 1 of the 2023 paper", Table(("alpha", "K", "operations", "speed"), rows))


def _columns(*columns: Any) -> list[list[float]]:
    """The rows of some columns, as plain numbers."""
    return [[value.item() for value in row] for row in zip(*columns, strict=True)]
