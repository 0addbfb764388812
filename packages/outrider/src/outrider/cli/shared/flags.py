"""Help and completion of the fields that become options, beyond the fields' own documentation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from outrider.config import LENIENCE, POSTERIOR_THRESHOLD, SOURCES, VERIFIERS
from outrider.config.engine import CACHES, DTYPES, IMPLEMENTATIONS, KV_CACHE_DTYPES


@dataclass(frozen=True, kw_only=True)
class FlagTable:
    """Presentation of a dataclass's fields as options. Every name is a field's."""

    headings: Mapping[str, str] = field(default_factory=dict)
    """Field names by heading; other fields come first, below "Options"."""
    rare: str = ""
    """Fields that only ``--help-all`` shows: their defaults suit nearly all users."""
    shown: Mapping[str, str] = field(default_factory=dict)
    """The default's meaning, for options whose default value does not show it."""
    help: Mapping[str, str] = field(default_factory=dict)
    """Help that differs from the field's documentation."""
    choices: Mapping[str, Callable[[], list[str]]] = field(default_factory=dict)
    """The shell's completions of an option; other options complete names of files."""
    singular: Mapping[str, str] = field(default_factory=dict)
    """Flags named unlike their fields, as each gives one of several values."""
    read: Mapping[str, tuple[Any, Callable[[Any], Any]]] = field(default_factory=dict)
    """Fields in another form on the command line: its type, and its parser."""

    @cached_property
    def group(self) -> Mapping[str, str]:
        """The heading of each field."""
        return {name: heading for heading, names in self.headings.items() for name in names.split()}

    @cached_property
    def hidden(self) -> frozenset[str]:
        """The rare fields."""
        return frozenset(self.rare.split())


def draft_names() -> list[str]:
    """Every value of ``--draft`` that is one word."""
    return ["auto", *SOURCES, "cascade"]


def models() -> list[str]:
    """Names of models that need no path: the built-in ones."""
    from outrider.weights.hub.builtin import BUILTINS

    return list(BUILTINS)


CORE = FlagTable(
    headings={
        "Drafting": "draft spec_length draft_model heads tree tree_nodes verifier draft_temperature prediction "
        "lenience posterior_threshold lookahead draft_layers "
        "draft_table datastore extra_sources",
        "Sampling": "max_tokens temperature top_p top_k min_p seed stop min_tokens repetition_penalty "
        "presence_penalty frequency_penalty logit_bias ignore_eos logprobs beam_width length_penalty",
        "Model and machine": "dtype draft_dtype kv_cache_dtype device threads implementation tensor_parallel_size "
        "max_seq_len kv_cache kv_tokens prefix_reuse session_dir session_gb "
        "enable_lora lora_modules max_batch_size max_batched_tokens",
    },
    rare="heads tree tree_nodes verifier draft_temperature prediction lenience posterior_threshold "
    "lookahead draft_layers draft_table datastore extra_sources stop "
    "top_k min_p min_tokens repetition_penalty presence_penalty frequency_penalty logit_bias ignore_eos logprobs "
    "beam_width length_penalty enable_lora lora_modules draft_dtype kv_cache_dtype device implementation "
    "tensor_parallel_size max_seq_len kv_cache kv_tokens prefix_reuse session_dir session_gb max_batched_tokens",
    shown={
        "draft": "auto",
        "draft_layers": "a third",
        "draft_table": "live",
        "draft_temperature": "the request's",
        "lookahead": "5,3,3",
        "lenience": str(LENIENCE),
        "posterior_threshold": str(POSTERIOR_THRESHOLD),
        "seed": "random",
        "max_seq_len": "the model's",
        "threads": "one per core",
        "kv_tokens": "what memory allows",
    },
    help={
        "dtype": "Weights: auto (as stored), bfloat16, float32, q8_0, q4_0 or q4_1.",
        "beam_width": "Beams of a beam search, whose best output is shown at its end; 0: none.",
        "length_penalty": "Beams are ranked by log-probability / length ** this.",
        "prediction": "A file of text that the answer is expected to resemble, for --draft prediction.",
        "draft": "Where drafts come from: none, suffix, eagle, model, ..., or several (see --help-all).",
    },
    choices={
        "draft": draft_names,
        "verifier": lambda: list(VERIFIERS),
        "dtype": lambda: list(DTYPES),
        "draft_dtype": lambda: list(DTYPES),
        "kv_cache_dtype": lambda: list(KV_CACHE_DTYPES),
        "kv_cache": lambda: list(CACHES),
        "implementation": lambda: list(IMPLEMENTATIONS),
        "device": lambda: ["auto", "cpu", "cuda"],
        "tree": lambda: ["dynamic", "learned"],
        "draft_model": models,
    },
    singular={"extra_sources": "extra_source"},
)
"""The options of ``EngineConfig``, ``SpeculationParams`` and ``SamplingParams``."""

_TABLES: dict[type, FlagTable] = {}


def describe(kind: type, table: FlagTable) -> None:
    """Register the presentation of a dataclass's fields, before a command takes them."""
    _TABLES[kind] = table


def table_of(kind: type) -> FlagTable:
    """The table of a dataclass; by default the core's."""
    return _TABLES.get(kind, CORE)


def completer(choices: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """A completion function for ``typer.Option(autocompletion=...)``."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices() if choice.startswith(incomplete)]

    return complete
