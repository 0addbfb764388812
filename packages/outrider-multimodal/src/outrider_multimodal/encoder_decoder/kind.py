"""Interface of models with an encoder, independent of the backend."""

from __future__ import annotations

import time
from typing import Any, Protocol, TypeGuard

import numpy as np

from outrider.errors import IncompatibleDraftError, InvalidRequestError
from outrider.models.base import Model
from outrider.models.inputs import EncodingModel
from outrider_multimodal.encoder_decoder.config import EncoderDecoderConfig
from outrider_multimodal.encoder_decoder.inputs import EncoderInput

CALIBRATION_SOURCE = 256  # tokens of text that a sequence without an input is assumed to have


class DecoderOfEncoder(EncodingModel, Protocol):
    """A model whose ``forward`` is the decoder's; its encoder runs once per input."""

    @property
    def config(self) -> EncoderDecoderConfig: ...

    @property
    def shares_encoder(self) -> bool:
        """Whether another model shares and runs the encoder."""
        ...

    def share_encoder(self, other: Any) -> object:
        """Use another model's encoder if it is equal."""
        ...


def is_encoder_decoder(model: object) -> TypeGuard[DecoderOfEncoder]:
    """Whether a model has an encoder."""
    return isinstance(getattr(model, "config", None), EncoderDecoderConfig)


def check_input(config: EncoderDecoderConfig, given: EncoderInput) -> None:
    """Raises ``InvalidRequestError`` for an input that the encoder cannot take."""
    c, values = config, np.asarray(given.values)
    if given.is_text == c.hears:
        kinds = ("a text", "a spectrogram")
        raise InvalidRequestError(f"{c.family} takes {kinds[c.hears]}, not {kinds[not c.hears]}", param="prompt")
    if c.hears:
        if tuple(values.shape) != (c.mel_bins, 2 * c.max_source_len):
            raise InvalidRequestError(
                f"a spectrogram of {list(values.shape)}: {c.family} takes [{c.mel_bins}, {2 * c.max_source_len}]"
            )
    elif not 0 < len(values) <= c.max_source_len:
        raise InvalidRequestError(
            f"the text has {len(values)} tokens, but the encoder takes 1 to {c.max_source_len}: shorten it",
            param="prompt",
        )
    elif not 0 <= int(values.min()) <= int(values.max()) < c.vocab_size:
        raise InvalidRequestError(
            f"the text names token {int(values.max())}, but the vocabulary ends at {c.vocab_size - 1}",
            param="prompt",
        )


_REPEATS, _SECONDS = 3, 0.5  # runs, the fastest of which counts; seconds until the last may start


def time_encoder(model: DecoderOfEncoder) -> tuple[float, int]:
    """Seconds to encode an input, and its positions; 0 seconds where the encoder is shared with the target's."""
    c = model.config
    positions = c.max_source_len if c.hears else min(c.max_source_len, CALIBRATION_SOURCE)
    if model.shares_encoder:
        return 0.0, positions
    bands = c.mel_bins or 0
    values = np.zeros((bands, 2 * positions), np.float32) if c.hears else np.arange(positions) % c.vocab_size
    times: list[float] = []
    while len(times) < _REPEATS and sum(times) < _SECONDS:
        began = time.perf_counter()
        model.encode(EncoderInput(values))
        times.append(time.perf_counter() - began)
    return min(times), positions


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
