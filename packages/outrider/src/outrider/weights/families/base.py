"""A family of models: its defaults, the keys it reads, and how its layers differ from Llama's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from outrider.errors import ModelFormatError
from outrider.models.config import ModelConfig
from outrider.utils.json_files import shown
from outrider.weights.paired_experts import Pairing, stacked_name
from outrider.weights.values import positive, positive_integer

__all__ = [
    "COMMON",
    "GELU_TANH",
    "SILU",
    "Family",
    "Raw",
    "Windows",
    "attention_biases",
    "biases",
    "flag",
    "kinds_of",
    "layer_kinds",
    "num_layers",
    "optional",
    "pattern",
    "words",
]

Raw = Mapping[str, Any]
"""``config.json``, with the family's defaults for keys that are absent."""

COMMON: dict[str, Any] = {
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": None,
    "hidden_size": 4096,
    "rms_norm_eps": 1e-6,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
}


def _nothing(_: Any) -> dict[str, Any]:
    return {}


SILU = ("silu", "swish", None)
GELU_TANH = ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", None)
"""Names of an activation function in transformers, and null, which older versions wrote."""

Windows = Literal["none", "all", "by kind", "of its own"]
"""Layers whose attention reads ``sliding_window`` in transformers: none, all, those that ``layer_types`` names, or
those that ``Family.read`` gives."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """A family's differences from Llama."""

    name: str
    """``model_type`` in ``config.json``."""
    architecture: str
    defaults: Raw
    """transformers' values of absent keys. A key that is null is present."""
    read: Callable[[Raw], dict[str, Any]] = _nothing
    """Returns the fields of ``ModelConfig`` beyond those of every family."""
    write: Callable[[ModelConfig], dict[str, Any]] = _nothing
    """Returns the keys of ``config.json`` from which ``read`` makes these fields."""
    keys: frozenset[str] = frozenset()
    """Names of the keys that ``read`` reads."""
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=lambda: {"hidden_act": SILU})
    """Keys that transformers reads, with their supported values; other values are refused."""

    eps: str = "rms_norm_eps"
    """The key of the norms' epsilon."""
    windows: Windows = "none"
    """The layers that have a window."""
    theta: float = 10000.0
    """The base of the rotary frequencies if the file has none."""
    rope_types: tuple[str, ...] = ("default", "linear", "dynamic", "llama3", "yarn")
    partial: bool = False
    """``partial_rotary_factor`` is read."""
    rope_otherwise: Raw = field(default_factory=dict)
    """The rotation of files that say none; empty: it is not scaled."""
    rope_by_kind: float | None = None
    """The base in layers with a window, which the file gives separately; None: all layers rotate alike."""

    grows_base: bool = False
    """Dynamic scaling with ``alpha`` multiplies the base by a power of it, at every length."""

    rename: Mapping[str, str] = field(default_factory=dict)
    """Canonical names of a layer's tensors to the family's own. Several with one name are fused, one after another."""
    rename_top: Mapping[str, str] = field(default_factory=dict)
    """The same for the names of tensors outside the layers, without their suffixes."""
    prefix: str = ""
    """What the names of files may begin with in place of ``model``."""
    interleaved: bool = False
    """Rotary pairs are adjacent rows of q and k."""
    norm_offset: float = 0.0
    """Added to the weights of norms in the file."""
    has_draft_head: bool = False
    """Files may hold a head that predicts a token more (``mtp.*``), of the kind of the last layer."""
    paired_experts: Pairing = ""
    """Experts are stacked as ``weights.paired_experts`` says."""
    may_stack_experts: bool = False
    """Files may hold the experts of a layer as ``experts.gate_up_proj`` and ``experts.down_proj``, without suffix."""
    experts: str = "mlp.experts"
    """The name of experts in a layer."""

    @property
    def own_code(self) -> tuple[str, str]:
        """Classes that ``auto_map`` may name: transformers has them."""
        return self.architecture, f"{self.architecture.removesuffix('ForCausalLM')}Config"

    def names_in(self, found: Collection[str]) -> Callable[[str], str]:
        """A function from canonical names to those of a file that has the tensors ``found``."""

        def paired(canonical: str) -> str:
            stacked = stacked_name(canonical, found)
            return self.own_name(canonical) if stacked is None else stacked.replace("mlp.experts", self.experts)

        def name(canonical: str) -> str:
            before, stacked, rest = canonical.partition(".mlp.experts.")
            if stacked and f"{before}.{self.experts}.gate_up_proj" in found:
                return f"{before}.{self.experts}.{'down' if 'down_proj' in rest else 'gate_up'}_proj"
            return self.own_name(canonical)

        if self.paired_experts:
            return paired
        if self.prefix and any(own.startswith(f"{self.prefix}.") for own in found):
            return lambda canonical: _with_prefix(self.prefix, self.own_name(canonical))
        return name if self.may_stack_experts else self.own_name

    def own_name(self, canonical: str) -> str:
        """The name that the family's files have for ``model.layers.3.mlp.gate_proj.weight``."""
        if not canonical.startswith(("model.layers.", "mtp.layers.")):
            stem, _, kind = canonical.rpartition(".")
            return f"{self.rename_top[stem]}.{kind}" if stem in self.rename_top else canonical
        head, layer, rest = canonical.split(".", 3)[:2], canonical.split(".", 3)[2], canonical.split(".", 3)[3]
        stem, _, kind = rest.rpartition(".")
        for known, own in self.rename.items():
            if rest == known:  # a tensor that is neither weight nor bias
                return ".".join([*head, layer, own])
            if stem == known or ("*" in known and (stem := _renamed(stem, known, own)) != rest.rpartition(".")[0]):
                return ".".join([*head, layer, own if "*" not in known else stem, kind])
        return canonical


