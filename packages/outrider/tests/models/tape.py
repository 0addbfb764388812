"""Capture without a device: a tape of operations that is played again on the same memory, as a CUDA graph would be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from outrider.models.batch import ForwardOutput


class _Recorder(TorchDispatchMode):
    def __init__(self, tape: Tape) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._tape = tape

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        self._tape.operations.append((func, args, kwargs or {}, out))
        return out


@dataclass
class Tape:
    """Whatever was worked out in Python while it was recorded is frozen: shapes, numbers, branches."""

    operations: list[tuple[Any, Sequence[Any], Mapping[str, Any], Any]] = field(default_factory=list)
    replays: int = 0

    @torch.inference_mode()
    def replay(self) -> None:
        self.replays += 1
        for func, args, kwargs, out in self.operations:
            again = func(*args, **kwargs)
            for old, new in zip(_tensors(out), _tensors(again), strict=True):
                assert old.shape == new.shape
                if old.data_ptr() != new.data_ptr():  # else a view, or an argument changed in place
                    old.copy_(new)


def _tensors(out: Any) -> list[Tensor]:
    return [t for t in (out if isinstance(out, tuple | list) else (out,)) if isinstance(t, Tensor)]


@dataclass
class TapeCapture:
    tapes: list[Tape] = field(default_factory=list)

    def __call__(self, run: Callable[[], ForwardOutput]) -> tuple[Tape, ForwardOutput]:
        tape = Tape()
        with _Recorder(tape):
            output = run()
        self.tapes.append(tape)
        return tape, output
