"""The draft sources of an engine's default, and the trained heads that they need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outrider.config import EngineConfig, source_record
from outrider.config.combination import AUTO, USUAL, WITH_ASSISTANT, WITH_DSPARK, WITH_OWN_HEAD, parse
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.trained.assistant_files import has_assistant, require_assistant
from outrider.drafters.trained.dspark_files import dspark_beside
from outrider.drafters.trained.mtp_head import MtpHead, mtp_head, require_head
from outrider.models.base import LoadedModel
from outrider.verify.shapes import Acceptance
from outrider.weights.hub.catalog import file_of

PLAIN = "none"
"""Default for speech models: speech rarely repeats, and text sources made decoding a fifth slower (docs/speech.md)."""


@dataclass(frozen=True, slots=True)
class DefaultDraft:
    """The draft sources of requests that name none, and the heads for the target."""

    draft: str  # sources, not ``auto``
    heads: Mapping[str, Any]  # by source
    head_bytes: tuple[int, int] = (0, 0)
    """Of the weights of heads, and of a row of their caches."""

    def measured_acceptance(self, source: str) -> Acceptance:
        """The acceptance by depth and rank that was measured when the source's head was trained; () without a head."""
        head = self.heads.get(source)
        if isinstance(head, MtpHead):
            return head.acceptance
        if head is None or not isinstance(head.config, HeadConfig):
            return ()
        measured = head.config.acceptance
        own = ((1.0,),) if head.config.kind == "pass" and measured else ()  # its first guess is the target's own token
        return own + measured


def load_draft(config: EngineConfig, target: LoadedModel, *, progress: bool) -> DefaultDraft:
    """Resolve ``auto`` by the heads that are given or lie beside the target, and load these.

    Raises ``OutriderError`` if a head cannot be found or loaded, or does not fit the target.
    """
    draft, heads, place = config.speculation.draft, dict[str, Any](), file_of(config.model)
    if config.heads or any(source_record(name).head_kinds for name in parse(draft).names):
        from outrider.drafters.trained.heads import load_heads

        draft, heads = load_heads(config, target, progress=progress)
    elif draft == AUTO:
        draft, heads = _own_draft(place, target)
    if "mtp" in parse(draft).names and "mtp" not in heads:
        heads["mtp"] = require_head(target, config.model)
    if "assistant" in parse(draft).names:
        heads["assistant"] = require_assistant(place, target)
    if not heads:
        return DefaultDraft(draft, heads)
    from outrider.drafters.trained.heads import head_memory

    return DefaultDraft(draft, heads, head_memory(heads, target))


def _own_draft(place: str, target: LoadedModel) -> tuple[str, dict[str, Any]]:
    """The sources for a target without heads of the user's, and the head that lies beside it, if any."""
    if has_assistant(place, target):
        return WITH_ASSISTANT, {}
    if target.config.hears:
        return PLAIN, {}
    if mtp_head(target) is not None:
        return WITH_OWN_HEAD, {}
    beside = dspark_beside(place, target)
    return (USUAL, {}) if beside is None else (WITH_DSPARK, {"dspark": beside})
