"""Options that the training commands share, and their meaning. Defaults come from ``outrider_train``."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outrider.cli.shared import options as o
from outrider.errors import ConfigError
from outrider.utils.interrupt import CtrlC

if TYPE_CHECKING:
    from outrider_train.setup import TrainingSetup
    from outrider_train.trainer import Trainer, TrainOptions

DEFAULT_MODEL = o.DEFAULT_MODEL

Target = Annotated[str, typer.Option("--target", "--model", "-m", help="The model that drafts are for.")]
Data = Annotated[
    list[Path],
    typer.Option(
        help="JSONL of prompts, chats, texts or token ids, or a folder of `outrider train answers`. May be repeated."
    ),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="Folder for the draft and the state to resume from.")]
Regenerate = Annotated[bool, typer.Option("--regenerate", help="The target answers the prompts first.")]
AnswerTokens = Annotated[int, typer.Option(help="Longest answer, with --regenerate.")]
AnswerTemperature = Annotated[
    float, typer.Option(help="Temperature of a third of the answers; the others are greedy.", hidden=True)
]
OnePass = Annotated[
    bool,
    typer.Option("--one-pass", help="Each document once; with --resume, those that came since."),
]
Epochs = Annotated[float, typer.Option(help="Passes over the data.")]
BatchTokens = Annotated[
    int | None, typer.Option(help="Padded tokens of a step.", show_default="as suits what is trained", hidden=True)
]
Lr = Annotated[float | None, typer.Option(help="Highest learning rate.", show_default="as suits what is trained")]
Optimizer = Annotated[
    str, typer.Option(help="adamw, or muon, which updates matrices of hidden layers at 10 times --lr.")
]
MaxLength = Annotated[int, typer.Option(help="Tokens of a document that are read.")]
HeldOut = Annotated[float, typer.Option(help="Share of documents held out for validation.", hidden=True)]
Patience = Annotated[int, typer.Option(help="Evaluations (10 a run) without gain before stopping.", hidden=True)]
TopK = Annotated[int, typer.Option(help="Most likely tokens of the target kept as labels.", hidden=True)]
FeatureCache = Annotated[
    str, typer.Option(help="Disk space for the target's features, such as 2GB; 0: none.", hidden=True)
]
Seed = Annotated[int, typer.Option(help="Of the split, the order of the data and the first weights.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on where a killed run was; the weights come out the same.")]

_UNITS = {"KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12, "": 1.0}


def parse_size(text: str) -> int:
    """``2GB`` as bytes."""
    number = text.strip().upper().rstrip("KMGTB")
    unit = text.strip().upper()[len(number) :]
    try:
        size = float(number) * _UNITS[unit if unit in _UNITS else unit + "B"]
    except (ValueError, KeyError):
        raise ConfigError(f"feature-cache={text!r} is no size: give bytes, or a number with KB, MB or GB") from None
    if not 0 <= size < 1e18:
        raise ConfigError(f"feature-cache={text!r} is no size: give bytes, or a number with KB, MB or GB")
    return int(size)


def log(line: str) -> None:
    """Write a line of progress to stderr; on a terminal, a step's line replaces the one before."""
    if not sys.stderr.isatty():
        print(line, file=sys.stderr, flush=True)
        return
    print(f"\r\x1b[K{line}", end="" if line.startswith("step ") else "\n", file=sys.stderr, flush=True)


@dataclass
class Shared:
    """The options of every training command."""

    setup: TrainingSetup
    train: TrainOptions
    out: Path
    resume: bool

    def trainer_options(self) -> dict[str, Any]:
        """For ``Trainer``."""
        return {"resume": self.resume, "log": log, "portions": self.setup.portions}


def _shared(
    target: Target = DEFAULT_MODEL,
    *,
    data: Data,
    out: Out,
    regenerate: Regenerate = False,
    answer_tokens: AnswerTokens = 192,
    answer_temperature: AnswerTemperature = 0.7,
    epochs: Epochs = 4.0,
    one_pass: OnePass = False,
    batch_tokens: BatchTokens = None,
    lr: Lr = None,
    optimizer: Optimizer = "adamw",
    max_length: MaxLength = 1024,
    held_out: HeldOut = 0.05,
    patience: Patience = 3,
    top_k: TopK = 32,
    feature_cache: FeatureCache = "2GB",
    seed: Seed = 0,
    resume: Resume = False,
    device: o.Device = o.ENGINE.device,
) -> None:
    """The options themselves; ``with_shared`` reads them off this signature."""


