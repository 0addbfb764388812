"""Fields of published heads that fill in masked blocks: DFlash, and DSpark (Cheng et al. 2026, arXiv 2607.05147)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown

__all__ = ["MASKED", "DSpark", "check_masked"]

MASKED = ("diffusion", "dspark")
"""Kinds of heads that fill in masked blocks."""
_LARGEST = 2**31 - 1
_MOST_RANK = 1024


@dataclass(frozen=True, kw_only=True)
class DSpark:
    """What DSpark adds to DFlash.

    A row's scores get ``w2 (gate * w1[token before])``, the Markov head. The confidence head predicts, from the row's
    output and ``w1[token before]``, how probably the target accepts the row's token.
    """

    rank: int  # of w1 and w2; 0: no Markov head
    gated: bool = False  # the gate is a sigmoid of the row's output and of w1[token before], else 1
    confidence: bool = False
    confidence_reads_token: bool = False  # the confidence head reads w1[token before] too
    from_anchor: bool = True  # the last token's row guesses the token after it, so that masked rows are one fewer
    sinks: bool = False  # each head has a score more in the softmax, without a value

    def __post_init__(self) -> None:
        if type(self.rank) is not int or not 0 <= self.rank <= _MOST_RANK:
            raise ModelFormatError(f"markov_rank={shown(self.rank)} is not 0 to {_MOST_RANK}")
        for name in ("gated", "confidence", "confidence_reads_token", "from_anchor", "sinks"):
            if not isinstance(getattr(self, name), bool):
                raise ModelFormatError(f"{name}={shown(getattr(self, name))} is not true or false")
        if not self.rank and (self.gated or self.confidence_reads_token):
            raise ModelFormatError("markov_rank=0, but the gate or the confidence head reads the Markov head")


class _Fields(Protocol):
    """The fields of a ``HeadConfig`` that are checked here."""

    @property
    def kind(self) -> str: ...
    @property
    def heads(self) -> int: ...
    @property
    def hidden_size(self) -> int: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def draft_vocab_size(self) -> int | None: ...
    @property
    def num_layers(self) -> int: ...
    @property
    def selector_rank(self) -> int: ...
    @property
    def mask_token_id(self) -> int | None: ...
    @property
    def layer_windows(self) -> tuple[int, ...]: ...
    @property
    def causal_windows(self) -> bool: ...
    @property
    def conv_taps(self) -> int: ...
    @property
    def conv_group(self) -> int: ...
    @property
    def selector_top_k(self) -> int: ...
    @property
    def dspark(self) -> DSpark | None: ...


def check_masked(config: _Fields) -> None:
    """Check the fields that only ``MASKED`` heads have. Raises ``ModelFormatError``."""
    own = (config.mask_token_id, config.layer_windows, config.causal_windows, config.conv_taps, config.selector_top_k)
    if (config.kind == "dspark") != (config.dspark is not None):
        raise ModelFormatError("dspark: heads of this kind have it, and no other")
    if config.kind not in MASKED:
        if own != (None, (), False, 0, 0):
            raise ModelFormatError(
                f"mask_token_id, layer_windows, conv_taps, selector_top_k: only {' and '.join(MASKED)} have them"
            )
        return
    mask = config.mask_token_id
    if type(mask) is not int or not 0 <= mask < config.vocab_size:
        raise ModelFormatError(f"mask_token_id={shown(mask)} is none of the {config.vocab_size} tokens")
    if len(config.layer_windows) not in (0, config.num_layers) or not all(
        0 <= window <= _LARGEST for window in config.layer_windows
    ):
        raise ModelFormatError(f"layer_windows={shown(config.layer_windows)} has no window for each layer")
    if type(config.conv_taps) is not int or not 0 <= config.conv_taps <= config.heads + 1:
        raise ModelFormatError(
            f"conv_taps={shown(config.conv_taps)} is more than the {config.heads + 1} rows of a block"
        )
    if type(config.conv_group) is not int or config.conv_group < 1 or config.hidden_size % config.conv_group:
        raise ModelFormatError(
            f"conv_group={shown(config.conv_group)} does not divide hidden_size={config.hidden_size}"
        )
    _check_selector(config)


def _check_selector(config: _Fields) -> None:
    top = config.selector_top_k
    if (
        type(top) is not int
        or not 0 <= top <= (config.draft_vocab_size or config.vocab_size)
        or (top > 0) != (config.selector_rank > 0)
    ):
        raise ModelFormatError(f"selector_top_k={shown(top)} with selector_rank={config.selector_rank}")
    if config.selector_rank and config.draft_vocab_size is not None:
        raise ModelFormatError("a selector of published heads scores the target's vocabulary, not a draft vocabulary")
    if config.dspark is not None and (config.selector_rank or config.conv_taps):
        raise ModelFormatError("a DSpark head has neither a selector nor convolutions")
