"""A head's configuration and the fingerprint of its target: the ``config.json`` beside its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from outrider.drafters.heads.calibration import Calibration
from outrider.drafters.heads.fingerprint import TargetFingerprint, check_positive
from outrider.drafters.heads.masked import MASKED, DSpark, check_masked
from outrider.errors import IncompatibleDraftError, ModelFormatError
from outrider.models.frequencies import inverse_frequencies
from outrider.utils.json_files import shown

HEAD_KINDS: tuple[str, ...] = ("medusa", "blockwise", "pass", "eagle", "eagle3", "dflash", "diffusion", "dspark")
_FUSED = ("eagle3", "dflash", *MASKED)  # read features of several target layers
_EAGLE3 = ("eagle3",)
_NORMS = ("fc_norm", "norm_before_fc", "norm_before_residual", "norm_output")
_ROWS_OF_TEXT = ("eagle3", "dflash")  # run their layers over every token of the text
_BLOCKS = ("dflash", *MASKED)  # guess a block in one pass
_LAYERED = ("eagle", *_FUSED)  # have decoder layers with a KV cache of their own
_LARGEST = 2**31 - 1
_MOST_HEADS = 256  # draft tokens: far more than any head drafts
MOST_LAYERS, MOST_RANK = 16, 1024  # limits of a block drafter
_SIZES = (
    "num_heads", "num_kv_heads", "head_dim", "intermediate_size", "max_seq_len", "num_layers", "selector_rank",
    "window",
)  # fmt: skip
_STEEPEST = 100  # limit of a calibration's slopes and offsets


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """Dimensions of a head. JSON-serialisable, and checked on construction."""

    kind: str  # one of HEAD_KINDS
    target: TargetFingerprint
    hidden_size: int  # the target's: the width of features and of the LM head's input
    vocab_size: int  # the target's
    heads: int = 0
    """medusa, blockwise, pass, dflash: draft tokens after the target's own next token. eagle: 0."""
    feature_layers: tuple[int, ...] = ()
    """eagle3, dflash: the layers, counted from 1, whose output is fused, ascending. Others, and published eagle3 heads
    that fuse none: (), the final norm's."""
    draft_vocab_size: int | None = None
    """Any kind but pass: the number of scored target ids, which the tensor ``d2t`` lists. None: all."""
    fc_norm: bool = False  # eagle3, dflash: each fused state goes through an RMS norm of its own first (EAGLE-3.1)
    norm_before_fc: bool = False  # eagle3: all fused states together go through one RMS norm first (published heads)
    norm_before_residual: bool = False  # eagle3: the normed feature, not the feature, is the residual stream
    norm_output: bool = False  # eagle3: the next level reads the normed output (EAGLE-3.1)
    window: int = 0  # eagle, dflash: rows that attention reads, the row itself included; 0: all
    own_lm_head: bool = False  # False: use the target's LM head (its rows ``d2t``), which is not stored
    num_heads: int = 0  # this and the next seven fields: the decoder layers of eagle and dflash
    num_kv_heads: int = 0
    head_dim: int = 0
    intermediate_size: int = 0
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] = field(default_factory=dict)  # eagle3: as in a model's config.json; empty: none
    rms_norm_eps: float = 1e-5
    max_seq_len: int = 2048
    num_layers: int = 1  # dflash: decoder layers
    selector_rank: int = 0  # dflash: width of the codebooks that score a token given the token before it; 0: none
    mask_token_id: int | None = None  # diffusion, dspark, like the next five fields: the input at unknown positions
    layer_windows: tuple[int, ...] = ()  # rows before the last token that each layer attends to; 0: all
    causal_windows: bool = False  # whether a block's rows attend only to earlier rows, in layers with a window
    conv_taps: int = 0  # taps of the convolutions around attention and MLP; 0: no convolution
    conv_group: int = 1  # channels that share a tap's weight
    selector_top_k: int = 0  # candidates per row that the selector scores
    dspark: DSpark | None = None  # dspark: its Markov head and confidence head
    acceptance: tuple[tuple[float, ...], ...] = ()
    """[position][rank]: how often the target's token had this rank among the guesses, on held-out text."""
    calibration: Calibration = ()  # any kind but pass: for greedy decoding
    training: Mapping[str, Any] = field(default_factory=dict)  # data, command, seed, metrics

    @property
    def has_layers(self) -> bool:
        """Whether the head consists of decoder layers, with a KV cache of its own."""
        return self.kind in _LAYERED

    @property
    def fuses_layers(self) -> bool:
        """Whether the head reads inner layers of the target and, beside them, a token's embedding."""
        return self.kind in _FUSED

    @property
    def block_rows(self) -> int:
        """diffusion, dspark: the rows of a block."""
        return self.heads if self.dspark is not None and self.dspark.from_anchor else self.heads + 1

    @property
    def scored(self) -> int:
        """The number of tokens that the head scores."""
        return self.draft_vocab_size or self.vocab_size

    def __post_init__(self) -> None:
        if self.kind not in HEAD_KINDS:
            raise ModelFormatError(f"kind={shown(self.kind)} is no head: use one of {', '.join(HEAD_KINDS)}")
        needed = ["hidden_size", "vocab_size"]
        if self.has_layers:
            needed += ["num_heads", "num_kv_heads", "head_dim", "intermediate_size", "max_seq_len", "num_layers"]
        if not self.kind.startswith("eagle"):
            needed += ["heads"]
        if self.draft_vocab_size is not None:
            needed += ["draft_vocab_size"]
        for name in needed:
            check_positive(name, getattr(self, name))
        self._check_types()
        self._check_together()

    def _check_types(self) -> None:
        """Check the types and ranges of all fields, even unused ones: the file is untrusted."""
        for name in _SIZES:
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= _LARGEST:
                raise ModelFormatError(f"{name}={shown(value)} is not an integer of at least 0: train the head again")
        if type(self.heads) is not int or not 0 <= self.heads <= _MOST_HEADS:
            raise ModelFormatError(f"heads={shown(self.heads)} is not 0 to {_MOST_HEADS}: train the head again")
        for name in ("rope_theta", "rms_norm_eps"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e18:
                raise ModelFormatError(f"{name}={shown(value)} is not a positive number: train the head again")
        for name in ("own_lm_head", *_NORMS, "causal_windows"):
            if not isinstance(getattr(self, name), bool):
                raise ModelFormatError(
                    f"{name}={shown(getattr(self, name))} is not true or false: train the head again"
                )
        try:
            angles = (
                inverse_frequencies(self.head_dim, self.rope_theta, self.rope_scaling) if self.rope_scaling else None
            )
            hash(tuple(self.rope_scaling.items()))
        except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError):
            raise ModelFormatError(f"rope_scaling={shown(self.rope_scaling)} is not understood") from None
        if angles is not None and not bool(np.isfinite(angles).all()):
            raise ModelFormatError(f"rope_scaling={shown(self.rope_scaling)} makes frequencies that are no numbers")
        if not isinstance(self.training, Mapping):
            raise ModelFormatError("training is no object: train the head again")
        if not all(0 <= chance <= 1 for row in self.acceptance for chance in row):
            raise ModelFormatError("acceptance holds numbers that are no probabilities: train the head again")
        for a, b, c, d in self.calibration:
            if not (0 < a <= _STEEPEST and 0 < c <= _STEEPEST and abs(b) <= _STEEPEST and abs(d) <= _STEEPEST):
                raise ModelFormatError(
                    f"calibration={shown(self.calibration)}: slopes are above 0, and all up to {_STEEPEST}"
                )

    def _check_together(self) -> None:
        t = self.target
        for name in ("hidden_size", "vocab_size"):
            if getattr(self, name) != getattr(t, name):
                raise ModelFormatError(
                    f"{name}={getattr(self, name)} is not the target's {shown(getattr(t, name))}: train the head again"
                )
        if self.scored > self.vocab_size:
            raise ModelFormatError(f"draft_vocab_size={self.scored} is more than vocab_size={self.vocab_size}")
        unfused = self.kind == "eagle3" and self.own_lm_head and not (self.fc_norm or self.norm_before_fc)
        if self.fuses_layers and not self.feature_layers and not unfused:
            raise ModelFormatError(f"feature_layers=() names no layer: {self.kind} fuses at least one")
        if not self.fuses_layers and self.feature_layers:
            raise ModelFormatError(
                f"feature_layers={shown(self.feature_layers)}: only {' and '.join(_FUSED)} read inner layers"
            )
        if self.kind not in _BLOCKS and (self.num_layers != 1 or self.selector_rank):
            raise ModelFormatError(
                f"num_layers={self.num_layers}, selector_rank={self.selector_rank}: only dflash has them"
            )
        check_masked(self)
        some = {"fc_norm": _ROWS_OF_TEXT, "window": ("eagle", *_ROWS_OF_TEXT)}
        for name, kinds in (dict.fromkeys((*_NORMS, "rope_scaling"), _EAGLE3) | some).items():
            if getattr(self, name) and self.kind not in kinds:
                raise ModelFormatError(f"{name}={getattr(self, name)}: only {' and '.join(kinds)} heads have it")
        if self.norm_before_fc and self.fc_norm:
            raise ModelFormatError("norm_before_fc and fc_norm: a head has one of them")
        if self.num_layers > MOST_LAYERS or self.selector_rank > MOST_RANK:
            raise ModelFormatError(
                f"num_layers={self.num_layers}, selector_rank={self.selector_rank}: at most {MOST_LAYERS}, {MOST_RANK}"
            )
        for layer in self.feature_layers:
            if not 0 < layer <= t.num_layers:
                raise ModelFormatError(
                    f"feature_layers={shown(self.feature_layers)}: the target has {t.num_layers} layers"
                )
        if self.has_layers and (self.num_heads % self.num_kv_heads or self.head_dim % 2):
            raise ModelFormatError(
                f"num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}, head_dim={self.head_dim} make no "
                "attention layer"
            )

    def fits(self, target: TargetFingerprint) -> bool:
        """Whether this head was trained for ``target``; names are not compared."""
        return dataclasses.replace(target, name="") == dataclasses.replace(self.target, name="")

    def check_target(self, found: TargetFingerprint) -> None:
        """Raise ``IncompatibleDraftError`` unless this head was trained for ``found``."""
        if not self.fits(found):
            raise IncompatibleDraftError(
                f"this {self.kind} head was trained for another target ({self.target.facts()}), not for the one loaded "
                f"({found.facts()}): use its own, or train one with `outrider train {self.kind.rstrip('3')}`"
            )

    def to_json(self) -> dict[str, Any]:
        """The JSON object of ``config.json``."""
        return {"format": 1, **dataclasses.asdict(self), "training": dict(self.training)}

    @classmethod
    def from_json(cls, raw: Mapping[str, Any]) -> HeadConfig:
        """The inverse of ``to_json``. Raises ``ModelFormatError`` naming the wrong field."""
        if raw.get("format") != 1:
            raise ModelFormatError(f"format={shown(raw.get('format'))} of a head is unknown: this version reads 1")
        names = {f.name for f in dataclasses.fields(cls)}
        unknown = sorted(raw.keys() - names - {"format"})
        if unknown:
            raise ModelFormatError(f"{shown(unknown[0])} is no field of a head: it was made by another version")
        values = {key: value for key, value in raw.items() if key in names}
        try:
            values["target"] = TargetFingerprint(**values["target"])
            values["dspark"] = DSpark(**values["dspark"]) if values.get("dspark") is not None else None
            values["feature_layers"] = tuple(map(int, values.get("feature_layers", ())))
            values["layer_windows"] = tuple(map(int, values.get("layer_windows", ())))
            values["calibration"] = tuple(
                (float(a), float(b), float(c), float(d)) for a, b, c, d in values.get("calibration", ())
            )
            values["acceptance"] = tuple(tuple(map(float, row)) for row in values.get("acceptance", ()))
            return cls(**values)
        except (TypeError, ValueError, KeyError) as error:
            raise ModelFormatError(f"this is no head's configuration ({shown(str(error))}): train it again") from None
