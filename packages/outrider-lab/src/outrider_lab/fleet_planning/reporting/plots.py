"""Plots of simulated fleets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outrider_lab.figures.page import COLOURS, GREY, MARKERS, pyplot
from outrider_lab.fleet_planning.reporting.sizing import Promise, Sizing
from outrider_lab.fleet_planning.simulation.run import SimulatedRun

Series = Mapping[str, Sequence[tuple[float, float]]]
"""Points (x, y) by the name of the line."""


def draw(path: Path, run: SimulatedRun, sizing: Sizing | None, promise: Promise) -> None:
    """Plot one plan: latency by the number of replicas, or without ``sizing`` the distribution of latencies."""
    if sizing is None:
        _distribution(path, run)
    else:
        _sizing(path, sizing, promise)


def lines(
    path: Path, panels: Sequence[tuple[str, str, str, Series]], *, log: tuple[bool, bool] = (False, False)
) -> None:
    """Plot panels side by side: title, label of x, label of y, lines. ``log``: whether x and y are logarithmic."""
    figure, axes = pyplot().subplots(1, len(panels), figsize=(5.0 * len(panels) + 1.0, 3.9), squeeze=False)
    for pane, (title, x, y, series) in zip(axes[0], panels, strict=True):
        for (name, points), colour, marker in zip(series.items(), COLOURS * 2, MARKERS * 2, strict=False):
            pane.plot(*zip(*points, strict=True), color=colour, marker=marker, label=name)
        pane.set(xlabel=x, ylabel=y)
        pane.set_title(title)
        if log[0]:
            pane.set_xscale("log")
        if log[1]:
            pane.set_yscale("log")
        else:
            pane.set_ylim(0, 1.4 * max(y for points in series.values() for _, y in points))  # room for the legend
        pane.legend(loc="upper left", ncols=2, fontsize=9)
    figure.tight_layout()
    _save(path, figure)


def _sizing(path: Path, sizing: Sizing, promise: Promise) -> None:
    tried = sizing.tried
    figure, axes = pyplot().subplots()
    for name, colour, marker, title, limit in (
        ("latency_p99", COLOURS[0], "o", "whole answer", promise.latency),
        ("ttft_p99", COLOURS[1], "s", "first token", promise.ttft),
    ):
        axes.plot(list(tried), [getattr(each, name) for each in tried.values()], color=colour, marker=marker,
                  label=title)  # fmt: skip
        if limit is not None:
            axes.axhline(limit, color=colour, linestyle=":", linewidth=1.2)
            axes.annotate(f"target {limit:g} s", (max(tried), limit), ha="right", va="bottom", color=colour)
    axes.axvline(sizing.replicas, color=GREY, linestyle="--", linewidth=1.2)
    axes.set(xlabel="replicas", ylabel="99% of requests take at most (seconds)", yscale="log")
    axes.set_title(f"{sizing.replicas} replicas keep the target at {sizing.run.workload.rate:,.3g} requests/s")
    axes.legend(loc="best")
    _save(path, figure)


def _distribution(path: Path, run: SimulatedRun) -> None:
    figure, axes = pyplot().subplots()
    share = np.linspace(0, 100, len(run.arrived))
    for values, name, colour in (
        (run.first - run.arrived, "first token", COLOURS[1]),
        (run.finished - run.arrived, "whole answer", COLOURS[0]),
    ):
        axes.plot(np.sort(values), share, color=colour, label=name)
    axes.axhline(99, color=GREY, linestyle=":", linewidth=1.2)
    axes.set(xlabel="seconds after the request came", ylabel="requests (%)", xscale="log", ylim=(0, 101))
    axes.set_title(f"{len(run.counts)} replicas, {run.workload.rate:,.3g} requests/s, routing {run.fleet.routing}")
    axes.legend(loc="lower right")
    _save(path, figure)


def _save(path: Path, figure: Any) -> None:
    """Write the figure. Raises OSError, or ValueError for an unknown kind of file."""
    figure.savefig(path)
    pyplot().close(figure)