def with_shared(default_lr: float, default_batch: int = 8192) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options of ``_shared``; its first parameter, ``shared``, is the ``Shared`` they make."""

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        common = list(inspect.signature(_shared, eval_str=True).parameters.values())
        names = {parameter.name for parameter in common}

        @functools.wraps(command)
        def run_command(**given: Any) -> None:
            shared = _make(default_lr, default_batch, **{key: value for key, value in given.items() if key in names})
            command(shared=shared, **{key: value for key, value in given.items() if key not in names})

        parameters = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in [*common, *own]]
        run_command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run_command.__annotations__ = {p.name: p.annotation for p in parameters}
        return run_command

    return decorate


def _make(
    default_lr: float,
    default_batch: int,
    *,
    target: str,
    data: list[Path],
    out: Path,
    regenerate: bool,
    answer_tokens: int,
    answer_temperature: float,
    batch_tokens: int | None,
    epochs: float,
    one_pass: bool,
    lr: float | None,
    max_length: int,
    held_out: float,
    top_k: int,
    feature_cache: str,
    seed: int,
    resume: bool,
    device: str,
    **train: Any,
) -> Shared:
    from outrider.utils.working import working
    from outrider_train.answers.run import regenerate_answers
    from outrider_train.setup import DataOptions, TrainingSetup
    from outrider_train.trainer import TrainOptions

    options = TrainOptions(
        batch_tokens=default_batch if batch_tokens is None else batch_tokens,
        lr=default_lr if lr is None else lr,
        epochs=1.0 if one_pass else epochs,
        seed=seed,
        **train,
    )
    size, paths = parse_size(feature_cache), tuple(data)
    if regenerate:
        answers = out / "answers"
        with working("answers") as tell:
            regenerate_answers(
                target,
                paths,
                answers,
                max_tokens=answer_tokens,
                temperature=answer_temperature,
                seed=seed,
                engine={"device": device},
                tell=tell,
            )
        paths = (answers,)
    cache = out / "features" if size else None
    documents = DataOptions(paths, max_length=max_length, held_out=held_out, top_k=top_k, cache=cache, cache_bytes=size)
    setup = TrainingSetup(target, documents, seed, log=log, one_pass_in=out if one_pass else None, device=device)
    return Shared(setup, options, out, resume)


def run(trainer: Trainer, name: str, setup: TrainingSetup) -> None:
    """Train, measure, and report. Ctrl-C ends the training after its step; the best draft so far is measured.

    Raises:
        typer.Exit: with 130, after Ctrl-C.
    """
    from outrider_train.report.card import write_report

    def end_soon() -> None:
        trainer.stop = True
        log("stopping after this step, with a report of the best draft; Ctrl-C once more ends at once")

    with CtrlC(end_soon):
        progress = trainer.run()
    stopped = trainer.stop and not progress.finished
    if stopped:
        best = f"the best draft so far is of step {progress.best_step}"
        log(f"stopped after step {progress.step} of {trainer.steps}: {best}; --resume goes on")
    found = write_report(trainer, name=name, about=about(setup))
    alpha = " ".join(f"{a:.3f}" for a in found.alpha)
    typer.echo(f"{trainer.folder}: α by position {alpha}, τ {found.tau:.2f} on {found.rows:,} held-out rows")
    if stopped:
        raise typer.Exit(130)


def about(setup: TrainingSetup) -> dict[str, Any]:
    """Data, command and seed, for the model card."""
    command = " ".join([Path(sys.argv[0]).name, *sys.argv[1:]]) if sys.argv else ""
    train, held_out = setup.split_indices
    return {
        "target": setup.fingerprint.facts(),
        "data": ", ".join(os.path.basename(path) for path in setup.data.paths),
        "documents": f"{len(train)} to train on, {len(held_out)} held out",
        "command": command,
        "seed": setup.seed,
    }