def _with_prefix(prefix: str, name: str) -> str:
    return f"{prefix}.{name.removeprefix('model.')}" if name.startswith("model.") else name


def _renamed(stem: str, known: str, own: str) -> str:
    """``stem`` renamed: ``a.7.b`` by ``a.*.b`` and ``x.*.y`` is ``x.7.y``. Unchanged if it does not match."""
    before, after = known.split("*")
    if not (stem.startswith(before) and stem.endswith(after)):
        return stem
    return own.replace("*", stem.removeprefix(before).removesuffix(after))


def words(text: str) -> frozenset[str]:
    """The words of ``text``."""
    return frozenset(text.split())


def flag(raw: Raw, key: str) -> bool:
    """``raw[key]``, true or false. Raises ``ModelFormatError`` for another value."""
    value = raw[key]
    if not isinstance(value, bool):
        raise ModelFormatError(f"{key}={shown(value)} is neither true nor false: correct it")
    return value


def optional(raw: Raw, key: str) -> float | None:
    """A positive number, or None where it is null."""
    return None if raw[key] is None else positive(raw, key)


def biases(raw: Raw) -> dict[str, Any]:
    """``attention_bias`` on all four projections, and ``mlp_bias`` where the family has it."""
    return attention_biases(raw) | {"mlp_bias": "mlp_bias" in raw and flag(raw, "mlp_bias")}


def attention_biases(raw: Raw) -> dict[str, Any]:
    """``attention_bias`` on all four projections, in a family without ``mlp_bias``."""
    attention = flag(raw, "attention_bias")
    return {"attention_bias": attention, "output_bias": attention}


def num_layers(raw: Raw) -> int:
    """``num_hidden_layers``, bounded: damaged files may claim any number, and lists of that length are made."""
    layers = positive_integer(raw, "num_hidden_layers")
    if layers > _MOST_LAYERS:
        raise ModelFormatError(f"num_hidden_layers={layers}: {layers} layers are declared, more than any model has")
    return layers


def layer_kinds(raw: Raw) -> list[str] | None:
    """``layer_types``, checked; None where it is absent."""
    kinds, layers = raw.get("layer_types"), num_layers(raw)
    if kinds is not None and (
        not isinstance(kinds, list) or len(kinds) != layers or not all(kind in _KINDS for kind in kinds)
    ):
        raise ModelFormatError(f"layer_types={shown(kinds)} does not name the kind of each of {layers} layers")
    return kinds


def pattern(raw: Raw, full_every: int) -> dict[str, Any]:
    """The windowed layers: those of ``layer_types``, or all but every n-th."""
    kinds = layer_kinds(raw) or [_KINDS[(i + 1) % full_every != 0] for i in range(num_layers(raw))]
    windowed = tuple(kind == _KINDS[1] for kind in kinds)
    if not any(windowed):
        return {"sliding_window": None}
    return {"sliding_window": positive_integer(raw, "sliding_window"), "window_layers": windowed}


def kinds_of(config: ModelConfig) -> list[str]:
    """``layer_types`` of a configuration."""
    return [_KINDS[config.window(i) is not None] for i in range(config.num_layers)]


_MOST_LAYERS = 10_000
_KINDS = ("full_attention", "sliding_attention")
