"""Finds the models of all stores, and the one that a name means."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.errors import ModelFormatError, ModelNotFoundError
from outrider.utils.json_files import shown
from outrider.utils.suggest import close_to
from outrider.weights.hub.refs import parse_hub_ref
from outrider.weights.hub.stores.folders import hub_models, llama_cpp_models, lm_studio_models
from outrider.weights.hub.stores.found import STORES, FoundModel
from outrider.weights.hub.stores.ollama import ollama_models

__all__ = ["find_model", "find_models", "names_like"]


def find_models(*, hub: bool = True) -> list[FoundModel]:
    """The models of all stores, with the problems of those that cannot be used. No model file is opened.

    ``hub``: those of the hub's cache too.
    """
    return [*ollama_models(), *lm_studio_models(), *(hub_models() if hub else ()), *llama_cpp_models()]


def find_model(ref: str, *, hub: bool = True) -> FoundModel | None:
    """The GGUF model of a store that ``ref`` names; None: there is none.

    Names are those of ``find_models``, in any case; without a tag or type, the only model of this name.

    Raises:
        ModelNotFoundError: the name is that of several models.
        ModelFormatError: the store says that it has the model, and it is damaged.
    """
    found = _named(ref, find_models(hub=hub))
    whole = [model for model in found if model.problem is None]
    if not whole:
        if found and found[0].problem is not None:
            raise ModelFormatError(f"{found[0].name} is in {STORES[found[0].store]}, but {found[0].problem}")
        return None
    different = _different(whole)
    if len(different) > 1:
        raise ModelNotFoundError(
            f"{shown(ref)} is {len(different)} models here: {_choices(different)}: name one of them"
        )
    return different[0] if different[0].file is not None else None


def _named(ref: str, models: Sequence[FoundModel]) -> list[FoundModel]:
    """The models that ``ref`` may mean: those of exactly this name, else those of this repository."""
    wanted = ref.lower()
    exact = [each for each in models if wanted in (each.name.lower(), *(alias.lower() for alias in each.aliases))]
    if exact:
        return exact
    hub = parse_hub_ref(ref)
    if hub is None:
        return [each for each in models if each.repo.lower() == wanted]
    repo = hub.repo.lower()
    own = [each for each in models if repo in (each.repo.lower(), each.repo.lower().partition("/")[2])]
    return [each for each in own if not hub.gguf or (each.file is not None and each.has_type(hub.gguf))]


def _different(models: Sequence[FoundModel]) -> list[FoundModel]:
    """The models without those that are another's file or copy: of its name, type and size."""
    kept: list[FoundModel] = []
    for model in models:
        if not any(_same(model, other) for other in kept):
            kept.append(model)
    return kept


def _same(model: FoundModel, other: FoundModel) -> bool:
    if model.file is None or other.file is None:
        return model.file is other.file
    if model.file.resolve() == other.file.resolve():
        return True
    return model.store != other.store and (model.bytes, model.type) == (other.bytes, other.type)


def _choices(models: Sequence[FoundModel]) -> str:
    """The names, with their places where one name is that of several."""
    names = [model.name for model in models]
    said = [
        f"{model.name} ({model.bytes or 0:,} bytes in {STORES[model.store]})" if names.count(model.name) == 1
        else str(model.file or model.aliases[0]) for model in models
    ]  # fmt: skip
    return ", ".join(said[:8]) + (f" and {len(said) - 8} more" if len(said) > 8 else "")


def names_like(ref: str) -> list[str]:
    """Names of models in Ollama's store, those most like ``ref`` first."""
    names = [model.name for model in ollama_models() if model.problem is None]
    near = close_to(ref, names, count=3, cutoff=0.3)
    return (near + [name for name in names if name not in near])[:4]
