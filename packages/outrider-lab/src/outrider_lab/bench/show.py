"""Shows the results of a benchmark as a table and as a plot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.errors import ConfigError


def report(result: dict[str, Any]) -> list[str]:
    """The lines of a report, from the object that ``outrider bench --json`` prints."""
    lines = []
    for at_once, results in result["results"].items():
        answered = next(iter(results.values()))["all"]["requests"]
        early = "" if answered == result["count"] else f", ended early: {answered} of {result['count']} prompts"
        title = f"{at_once} at once" if result["rate"] is None else f"{result['rate']:g} requests a second"
        lines += [title + early, *table(results), ""]
    return [*lines, machine(result)]


def machine(result: dict[str, Any]) -> str:
    """The line with model, machine and versions."""
    where = f"{result['date']}, {result['processor']}, {result['threads']} threads, {result['dtype']}"
    return f"{where}; {', '.join(result['versions'])}"


def table(results: dict[str, Any]) -> list[str]:
    """One line for each backend, then one for each backend's categories."""
    first = next(iter(results))
    wide = max(26, *map(len, results))
    lines = [
        f"{'':{wide}} {'tokens/s':>9} {'median (quartiles)':>22} {'times as fast as ' + first:>28} "
        f"{'same output':>12} {'α':>5} {'τ':>5} {'first token':>12} {'token gap p50/p99':>18}"
    ]
    for name, found in results.items():
        every = found["all"]
        high = every["speedup_high"]
        ratio = (
            f"{every['speedup']:.2f} ({every['speedup_low']:.2f} to {high:.2f})" if high else f"{every['speedup']:.2f}"
        )
        gaps = found.get("inter_token_s")
        lines.append(
            f"{name:{wide}} {every['tokens_per_s']:9.1f} {_quartiles(every):>22} {ratio:>28} "
            f"{every['identical']:>5} of {every['requests']:<3} {_number(every, 'draft_acceptance_rate'):>5} "
            f"{_number(every, 'mean_acceptance_length'):>5} "
            f"{'' if 'ttft_s' not in found else '{:.0f} ms'.format(1e3 * found['ttft_s']['p50']):>12} "
            f"{'' if not gaps else '{:.0f} / {:.0f} ms'.format(1e3 * gaps['p50'], 1e3 * gaps['p99']):>18}"
        )
    if len(results[first]["categories"]) > 1:
        lines += _by_category("times as fast, by category", results, "speedup", wide)
        lines += _by_category("regret of auto", results, "regret", wide)
        lines += _by_category("  its interval, from", results, "regret_low", wide)
        lines += _by_category("  to", results, "regret_high", wide)
        lines += _by_category("τ, by category", results, "mean_acceptance_length", wide)
        lines += _by_category("α, by category", results, "draft_acceptance_rate", wide)
    return lines


def _quartiles(found: dict[str, Any]) -> str:
    low, middle, high = found["tokens_per_s_quartiles"]
    return f"{middle:.1f} ({low:.1f} to {high:.1f})"


def _by_category(title: str, results: dict[str, Any], key: str, wide: int) -> list[str]:
    """A line for each backend that has the quantity ``key``."""
    rows = {name: found["categories"] for name, found in results.items() if key in found["all"]}
    kinds = list(next(iter(results.values()))["categories"])
    lines = [
        f"{name:{wide}} " + " ".join(f"{_number(row[kind], key):>14}" for kind in kinds) for name, row in rows.items()
    ]
    return ["", f"{title:{wide}} " + " ".join(f"{kind:>14}" for kind in kinds), *lines] if lines else []


def _number(found: dict[str, Any], key: str) -> str:
    return f"{found[key]:.2f}" if found.get(key) is not None else ""


def pyplot() -> Any:
    """matplotlib.pyplot with a backend that needs no screen. Raises ConfigError if it is not installed."""
    try:
        import matplotlib
    except ImportError:
        raise ConfigError("--plot needs matplotlib, which is not installed: pip install 'outrider[lab]'") from None
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    return plt


def plot(path: Path, sweeps: dict[int, dict[str, Any]], title: str) -> None:
    """Speedup of each backend with its interval, for each concurrency. Raises ConfigError without matplotlib."""
    plt = pyplot()
    names = list(next(iter(sweeps.values())))
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")  # Okabe and Ito (2008)
    figure, axes = plt.subplots(figsize=(7, 0.5 * len(names) * max(1, len(sweeps) * 0.7) + 1.4), dpi=150)
    height = 0.8 / len(sweeps)
    for i, (concurrency, results) in enumerate(sweeps.items()):
        means = [results[n]["all"]["speedup"] for n in names]
        low = [m - results[n]["all"]["speedup_low"] for m, n in zip(means, names, strict=True)]
        high = [(results[n]["all"]["speedup_high"] or m) - m for m, n in zip(means, names, strict=True)]
        at = [y + (i - (len(sweeps) - 1) / 2) * height for y in range(len(names))]
        axes.barh(at, means, height * 0.9, xerr=[low, high], color=colours[i % 7], ecolor="#444444", capsize=2,
                  label=f"{concurrency} at once")  # fmt: skip
    axes.axvline(1, color="#6b6b6b", linewidth=1, linestyle=":")
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel(f"times as fast as {names[0]} (95% interval)")
    axes.set_title(title, loc="left", fontsize=11)
    if len(sweeps) > 1:
        axes.legend(frameon=False, loc="best")
    figure.savefig(path, bbox_inches="tight")
    plt.close(figure)
