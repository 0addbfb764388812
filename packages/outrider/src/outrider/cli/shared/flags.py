"""What help and completion say of the fields that become options, beyond what the fields document themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

from outrider.config import LENIENCE, POSTERIOR_ALPHA, POSTERIOR_THRESHOLD, SOURCES, VERIFIERS
from outrider.config.engine import CACHES, DTYPES, IMPLEMENTATIONS, KV_CACHE_DTYPES
from outrider_lab.fleet_planning.options import FleetOptions

_GROUPS = {
    "Drafting": "draft spec_length draft_model heads tree tree_nodes verifier draft_temperature prediction lenience "
    "posterior_threshold posterior_alpha lookahead_window lookahead_ngram lookahead_guesses draft_layers draft_table "
    "datastore extra_sources",
    "Sampling": "max_tokens temperature top_p top_k min_p seed stop min_tokens repetition_penalty presence_penalty "
    "frequency_penalty logit_bias ignore_eos logprobs beam_width length_penalty",
    "Model and machine": "dtype draft_dtype kv_cache_dtype device threads implementation tensor_parallel_size "
    "max_seq_len kv_cache kv_tokens prefix_reuse enable_lora lora_modules max_batch_size max_batched_tokens",
    "Access": "api_keys api_key_file metrics_key share_across_keys allow_lossy cors_origins allowed_hosts "
    "ssl_certfile ssl_keyfile ssl_ca_certs",
    "A fleet": " ".join(f"FleetOptions.{field.name}" for field in fields(FleetOptions)),
    "Limits": "ServerSettings.max_tokens max_queue scheduling_policy max_body_bytes max_header_bytes max_connections "
    "max_audio_bytes max_audio_seconds max_images max_image_pixels max_prompts max_n "
    "max_prompt_tokens max_draft_tokens request_timeout header_timeout body_timeout "
    "keep_alive_timeout write_timeout max_backlog drain_timeout",
    "Replicas": "fleet ray_address routing share_drafts traces",
}
GROUP = {name: group for group, names in _GROUPS.items() for name in names.split()}
"""The heading of each field's option; the others stand first, below "Options". A class's own come before the rest's."""

_RARE = (
    "heads tree tree_nodes verifier draft_temperature prediction lenience posterior_threshold posterior_alpha "
    "lookahead_window lookahead_ngram lookahead_guesses draft_layers draft_table datastore extra_sources stop "
    "top_k min_p min_tokens repetition_penalty presence_penalty frequency_penalty logit_bias ignore_eos logprobs "
    "beam_width length_penalty enable_lora lora_modules "
    "draft_dtype kv_cache_dtype device implementation tensor_parallel_size max_seq_len kv_cache kv_tokens prefix_reuse "
    "max_batched_tokens metrics_key metrics_prefix share_across_keys allow_lossy scheduling_policy "
    "uds served_model_names max_loaded_models model_idle_seconds playground log_level log_format log_prompts "
    "cors_origins allowed_hosts ssl_ca_certs "
    "max_prompt_tokens max_draft_tokens request_timeout max_body_bytes "
    "max_audio_bytes max_audio_seconds max_images max_image_pixels max_header_bytes max_connections max_prompts "
    "max_n header_timeout body_timeout keep_alive_timeout write_timeout max_backlog drain_timeout stream_interval "
    "stream_padding fleet ray_address routing share_drafts traces"
)
RARE = frozenset(_RARE.split()) | {f"FleetOptions.{field.name}" for field in fields(FleetOptions)}
"""Fields whose options only ``--help-all`` shows: their defaults suit nearly all."""

SHOWN = {
    "draft": "auto",
    "FleetOptions.draft": "the machine's",
    "FleetOptions.max_batch_size": "the machine's",
    "FleetOptions.max_batched_tokens": "the machine's",
    "FleetOptions.kv_tokens": "the machine's",
    "draft_layers": "a third",
    "draft_table": "live",
    "draft_temperature": "the request's",
    "lenience": str(LENIENCE),
    "posterior_threshold": str(POSTERIOR_THRESHOLD),
    "posterior_alpha": str(POSTERIOR_ALPHA),
    "seed": "random",
    "max_seq_len": "the model's",
    "threads": "one per core",
    "kv_tokens": "what memory allows",
    "served_model_names": "the model",
    "models": "only --model",
    "replicas": "one",
    "ray_address": "of this machine",
    "max_loaded_models": "all",
    "model_idle_seconds": "never",
    "allowed_hosts": "see docs",
    "max_prompt_tokens": "the context",
    "max_tokens": "the context",
}
"""What it means to leave an option out whose default does not say it."""


def draft_names() -> list[str]:
    """Every value of ``--draft`` that is one word."""
    return ["auto", *SOURCES, "cascade"]


HELP = {
    "dtype": "Weights: auto (as stored), bfloat16, float32, q8_0, q4_0 or q4_1.",
    "beam_width": "Beams of a beam search, whose best output is shown at its end; 0: none.",
    "length_penalty": "Beams are ranked by log-probability / length ** this.",
    "prediction": "A file of text that the answer is expected to resemble, for --draft prediction.",
    "draft": "Where drafts come from: none, suffix, eagle, model, ..., or several (see --help-all).",
    "FleetOptions.draft": "A draft source to measure and to use; none: without.",
}
"""Help that differs from the field's documentation. A class's own comes before the rest's."""


def models() -> list[str]:
    """Names of models that need no path: the built-in ones."""
    from outrider.hub.builtin import BUILTINS

    return list(BUILTINS)


CHOICES: dict[str, Callable[[], list[str]]] = {
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
    "log_level": lambda: ["debug", "info", "warning", "error"],
    "log_format": lambda: ["text", "json"],
    "scheduling_policy": lambda: ["fcfs", "priority"],
    "fleet": lambda: ["ray", "processes"],
    "routing": lambda: ["prefix", "session", "least_load", "round_robin", "random"],
}
"""What the shell completes a field's option with; where there is nothing, it completes names of files."""


def completer(choices: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """For ``typer.Option(autocompletion=...)``."""

    def complete(incomplete: str) -> list[str]:
        return [choice for choice in choices() if choice.startswith(incomplete)]

    return complete
