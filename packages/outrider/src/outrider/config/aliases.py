"""The table of option names of vLLM and transformers that are accepted besides our own.

They ease the first hour with code or a command line written for another library. Using one warns with our name for it
(``DeprecationWarning``; a command says it in a line), and the table goes with version 1.0: write the name that the
warning gives.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping

ENGINE: Mapping[str, str] = {
    "max_model_len": "max_seq_len",
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_batched_tokens",
    "enable_prefix_caching": "prefix_reuse",
    "torch_dtype": "dtype",
    "model_impl": "implementation",
}
"""Of ``LLM`` and ``outrider serve``."""

SPECULATION: Mapping[str, str] = {"num_speculative_tokens": "spec_length"}

SAMPLING: Mapping[str, str] = {
    "max_new_tokens": "max_tokens",
    "num_beams": "beam_width",
    "num_return_sequences": "n",
}

METHODS: Mapping[str, str] = {
    "ngram": "lookup",
    "prompt_lookup": "lookup",
    "draft_model": "model",
    "eagle3": "eagle",
    "qwen3_5_mtp": "mtp",
    "qwen3_next_mtp": "mtp",
    "off": "none",
    "disabled": "none",
}
"""Methods of vLLM's ``speculative_config``, and our draft sources. Its ``ngram`` is prompt lookup."""


def note(alias: str, name: str) -> str:
    """The warning for the use of an alias."""
    return f"{alias} is another library's name: write {name}, as {alias} goes with Outrider 1.0"


def warn(alias: str, name: str) -> None:
    """Warn that ``alias`` was used, at the line of the caller's own code."""
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith("outrider"):
        level, frame = level + 1, frame.f_back
    warnings.warn(note(alias, name), DeprecationWarning, stacklevel=level)
