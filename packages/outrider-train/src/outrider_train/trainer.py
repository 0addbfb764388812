"""The loop: batches in an order that the seed fixes, an optimiser, warm-up and cosine, evaluation, checkpoints."""

from __future__ import annotations

import bisect
import contextlib
import itertools
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from outrider.errors import ConfigError, NumericalError
from outrider.utils.progress import duration
from outrider_torch.kernels.torch_processor import has_bf16_instructions
from outrider_train.batches import Batch, Batcher
from outrider_train.data.portions import Portion
from outrider_train.metrics import Evaluation, Observer, batch_loss, evaluate
from outrider_train.optimizers import OPTIMIZERS, make_optimizer
from outrider_train.state import Progress, TrainerState
from outrider_train.tasks import LogFn, Task


@dataclass(frozen=True)
class TrainOptions:
    """Options of the training loop. The model card lists them, and a run resumes only with the same."""

    epochs: float = 4.0
    batch_tokens: int = 8192  # padded rows of a step
    lr: float = 1e-3  # AdamW's highest; Muon's is MUON_LR times this
    warmup: float = 0.05  # share of all steps
    weight_decay: float = 0.01
    clip: float = 1.0
    seed: int = 0
    evaluations: int = 10  # over the whole run
    patience: int = 3  # evaluations without gain before stopping
    optimizer: str = "adamw"  # one of OPTIMIZERS

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_tokens", "lr", "clip", "evaluations", "patience"):
            value = getattr(self, name)
            if not 0 < value < 1e9:
                raise ConfigError(f"{name}={value} must be above 0")
        if not 0 <= self.warmup < 1 or self.weight_decay < 0:
            raise ConfigError(
                f"warmup={self.warmup}, weight_decay={self.weight_decay}: use 0 to below 1, and at least 0"
            )
        if not 0 <= self.seed < 2**31:
            raise ConfigError(f"seed={self.seed} must be between 0 and {2**31 - 1}")
        if self.optimizer not in OPTIMIZERS:
            raise ConfigError(f"optimizer={self.optimizer!r} is unknown: use {' or '.join(OPTIMIZERS)}")


