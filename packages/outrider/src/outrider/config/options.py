"""The options of an engine as keywords: ``LLM("m", draft="suffix", max_model_len=4096)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypedDict

from outrider.config import aliases
from outrider.config.combination import AUTO
from outrider.config.engine import EngineConfig, Implementation
from outrider.config.fields import accept
from outrider.config.sampling import SamplingParams
from outrider.config.speculation import SpeculationParams
from outrider.errors import ConfigError


class OtherNames(TypedDict, total=False):
    """Keywords of vLLM and transformers that ``LLM`` accepts too (``outrider.config.aliases``)."""

    speculative_config: Mapping[str, Any] | None
    max_model_len: int | None
    max_num_seqs: int
    max_num_batched_tokens: int
    enable_prefix_caching: bool
    model_impl: Implementation
    torch_dtype: Any  # its name, or the torch.dtype itself
    use_speculative_decoding: bool


_SPECULATION = tuple(field.name for field in fields(SpeculationParams))
_ENGINE = tuple(field.name for field in fields(EngineConfig) if field.name != "model")
_NONE_IS_ABSENT = ("speculation", "speculative_config")

ENGINE_OPTIONS = frozenset((*_SPECULATION, *_ENGINE, *OtherNames.__annotations__))
"""The keywords of ``LLM`` that are options of an engine."""


def changed_options(function: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The options of an engine that a call gave, for ``engine_config``.

    Args:
        function: has the options as keywords; its defaults count as not given.
        values: the arguments of the call by name (the function's ``locals()``), with ``other_names``.
    """
    defaults = ((name, value) for name, value in function.__kwdefaults__.items() if name in ENGINE_OPTIONS)
    given = {name: values[name] for name, default in defaults if values[name] != default}
    return {**given, **values["other_names"]}


def engine_config(model: str, **options: Any) -> EngineConfig:
    """The configuration from keyword options.

    Each option goes to its class: ``spec_length`` to ``SpeculationParams``, ``dtype`` to ``EngineConfig``.
    ``speculation`` is a whole ``SpeculationParams``.

    Args:
        options: fields of ``SpeculationParams`` and ``EngineConfig``, or ``OtherNames``. ``speculative_config`` is
            vLLM's: ``method``, ``num_speculative_tokens``, and ``model`` for a draft model or a head.
            ``use_speculative_decoding=False`` is ``draft="none"``; True insists on a source.

    Raises:
        ConfigError: an option is unknown, given twice, or contradicts another option.
    """
    for name in options:
        if name in {field.name for field in fields(SamplingParams)}:
            raise ConfigError(f"{name} is an option of SamplingParams: give it to generate or chat")
    told = {name: value for name, value in options.items() if name not in _NONE_IS_ABSENT or value is not None}
    known = (*_SPECULATION, *_ENGINE, "speculative_config", "use_speculative_decoding")
    given = accept("LLM", told, known, {**aliases.ENGINE, **aliases.SPECULATION})
    _merge(given, from_vllm(given.pop("speculative_config", {})))
    if "dtype" in given:
        given["dtype"] = str(given["dtype"]).removeprefix("torch.")
    switch = given.pop("use_speculative_decoding", None)
    own = {name: given.pop(name) for name in _SPECULATION if name in given}
    if "speculation" in given and own:
        raise ConfigError(f"speculation and {next(iter(own))} are both given: put everything into one of them")
    if switch is False and "speculation" not in given and own.get("draft", AUTO) == AUTO:
        own["draft"] = "none"
    given.setdefault("speculation", SpeculationParams(**own))
    config = EngineConfig(model=model, **given)
    draft = config.speculation.draft
    if switch is True and draft == "none":
        raise ConfigError("use_speculative_decoding=True needs a source of drafts: name a draft or a draft_model")
    if switch is False and draft != "none":
        raise ConfigError(f"use_speculative_decoding=False contradicts draft={draft!r}: leave one of them out")
    return config


def draft_of_method(method: str) -> str:
    """The draft source for vLLM's ``method``; other names are our sources'."""
    return aliases.METHODS.get(method, method)


def from_vllm(config: Mapping[str, Any]) -> dict[str, Any]:
    """vLLM's ``speculative_config`` as options of ours.

        {"method": "ngram", "num_speculative_tokens": 5}     {"draft": "lookup", "spec_length": 5}
        {"model": "small", "num_speculative_tokens": 4}      {"draft": "model", "draft_model": "small", ...}
        {"method": "eagle3", "model": "folder"}              {"draft": "eagle", "heads": "folder"}

    Methods that vLLM does not have are our draft sources.

    Raises:
        ConfigError: a key has no equivalent here.
    """
    names = ("method", "model", "num_speculative_tokens")
    given = accept("speculative_config", config, names, {})
    options: dict[str, Any] = {}
    if "num_speculative_tokens" in given:
        options["spec_length"] = given["num_speculative_tokens"]
    method = given.get("method", "draft_model" if "model" in given else None)
    if method is not None:
        options["draft"] = draft_of_method(method)
    if "model" in given:
        options["draft_model" if options["draft"] in ("model", "models", "hierarchical") else "heads"] = given["model"]
    return options


def _merge(given: dict[str, Any], more: Mapping[str, Any]) -> None:
    for name, value in more.items():
        if name in given or "speculation" in given:
            other = name if name in given else "speculation"
            raise ConfigError(f"speculative_config and {other} are both given: leave one of them out")
        given[name] = value
