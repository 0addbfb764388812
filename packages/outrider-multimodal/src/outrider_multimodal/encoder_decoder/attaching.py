"""Gives a sequence what its encoder input comes to, whichever model has its slot."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.cache.protocol import KVCache
from outrider.errors import IncompatibleDraftError, InvalidRequestError
from outrider.models.base import Model
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.inputs import EncoderInput
from outrider_multimodal.encoder_decoder.kind import has_encoder

__all__ = ["attach_input", "check_input", "match_encoders"]


def check_input(model: Model, given: EncoderInput | None) -> None:
    """Raises ``InvalidRequestError`` unless ``given`` is what ``model`` takes: None, if it has no encoder."""
    if has_encoder(model):
        if given is None:
            kind = "a sound: use transcribe" if model.config.hears else "a text for the encoder: use generate"
            raise InvalidRequestError(f"{model.config.family} needs {kind}", param="prompt")
        model.check_input(given)
    elif given is not None:
        raise InvalidRequestError(f"{model.config.family} has no encoder: give it a prompt", param="prompt")


def attach_input(model: Model, cache: KVCache, slot: int | None, given: EncoderInput | None) -> None:
    """Encode ``given``, unless that was done before, and hang the result on ``slot``; nothing to do for others."""
    if has_encoder(model) and slot is not None and given is not None:
        cache.attachments[slot] = model.encode(given)


def match_encoders(target: Model, drafts: Sequence[Model]) -> None:
    """Let draft models use the target's encoder where theirs is the same.

    A draft model without an encoder knows only the text so far, which is allowed.

    Raises:
        IncompatibleDraftError: a draft model has an encoder that cannot take what the target's takes.
    """
    for draft in drafts:
        if not has_encoder(draft):
            continue
        if not has_encoder(target):
            raise IncompatibleDraftError(
                f"the draft model ({draft.config.family}) has an encoder and the target ({target.config.family}) has "
                "none: name another draft model"
            )
        ours, theirs = (_kind_of_input(model.config) for model in (target, draft))
        if ours != theirs:
            raise IncompatibleDraftError(
                f"the draft model takes {theirs} and the target {ours}: name a draft model of the same series"
            )
        draft.share_encoder(target)


def _kind_of_input(config: EncoderDecoderConfig) -> str:
    return f"sound in {config.mel_bins} mel bins and {config.max_source_len} positions" if config.hears else "text"