class Trainer:
    """One run. ``folder`` gets the best draft so far, and below it the state to resume from."""

    def __init__(
        self,
        task: Task,
        train: Batcher,
        held_out: Batcher,
        options: TrainOptions,
        folder: Path,
        *,
        run_config: Mapping[str, Any],
        resume: bool = False,
        checkpoint_seconds: float = 60.0,
        log: LogFn = lambda line: None,
        on_step: Callable[[int], None] = lambda step: None,
        portions: Sequence[Portion] = (),
    ) -> None:
        """``run_config`` identifies the run, with ``options``. ``on_step`` is called after each step.

        ``portions``: of a one-pass run. Steps, learning rate and best draft are those of the
        last portion; weights and the optimiser's state continue.
        """
        self.task, self.train, self.held_out, self.options, self.folder = task, train, held_out, options, folder
        self.log, self.on_step, self._every = log, on_step, checkpoint_seconds
        self.stop = False
        """Set to True to end the run after the current step; it can be resumed."""
        self.state = TrainerState(folder, {**asdict(options), **run_config})
        whole = math.floor(options.epochs)
        self.ends = list(itertools.accumulate(len(train.plan(epoch)) for epoch in range(whole)))
        """The step at each epoch's end: epochs differ by a few steps, as batches are formed anew."""
        begun = (options.epochs - whole) * len(train.plan(whole)) if options.epochs > whole else 0.0
        self.steps = max(1, (self.ends[-1] if self.ends else 0) + round(begun))
        self._parameters = [p for p in task.module.parameters() if p.requires_grad]
        self.optimizer = make_optimizer(
            options.optimizer,
            task.module,
            lr=options.lr,
            weight_decay=options.weight_decay,
            precision=precision(train.store.device),
        )
        self.progress = Progress(portions=list(portions))
        if resume and self.state.exists():
            self.progress = self.state.load(task.module, self.optimizer)
            if self.progress.finished and len(portions) > len(self.progress.portions):
                self.progress = self.progress.next_portion(portions)
                self.log(f"going on with portion {len(portions)}, of {portions[-1][0] - portions[-2][0]} new documents")
            elif self.progress.finished and portions:
                self.log(f"all {portions[-1][0]} documents have been trained on: write more answers to go on")
            else:
                self.log(f"resuming at step {self.progress.step} of {self.steps}")
        elif self.state.exists() or (folder / "model.safetensors").exists():
            raise ConfigError(
                f"{folder} holds a trained draft already: add --resume to go on, or choose another folder"
            )

    def run(self) -> Progress:
        """Train until the end, until held-out loss stops falling, or until ``stop``. The best draft is in ``folder``.

        Raises:
            NumericalError: the loss is not a number; the best draft and the last good state stay on disk.
            CapacityError: the disk is full.
        """
        self.task.module.train()
        if not self.progress.step and self.progress.best_loss is None:
            self._evaluate()  # the untrained draft's acceptance, and a state to restore
        clock = last_save = time.monotonic()
        batches: Any = iter(())
        epoch = -1
        while not self.progress.finished and self.progress.step < self.steps and not self._stalled():
            now = bisect.bisect_right(self.ends, self.progress.step)
            if now != epoch:
                within = self.progress.step - (self.ends[now - 1] if now else 0)
                epoch, batches = now, self.train.epoch(now, skip=within)
            self._step(next(batches))
            self.progress.seconds += time.monotonic() - clock
            clock = time.monotonic()
            if self.progress.step in self._marks():
                self._evaluate()
                clock = last_save = time.monotonic()
            elif clock - last_save > self._every:
                self.state.save(self.progress, self.task.module, self.optimizer)
                clock = last_save = time.monotonic()
            self.on_step(self.progress.step)
            if self.stop and self.progress.step < self.steps:
                self.state.save(self.progress, self.task.module, self.optimizer)
                return self.progress
        if not self.progress.finished:
            self.state.finish(self.progress)
        return self.progress

    def _marks(self) -> set[int]:
        """Steps after which to evaluate."""
        count = min(self.options.evaluations, self.steps)
        return {round(self.steps * (i + 1) / count) for i in range(count)}

    def _stalled(self) -> bool:
        """Whether training has stopped improving; never in a one-pass run."""
        return not self.progress.portions and self.progress.without_gain >= self.options.patience

    def rate(self, step: int) -> float:
        """AdamW's learning rate at a step: linear warm-up, then a cosine to a twentieth."""
        warm = max(1, round(self.options.warmup * self.steps))
        if step < warm:
            return self.options.lr * (step + 1) / warm
        done = (step - warm) / max(1, self.steps - warm)
        return self.options.lr * (0.05 + 0.95 * (1 + math.cos(math.pi * done)) / 2)

    def _step(self, batch: Batch) -> None:
        step = self.progress.step
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(step) * group["lr_factor"]
        self.optimizer.zero_grad(set_to_none=True)
        with self._low_precision():
            loss, hits = batch_loss(self.task, batch, self.progress.before + step)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self.options.clip)
        if not (math.isfinite(float(loss.detach())) and math.isfinite(float(norm))):
            raise NumericalError(
                f"step {step}: loss {float(loss.detach())}, gradient norm {float(norm)}: stopped before using it. "
                f"{self._kept()} Train with a smaller --lr than {self.options.lr:g}"
            )
        self.optimizer.step()
        self.progress.step += 1
        self.progress.tokens += int(batch.attention_mask.sum())
        self._count_answers(batch.answer_tokens)
        self._tell(step, float(loss.detach()), hits)

    def _kept(self) -> str:
        if self.progress.best_loss is None:
            return "Nothing was saved yet."
        return f"The best draft, of step {self.progress.best_step}, is in {self.folder}."

    def _tell(self, step: int, loss: float, hits: list[tuple[int, int]]) -> None:
        alpha = " ".join(f"{hit / max(1, rows):.2f}" for hit, rows in hits)
        rate = ""
        if step:  # the first step's time is not counted
            left = self.progress.seconds / step * (self.steps - step - 1)
            rate = f"  {self.progress.tokens / max(1e-9, self.progress.seconds):,.0f} tokens/s  {duration(left)} left"
        self.log(f"step {step + 1}/{self.steps}  loss {loss:.3f}  α {alpha}{rate}")

    def _count_answers(self, count: int) -> None:
        """Count the answer tokens of the last step, as repeated after the first epoch."""
        if not self.ends or self.progress.step <= self.ends[0]:
            self.progress.fresh_answer_tokens += count
        else:
            self.progress.repeated_answer_tokens += count

    def measure(self, observe: Observer | None = None) -> Evaluation:
        """Evaluate the current draft on the held-out documents; ``observe`` as in ``evaluate``."""
        with self._low_precision():
            return evaluate(self.task, self.held_out, observe)

    def _low_precision(self) -> contextlib.AbstractContextManager[Any]:
        return low_precision(self.train.store.device)

    def _evaluate(self) -> None:
        """Measure on held-out documents; keep the draft if it is the best; save the state."""
        found, p = self.measure(), self.progress
        step = p.before + p.step
        p.history.append({"step": step, **p.answer_tokens(), **found.as_dict()})
        if p.best_loss is None or found.loss < p.best_loss:
            p.best_loss, p.best_step, p.without_gain = found.loss, step, 0
            self.task.save(self.folder, {"acceptance": found.by_rank, "training": {"step": step}})
        else:
            p.without_gain += 1
        self.state.save(p, self.task.module, self.optimizer)
        self.log(f"held out after {p.step}: {_line(found)}")


def _line(found: Evaluation) -> str:
    alpha = " ".join(f"{a:.3f}" for a in found.alpha)
    return f"loss {found.loss:.4f}  α {alpha}  τ {found.tau:.2f}"


def precision(device: torch.device) -> torch.dtype:
    """The dtype of matrix products: bfloat16 where the processor supports it, else float32."""
    return torch.bfloat16 if device.type == "cuda" or has_bf16_instructions() else torch.float32


def low_precision(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Matrix products in ``precision`` of the device."""
    if precision(device) == torch.bfloat16:
        return torch.autocast(device.type, dtype=torch.bfloat16)
    return contextlib.nullcontext()
