"""Options of a head that is trained: fields of a dataclass, and flags of the commands. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.drafters.heads.config import MOST_LAYERS, MOST_RANK
from outrider.errors import ConfigError

RULES: tuple[str, ...] = ("kl", "ce", "reverse-kl", "tv", "alpha", "adaptive")
"""Losses (``outrider_train.losses``)."""
HEAD_LOSSES = tuple(rule for rule in RULES if rule != "ce")  # heads learn from the target's distribution
LEAST_WINDOW = 4  # a head needs to attend to a whole draft


@dataclass(frozen=True)
class HeadOptions:
    """Options of a head. ``None``: chosen for the target."""

    kind: str
    """One of ``HEAD_KINDS``, or mtp."""
    heads: int = 4
    """Tokens guessed beyond the next one.

    Of medusa, blockwise, pass and dflash.
    """
    ttt_steps: int | None = None
    """Steps unrolled in training.

    Of eagle: 4 for EAGLE-3, 1 for EAGLE-1. Of mtp: 4.
    """
    depth: int = 5
    """Draft positions measured.

    Of eagle and mtp.
    """
    feature_layers: tuple[int, ...] | None = None
    """Layers that are fused, such as 2,15,27.

    Of EAGLE-3 and dflash.
    """
    normed: bool | None = None  # EAGLE-3.1, with a norm for each fused state and on outputs that are fed on
    window: int | None = None
    """Rows that its attention looks back at; 0: all.

    Of eagle and dflash.
    """
    layers: int = 2
    """Decoder layers.

    Of dflash.
    """
    selector_rank: int = 32
    """Width of the codebooks that make neighbours agree; 0: none.

    Of dflash.
    """
    draft_vocab: float | None = None
    """Tokens scored, the most frequent of the answers: a number, or a share to cover such as 0.99; 0: all."""
    own_lm_head: bool = False
    """Train an LM head too, rather than use the target's."""
    decay: float = 0.8
    """Weight of each position over that of the one before."""
    loss: str = "kl"
    """kl, adaptive, tv, alpha or reverse-kl: against the target's distribution."""
    fresh: bool = False
    """Random first weights, not the target's last layer, or the head in its files.

    Of eagle, dflash and mtp.
    """
    start_from: str | None = None
    """Folder of a head to train further, as on more data; dflash may begin with an EAGLE-3 head.

    Its shape and tokens go with its weights.
    """

    def __post_init__(self) -> None:
        for name in ("heads", "depth"):
            if not 1 <= getattr(self, name) <= 64:
                raise ConfigError(f"{name}={getattr(self, name)}: use 1 to 64")
        if self.ttt_steps is not None and not 1 <= self.ttt_steps <= 64:
            raise ConfigError(f"ttt_steps={self.ttt_steps}: use 1 to 64")
        if not 1 <= self.layers <= MOST_LAYERS:
            raise ConfigError(f"layers={self.layers}: use 1 to {MOST_LAYERS}")
        if not 0 <= self.selector_rank <= MOST_RANK:
            raise ConfigError(f"selector_rank={self.selector_rank}: use 0 to {MOST_RANK}")
        if not 0 < self.decay <= 1:
            raise ConfigError(f"decay={self.decay}: use above 0, at most 1")
        if self.window is not None and not (self.window == 0 or LEAST_WINDOW <= self.window < 2**31):
            raise ConfigError(f"window={self.window}: use {LEAST_WINDOW} or more, or 0 for all rows")
        if self.draft_vocab is not None and not (0 < self.draft_vocab < 1 or float(self.draft_vocab).is_integer()):
            raise ConfigError(f"draft_vocab={self.draft_vocab}: use a number of tokens, or a share between 0 and 1")
        if self.loss not in HEAD_LOSSES:
            raise ConfigError(f"loss={self.loss!r} is unknown for heads: use {', '.join(HEAD_LOSSES)}")
        if self.fresh and self.start_from:
            raise ConfigError(f"fresh=True and start_from={self.start_from}: weights begin in one way, leave out one")
