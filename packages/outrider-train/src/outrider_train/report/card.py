"""Files of a finished run beside the weights: measured acceptance, plots, a report, a model card."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outrider.weights.hub.convert_tokenizer import write_json
from outrider_torch.heads.checkpoint import write_whole
from outrider_torch.heads.vocabulary import ScoringHead
from outrider_train.metrics import Evaluation, JudgedRows, joined
from outrider_train.optimizers import describe
from outrider_train.report.breakdown import breakdown, table, warnings
from outrider_train.report.calibration import CalibrationReport, calibrate
from outrider_train.state import Progress
from outrider_train.trainer import Trainer

HOW = (
    "Measured on held-out documents, teacher-forced: each draft position is judged by the target's own distribution "
    "there, with the document's tokens before it. Where the documents are the target's own answers this is what "
    "decoding meets; elsewhere it is an estimate."
)


def write_report(trainer: Trainer, *, name: str, about: Mapping[str, Any]) -> Evaluation:
    """Measure the best draft of ``trainer``'s run, and write its report.

    ``name``: of the draft. ``about``: data, command and options that reproduce the run.
    """
    task, folder, progress = trainer.task, trainer.folder, trainer.progress
    about = {**about, "optimizer": describe(trainer.options.optimizer, trainer.options.lr)}
    task.restore(folder)
    judged: dict[int, list[JudgedRows]] = defaultdict(list)
    found = trainer.measure(lambda position, rows: judged[position].append(rows))
    positions = [joined(judged[i]) for i in sorted(judged)]
    fit = calibrate(positions) if isinstance(task.module, ScoringHead) else None
    buckets = breakdown(positions[0], trainer.held_out.store.documents)
    alarms = warnings(buckets)
    for alarm in alarms:
        trainer.log(f"warning: {alarm}")
    metrics = (
        found.as_dict()
        | _vocabulary(trainer)
        | _errors(fit)
        | {
            "best_step": progress.best_step,
            "steps": progress.before + progress.step,
            "tokens": progress.tokens,
            **progress.answer_tokens(),
            "seconds": round(progress.seconds, 1),
            "tokens_per_s": round(progress.tokens / max(1e-9, progress.seconds), 1),
        }
    )
    facts: dict[str, Any] = {"acceptance": found.by_rank, "training": {**about, "metrics": metrics}}
    task.save(folder, facts if fit is None else facts | {"calibration": fit.calibration})
    report = {
        "name": name,
        **about,
        "metrics": metrics,
        "how": HOW,
        "by_rank": found.by_rank,
        "buckets": buckets,
        "warnings": alarms,
        "history": progress.history,
    }
    write_whole(folder / "report.json", lambda path: write_json(path, report))
    pictures = plot(folder, progress, found)
    text = card(name, about, metrics, pictures, buckets)
    write_whole(folder / "README.md", lambda path: path.write_text(text, "utf-8"))
    return found


def _vocabulary(trainer: Trainer) -> dict[str, Any]:
    """The share of the held-out answers that the draft vocabulary covers."""
    ids, held_out = trainer.task.vocabulary, trainer.held_out
    if ids is None:
        return {}
    documents = [held_out.store.documents[i] for i in {w.document for w in held_out.windows}]
    tokens = torch.tensor([token for d in documents for token in d.ids[d.start :]])
    return {
        "draft_vocabulary": len(ids),
        "held_out_coverage": round(float(torch.isin(tokens, ids.cpu()).double().mean()), 4),
    }


def _errors(fit: CalibrationReport | None) -> dict[str, Any]:
    if fit is None:
        return {}
    return {"calibration_error": round(fit.before, 4), "calibration_error_after_calibration": round(fit.after, 4)}


def card(
    name: str, about: Mapping[str, Any], metrics: Mapping[str, Any], pictures: list[str], buckets: dict[str, Any]
) -> str:
    """The model card, Markdown. ``buckets``: the result of ``breakdown``."""
    lines = [f"# {name}", "", "A draft for speculative decoding with Outrider: it changes speed, never output.", ""]
    lines += ["## Acceptance", "", HOW, "", "| draft position | α (greedy) | α (temperature 1) |", "|---|---|---|"]
    pairs = zip(metrics["alpha_by_position"], metrics["alpha_sampled_by_position"], strict=True)
    lines += [f"| {i} | {a:.3f} | {b:.3f} |" for i, (a, b) in enumerate(pairs, 1)]
    lines += ["", f"A greedy chain of all positions: τ = {metrics['mean_acceptance_length']} tokens per target run,"]
    lines += [f"over {metrics['held_out_rows']:,} rows.", ""]
    lines += ["By context length, chat and category, the nearest guess:", "", *table(buckets), ""]
    lines += [f"**Warning**: {alarm}.\n" for alarm in warnings(buckets)]
    lines += ["## Training", ""]
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in about.items()]
    hidden = ("alpha_by_position", "alpha_sampled_by_position", "mean_acceptance_length", "held_out_rows")
    lines += [f"- {key.replace('_', ' ')}: {value}" for key, value in metrics.items() if key not in hidden]
    lines += ["", *(f"![{Path(picture).stem}]({picture})" for picture in pictures)]
    return "\n".join(lines) + "\n"


def plot(folder: Path, progress: Progress, found: Evaluation) -> list[str]:
    """Loss and acceptance over the run, and acceptance by rank, as PNG files; their names, [] without matplotlib."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return []
    steps = [entry["step"] for entry in progress.history]
    figure = Figure(figsize=(12, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    loss, alpha, ranks = figure.subplots(1, 3)
    loss.plot(steps, [entry["loss"] for entry in progress.history], marker="o")
    loss.set(title="held-out loss", xlabel="step")
    for i in range(len(found.alpha)):
        values = [entry["alpha_by_position"][i] for entry in progress.history]
        alpha.plot(steps, values, marker=".", label=f"position {i + 1}")
    alpha.set(title="held-out α by position", xlabel="step", ylim=(0, 1))
    alpha.legend(fontsize="small")
    for i, row in enumerate(found.by_rank, 1):
        ranks.plot(range(1, len(row) + 1), [sum(row[: n + 1]) for n in range(len(row))], label=f"position {i}")
    ranks.set(title="target's token among the best n guesses", xlabel="n", ylim=(0, 1))
    write_whole(folder / "training.png", lambda path: figure.savefig(path, format="png", dpi=110))
    return ["training.png"]
