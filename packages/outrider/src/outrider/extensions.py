"""Extensions by other distributions, found by their entry points: commands, draft sources, backends and more.

A distribution names its extensions in its ``pyproject.toml``::

    [project.entry-points."outrider.commands"]
    serve = "outrider_server.commands.serve:app"

The core imports no other distribution by name. If a known one is absent, the error says how to install it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Literal

from outrider.errors import MissingExtensionError

Group = Literal[
    "commands",  # of the command line
    "drafters",  # records of draft sources
    "families",  # loaders of model folders that are not read natively
    "backends",  # implementations of a model
    "decode_methods",  # other than sampling, as beam search
    "input_sources",  # other than text, as images and sounds
    "server_apis",  # dialects of the server
    "names",  # of ``from outrider import name``
    "outputs",  # views of a finished request
    "replicas",  # several engines behind one server
]

EXTRAS: Mapping[str, Mapping[str, str]] = {
    "commands": {
        "serve": "server", "run": "server", "ps": "server", "transcribe": "speech", "certify": "lab", "bench": "lab",
        "referee": "lab", "replay": "server",
        "plan": "lab", "pick": "lab", "figures": "lab", "train": "train",
    },
    "drafters": {
        "medusa": "torch", "blockwise": "torch", "pass": "torch", "recycling": "drafters",
        "lookahead": "drafters", "models": "drafters", "universal": "drafters", "layer_skip": "drafters",
        "hierarchical": "drafters", "bigram": "drafters", "unigram": "drafters", "random": "drafters",
    },
    "families": {"encoder_decoder": "speech", "vision_language": "vision", "transformers": "transformers"},
    "backends": {"torch": "torch", "tensor_parallel": "fleet"},
    "decode_methods": {"beam_search": "drafters"},
    "input_sources": {"images": "vision", "sounds": "speech"},
    "server_apis": {"audio": "speech"},
    "names": {
        "Sound": "speech", "Transcript": "speech", "TranscriptionOptions": "speech",
        "speculate": "lab", "speculate_async": "lab",
    },
    "outputs": {"table": "lab", "plot": "lab", "tree": "lab"},
    "replicas": {"fleet": "fleet"},
}  # fmt: skip
"""The extra of ``outrider`` that brings each known extension, by group and name."""


@cache
def _found(group: Group) -> Mapping[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=f"outrider.{group}")}


def extension_names(group: Group) -> tuple[str, ...]:
    """Names of the installed extensions of a group: known ones in the order of ``EXTRAS``, then others by alphabet."""
    found, known = _found(group), EXTRAS.get(group, {})
    return (*(name for name in known if name in found), *sorted(found.keys() - known.keys()))


def extension_summary(group: Group, name: str) -> str:
    """One line on an installed extension without importing it: what its distribution says of itself."""
    distribution = _found(group)[name].dist
    return "" if distribution is None else str(distribution.metadata["Summary"])


def has_extension(group: Group, name: str) -> bool:
    """Whether the extension is installed."""
    return name in _found(group)


def is_known(group: Group, name: str) -> bool:
    """Whether a distribution of Outrider brings the extension, installed or not."""
    return name in EXTRAS.get(group, {})


def extension(group: Group, name: str, asked: str = "") -> Any:
    """The object that an entry point names.

    Args:
        asked: how the caller asked for it, for the error: ``draft='medusa'``.

    Raises:
        MissingExtensionError: no installed distribution brings it.
    """
    point = _found(group).get(name)
    if point is None:
        raise missing_extension(group, name, asked)
    return point.load()


def missing_extension(group: Group, name: str, asked: str = "") -> MissingExtensionError:
    """The error that says which extra brings an extension."""
    extra = EXTRAS.get(group, {}).get(name)
    remedy = f"pip install 'outrider[{extra}]'" if extra else f"no installed package brings {group} {name!r}"
    return MissingExtensionError(f"{asked or name} is not installed: {remedy}")
