"""A whole model folder, weights and tokenizer, small enough to write in a test and real enough to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from outrider.tokenizer.tokenizer import Tokenizer
from tests.tokenizer.vocabularies import byte_level, sentencepiece
from tests.weights.files import write_folder


def model_folder(folder: Path, **changes: Any) -> Path:
    """A random two-layer model over a byte-level vocabulary, with a chat template."""
    byte_level(folder)
    size = Tokenizer.from_folder(folder).vocab_size
    # Ids 0 and 1 are the special tokens of the byte-level vocabulary.
    write_folder(folder, **({"vocab_size": size, "bos_token_id": 0, "eos_token_id": 1} | changes))
    return folder


def other_vocabulary(folder: Path) -> Path:
    """A model whose tokens mean something else."""
    sentencepiece(folder)
    write_folder(folder)
    return folder
