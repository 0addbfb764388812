"""Shows a suite's results as the papers do: a row for each method, a column for each category."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider_lab.bench.show import machine, pyplot
from outrider_lab.data.suites import SUITES

_KEYS = (("mean acceptance length τ", "mean_acceptance_length"), ("speedup", "speedup"))
_OVERALL = "Overall"


def report(result: dict[str, Any]) -> list[str]:
    """Tables from the object that ``outrider bench --suite NAME --json`` prints, one for each concurrency."""
    suite = SUITES[result["suite"]]
    lines = []
    for at_once, results in result["results"].items():
        answered = next(iter(results.values()))["all"]["requests"]
        early = "" if answered == result["count"] else f", ended early: {answered} of {result['count']} questions"
        lines += [
            f"{suite.title}, {result['count']} questions, T={result['temperature']:g}, at most {result['max_tokens']} "
            f"tokens an answer, {at_once} at once{early}",
            "",
            *table(results, result["suite"]),
            *_identical(results),
            "",
        ]
    return [*lines, machine(result)]


def table(results: dict[str, Any], name: str) -> list[str]:
    """A table of τ, then one of the speedup: each method in each category."""
    first = next(iter(results))
    columns = _columns(results, name)
    wide = max(26, *map(len, results))
    lines = []
    for title, key in _KEYS:
        label = f"{title} (over {first})" if key == "speedup" else title
        lines.append(f"{label:{wide}} " + " ".join(f"{heading:>9}" for heading in (*columns.values(), _OVERALL)))
        for method, found in results.items():
            cells = [found["categories"][category] for category in columns] + [found["all"]]
            lines.append(f"{method:{wide}} " + " ".join(f"{_cell(cell, key):>9}" for cell in cells))
        lines.append("")
    return lines


def plot(path: Path, results: dict[str, Any], name: str, title: str) -> None:
    """Write τ and speedup as groups of bars, one group for each category. Raises ConfigError without matplotlib."""
    plt = pyplot()
    columns = _columns(results, name)
    headings = [*columns.values(), _OVERALL]
    methods = list(results)
    colours = ("#6b6b6b", "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
    figure, axes = plt.subplots(2, 1, figsize=(max(6.0, 0.95 * len(headings)), 5.4), dpi=150, sharex=True)
    wide = 0.8 / len(methods)
    for (label, key), ax in zip(_KEYS, axes, strict=True):
        for number, method in enumerate(methods):
            found = results[method]
            cells = [found["categories"][category] for category in columns] + [found["all"]]
            at = [x + (number - (len(methods) - 1) / 2) * wide for x in range(len(headings))]
            values = [cell.get(key, 0.0) for cell in cells]
            ax.bar(at, values, wide * 0.92, color=colours[number % len(colours)], label=method)
        ax.axhline(1, color="#6b6b6b", linewidth=1, linestyle=":")
        ax.set_ylabel(label)
        ax.spines[["top", "right"]].set_visible(False)
    axes[1].set_xticks(range(len(headings)), headings)
    axes[0].set_title(title, loc="left", fontsize=11)
    axes[0].legend(frameon=False, fontsize=9, ncols=min(4, len(methods)), loc="lower left", bbox_to_anchor=(0, 1.08))
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)


def _columns(results: dict[str, Any], name: str) -> dict[str, str]:
    """Headings by category, for the categories with answers, in the papers' order."""
    there = next(iter(results.values()))["categories"]
    return {category: heading for category, heading in SUITES[name].headings.items() if category in there}


def _cell(found: dict[str, Any], key: str) -> str:
    if key not in found:
        return "-"
    return f"{found[key]:.2f}" + ("x" if key == "speedup" else "")


def _identical(results: dict[str, Any]) -> Sequence[str]:
    """A line for each method with answers that differ from the first's, or one line if none differ."""
    first, *others = results
    differing = [name for name in others if results[name]["all"]["identical"] < results[name]["all"]["requests"]]
    if not others:
        return []
    if not differing:
        return [f"All answers are those of {first}, token by token."]
    return [
        f"{name}: {found['identical']} of {found['requests']} answers are those of {first}, token by token."
        for name in differing
        for found in [results[name]["all"]]
    ]
