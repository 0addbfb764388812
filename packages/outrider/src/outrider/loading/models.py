"""The models of an engine: the target, the draft models, and their tokenizers."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.config import EngineConfig, source_record
from outrider.config.combination import parse
from outrider.errors import IncompatibleDraftError
from outrider.extensions import extension, has_extension
from outrider.models.base import LoadedModel
from outrider.models.inputs import TEXT_ONLY, has_encoder
from outrider.models.native_llama import NativeLlamaModel
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.tokenizer.vocabularies import check_same_vocabulary
from outrider.weights.families.elsewhere import is_vision_language
from outrider.weights.hub.catalog import resolve
from outrider.weights.loader import load_model


@dataclass(frozen=True, slots=True)
class LoadedModels:
    """A target with its draft models, each with its tokenizer."""

    folder: Path  # of the target
    tokenizer: Tokenizer
    target: LoadedModel
    vision: Any  # the ``Vision`` that reads images, or a str: the reason why images are not supported
    drafts: tuple[LoadedModel, ...]
    draft_tokenizers: tuple[Tokenizer, ...]
    same_vocabulary: bool  # of the target and of all draft models

    @property
    def vocab_size(self) -> int:
        """Tokens that the target can say and the tokenizer can read."""
        return min(self.tokenizer.vocab_size, self.target.config.vocab_size)

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        return tuple({*self.tokenizer.eos_token_ids, *self.target.config.eos_token_ids})

    @property
    def mapped_files(self) -> dict[Path | None, int]:
        """The bytes of weights that are mapped from each file."""
        native = [each for each in (self.target, *self.drafts) if isinstance(each, NativeLlamaModel)]
        return {each.mapped_file: each.mapped_bytes for each in native}


def load_models(config: EngineConfig, *, progress: bool) -> LoadedModels:
    """Load the models that ``config`` names, draft models first: the target is not read for one that does not fit it.

    Raises:
        IncompatibleDraftError: a draft model has another vocabulary, and no default source supports that.
        OutriderError: a model cannot be found or loaded.
    """
    folder = resolve(config.model, progress=progress)
    tokenizer = Tokenizer.from_folder(folder, config.model)
    drafts, draft_tokenizers, same = _load_drafts(config, tokenizer, progress)
    target = _load_target(config, folder, progress)
    vision = _load_vision(folder, tokenizer, target)  # before memory is divided
    for each in drafts:
        if has_encoder(each):
            each.match_target(target)
    if progress and target.implementation not in ("native", "torch"):
        print(f"{target.config.family}: computed by {target.implementation}", file=sys.stderr)
    return LoadedModels(folder, tokenizer, target, vision, drafts, draft_tokenizers, same)


def _load_drafts(
    config: EngineConfig, target: Tokenizer, progress: bool
) -> tuple[tuple[LoadedModel, ...], tuple[Tokenizer, ...], bool]:
    """The draft models, their tokenizers, and whether all have the target's vocabulary."""
    by_text = any(source_record(name).any_vocabulary for name in parse(config.speculation.draft).names)
    same = True
    models: list[LoadedModel] = []
    tokenizers: list[Tokenizer] = []
    for name in config.draft_models:
        folder = resolve(name, progress=progress)
        tokenizers.append(Tokenizer.from_folder(folder))
        try:
            check_same_vocabulary(target, tokenizers[-1])  # before weights are read
        except IncompatibleDraftError:
            if not by_text:
                raise
            same = False
        models.append(load_model(folder, config.draft_options(), progress=progress))
    return tuple(models), tuple(tokenizers), same


def _load_target(config: EngineConfig, folder: Path, progress: bool) -> LoadedModel:
    size = config.tensor_parallel_size
    if size == 1:
        return load_model(folder, config.target_options(), progress=progress)
    load_parallel = extension("backends", "tensor_parallel", f"tensor_parallel_size={size}")
    model: LoadedModel = load_parallel(folder, config.target_options(), size, threads=config.threads, name=config.model)
    return model


def _load_vision(folder: Path, tokenizer: Tokenizer, model: LoadedModel) -> Any:
    """The ``Vision`` that reads images, or the reason why images are not supported."""
    if not is_vision_language(folder) or not has_extension("input_sources", "images"):
        return TEXT_ONLY
    return extension("input_sources", "images").open_vision(folder, tokenizer, model)
