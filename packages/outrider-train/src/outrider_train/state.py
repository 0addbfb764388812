"""The state of a training run on disk, so that a resumed run ends with the same weights.

    state/state.json                the run's identity, step and losses; names the tensor file
    state/step-N.safetensors        parameters and the optimiser's state of each, float32

The tensors of a new step are on disk before ``state.json`` names them, and the old ones are removed after that.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from outrider.errors import ConfigError, ModelFormatError
from outrider.weights.hub.convert_tokenizer import write_json
from outrider_torch.heads.checkpoint import write_tensors, write_whole
from outrider_train.data.portions import Portion

_UNSAID = {"optimizer": "adamw"}
"""Options that older runs do not record, with the values they used, so that they can be resumed."""


@dataclass
class Progress:
    """The progress of a run. ``history``: one entry per evaluation."""

    step: int = 0
    best_loss: float | None = None
    best_step: int = 0
    without_gain: int = 0  # evaluations since the best
    finished: bool = False
    seconds: float = 0.0
    tokens: int = 0
    fresh_answer_tokens: int = 0  # of answers, in windows seen for the first time
    repeated_answer_tokens: int = 0  # in later epochs
    before: int = 0  # steps of earlier portions
    portions: list[Portion] = field(default_factory=list)  # of a run that trains on each document once
    history: list[dict[str, Any]] = field(default_factory=list)

    def answer_tokens(self) -> dict[str, int]:
        """Counts of the answer tokens trained on so far, for reports."""
        return {
            "fresh_answer_tokens": self.fresh_answer_tokens,
            "repeated_answer_tokens": self.repeated_answer_tokens,
        }

    def next_portion(self, portions: Sequence[Portion]) -> Progress:
        """The progress at the beginning of the last of ``portions``, after the steps already taken."""
        return Progress(
            seconds=self.seconds,
            tokens=self.tokens,
            fresh_answer_tokens=self.fresh_answer_tokens,
            repeated_answer_tokens=self.repeated_answer_tokens,
            history=self.history,
            before=self.before + self.step,
            portions=list(portions),
        )


class TrainerState:
    """Saves and restores a run. ``run_config`` identifies it: a run resumes only with the same."""

    def __init__(self, folder: Path, run_config: Mapping[str, Any]) -> None:
        self.folder = folder / "state"
        self.run_config = json.loads(json.dumps(_UNSAID | dict(run_config)))

    def exists(self) -> bool:
        return (self.folder / "state.json").exists()

    def save(self, progress: Progress, module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Save a step. Raises ``CapacityError`` if the disk is full; the state saved before then stays."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {self.folder}: {error.strerror}") from None
        name = _name(progress)
        write_tensors(self.folder / name, _tensors(module, optimizer))
        self.note(progress, name)
        for old in self.folder.glob("step-*.safetensors"):
            if old.name != name:
                old.unlink()

    def note(self, progress: Progress, name: str) -> None:
        """Write ``state.json`` alone; the tensors in the file ``name`` stay as they are."""
        value = {"job": self.run_config, "progress": asdict(progress), "tensors": name}
        write_whole(self.folder / "state.json", lambda path: write_json(path, value))

    def finish(self, progress: Progress) -> None:
        """Mark the run as done. Its optimiser's state is no longer needed, unless another portion may come."""
        progress.finished = True
        if progress.portions:
            self.note(progress, _name(progress))
            return
        self.note(progress, "")
        for old in self.folder.glob("step-*.safetensors"):
            old.unlink()

    def load(self, module: nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
        """Restore in place. Raises ``ConfigError`` for another run's state, ``ModelFormatError`` for a damaged one."""
        path = self.folder / "state.json"
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            run_config, progress, name = _UNSAID | raw["job"], Progress(**raw["progress"]), raw["tensors"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise ModelFormatError(f"{path} cannot be read ({error}): start again in another folder") from None
        for key in sorted(self.run_config.keys() | run_config.keys()):
            old, new = run_config.get(key), self.run_config.get(key)
            if old != new:
                raise ConfigError(
                    f"{self.folder.parent} was begun with {key}={old!r}, not {new!r}: resume it as it was begun, or "
                    "train in another folder"
                )
        progress.portions = [(end, sha) for end, sha in progress.portions]
        if name:
            try:
                _restore(load_file(self.folder / name), module, optimizer)
            except (OSError, SafetensorError, KeyError, RuntimeError) as error:
                raise ModelFormatError(f"{self.folder / name} cannot be read ({error}): start again") from None
        return progress


def _name(progress: Progress) -> str:
    return f"step-{progress.before + progress.step}.safetensors"


def _tensors(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    tensors = {}
    for name, parameter in _trained(module).items():
        tensors[f"parameter/{name}"] = parameter.detach().to("cpu", copy=True)
        for key, value in optimizer.state.get(parameter, {}).items():
            tensors[f"{key}/{name}"] = value.detach().to("cpu", copy=True)
    return tensors


def _restore(tensors: Mapping[str, Tensor], module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    trained = _trained(module)
    states: dict[str, dict[str, Tensor]] = {name: {} for name in trained}
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(tensors[f"parameter/{name}"])
    for path, value in tensors.items():
        key, _, name = path.partition("/")
        if key != "parameter":  # counts of steps stay on the CPU, as torch keeps them
            states[name][key] = value.to("cpu" if key == "step" else trained[name].device, copy=True)
    for name, state in states.items():
        if state:
            optimizer.state[trained[name]] = state


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    return {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
