"""What a small model is worth: a line for people at a terminal, once for each model."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.cli.shared.screen import stderr
from outrider.models.config import ModelConfig
from outrider.models.layer_kinds import num_weights
from outrider.utils.user_cache import state_root

if TYPE_CHECKING:
    from outrider.llm import LLM

__all__ = ["SMALL", "first_words", "say_first_words"]

SMALL = 1_000_000_000
"""Parameters below which answers are often wrong."""


def say_first_words(llm: LLM, model: str, note: Callable[[str], None] | None = None, *, keep: bool = True) -> None:
    """Write the line with ``note`` (None: dim, to stderr), unless no terminal reads it or it was written before.

    ``keep``: note in the user's folder for state that it has been written.
    """
    console = stderr()
    words = first_words(llm, model) if console.is_terminal and not _is_said(model) else None
    if words is None:
        return
    if note is None:
        console.print(words, style="dim")
    else:
        note(words)
    if keep:
        _keep(model)


def first_words(llm: LLM, model: str) -> str | None:
    """The quality of a small model, and a larger one that fits this machine; None for a model of ``SMALL`` or more."""
    config = llm.model.config
    count = num_weights(config) if isinstance(config, ModelConfig) else SMALL
    if count >= SMALL:
        return None
    from outrider.cli.suggest import larger_model

    size = f"{math.ceil(count / 1e6)} million" if count >= 1e6 else "less than a million"  # norms are not counted
    better = larger_model()
    room = "" if better is None else f"This machine has room for {better.name} ({better.file_bytes() / 1e9:.1f} GB). "
    return (
        f"{Path(model).name} has {size} parameters: a toy to try the engine with, whose answers are often wrong. "
        f"{room}Bring a better one: outrider chat -m ./my-model.gguf (outrider models suggest lists some)"
    )


def _file() -> Path:
    return state_root() / "small-models"


def _is_said(model: str) -> bool:
    try:
        return model in _file().read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return False


def _keep(model: str) -> None:
    with contextlib.suppress(OSError):  # then it is said once more
        _file().parent.mkdir(parents=True, exist_ok=True)
        with _file().open("a", encoding="utf-8") as file:
            file.write(f"{model}\n")
