"""Matching of a draft model's encoder with the target's inputs."""

from __future__ import annotations

from outrider.errors import IncompatibleDraftError
from outrider.models.base import Model
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.kind import DecoderOfEncoder, is_encoder_decoder

__all__ = ["match_encoder"]


def match_encoder(draft: DecoderOfEncoder, target: Model) -> None:
    """Let a draft model use the target's encoder if its own is equal.

    Raises:
        IncompatibleDraftError: its encoder cannot take the target's inputs.
    """
    if not is_encoder_decoder(target):
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
