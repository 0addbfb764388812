"""Which trained heads an engine has: those named, and those that come with the package."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from outrider.cache import CacheSpec, KVCache
from outrider.config import EngineConfig
from outrider.config.sources import AUTO, HEAD_SOURCES, WITH_EAGLE, WITHOUT_HEADS, check_known
from outrider.drafters.api import Drafter
from outrider.drafters.trained.eagle import EagleDrafter
from outrider.drafters.trained.medusa import MedusaDrafter
from outrider.drafters.trained.pass_ import PassDrafter
from outrider.errors import ConfigError
from outrider.heads import HeadConfig, TargetFingerprint, load_head
from outrider.heads.blockwise import BlockwiseHeads
from outrider.heads.config import fingerprint_rows
from outrider.heads.eagle import EagleLayer
from outrider.heads.find import shipped_heads, shipped_kinds
from outrider.heads.medusa import MedusaHeads
from outrider.heads.pass_ import LookaheadEmbeddings
from outrider.models.base import HeadTarget

_SOURCE_OF = {"medusa": "medusa", "blockwise": "blockwise", "pass": "pass", "eagle3": "eagle", "eagle": "eagle"}
"""The source that drafts with a kind of head; of two shipped ones the first here is taken."""


def source_of(head: nn.Module) -> str:
    """The draft source that uses ``head``."""
    config = head.config
    assert isinstance(config, HeadConfig)
    return _SOURCE_OF[config.kind]


def shipped_sources(model: str) -> list[str]:
    """Sources that have a head shipped for the built-in model of that name."""
    return list(dict.fromkeys(_SOURCE_OF[kind] for kind in shipped_kinds(model)))


def fingerprint(target: HeadTarget, name: str = "") -> TargetFingerprint:
    """What a head must have been trained for to draft for ``target``."""
    rows = target.embed(fingerprint_rows(target.config.vocab_size))
    return TargetFingerprint.of(target.config, rows, name)


def choose_heads(config: EngineConfig, target: HeadTarget) -> tuple[str, dict[str, nn.Module]]:
    """The draft that ``config`` comes down to for this target, and its heads by source, not yet packed.

    Raises:
        ModelFormatError: a head's folder is damaged.
        IncompatibleDraftError: a head was trained for another target.
        ConfigError: two heads are for one source, or a source has none.
    """
    found = fingerprint(target, config.model)
    heads: dict[str, nn.Module] = {}
    for folder in config.heads:
        head = _load(Path(folder), target, found)
        source = source_of(head)
        if source in heads:
            raise ConfigError(f"heads={config.heads!r} has two for draft={source!r}: name one")
        heads[source] = head
    at_hand = {_SOURCE_OF[kind]: path for kind, path in _in_order(shipped_heads(found)).items()}
    draft = config.draft_source
    if draft == AUTO:
        shipped = WITH_EAGLE if "eagle" in at_hand else WITHOUT_HEADS
        draft = next((name for name in HEAD_SOURCES if name in heads), shipped)
    for name in check_known(draft).names:
        if name in HEAD_SOURCES and name not in heads:
            if name not in at_hand:
                raise ConfigError(
                    f"draft={name!r} needs a head trained for {config.model}, and none is shipped: name its "
                    f"folder with heads (--heads), or train one with `outrider train {name}`"
                )
            heads[name] = _load(at_hand[name], target, found)
    return draft, heads


def _in_order(folders: Mapping[str, Path]) -> dict[str, Path]:
    """The preferred kinds last, so that they win."""
    return {kind: folders[kind] for kind in reversed(_SOURCE_OF) if kind in folders}


def _load(folder: Path, target: HeadTarget, found: TargetFingerprint) -> nn.Module:
    head, config = load_head(folder, target.dtype)
    config.check_target(found)
    return head


def head_bytes(heads: Mapping[str, nn.Module], target: HeadTarget) -> tuple[int, int]:
    """Bytes of the heads' weights, and of what they cache of one token."""
    size, weights, row = target.dtype.itemsize, 0, 0
    for head in heads.values():
        c = head.config
        assert isinstance(c, HeadConfig)
        weights += sum(parameter.numel() for parameter in head.parameters()) * size
        if c.draft_vocab_size is not None and not c.own_lm_head:
            weights += c.draft_vocab_size * c.hidden_size * size
        row += 2 * c.num_kv_heads * c.head_dim * size
    return weights, row


def make_head_drafter(
    head: nn.Module, target: HeadTarget, target_cache: KVCache, *, vocab_size: int, cache: CacheSpec
) -> Drafter:
    """The source that drafts with ``head``, which becomes its own."""
    if isinstance(head, EagleLayer):
        return EagleDrafter(target, head, vocab_size=vocab_size, cache=cache)
    if isinstance(head, LookaheadEmbeddings):
        return PassDrafter(target, target_cache, head, vocab_size=vocab_size)
    assert isinstance(head, MedusaHeads | BlockwiseHeads)
    return MedusaDrafter(target, head, vocab_size=vocab_size)
