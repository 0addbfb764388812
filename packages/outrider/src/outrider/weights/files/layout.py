"""The tensors a Llama-family checkpoint holds: canonical names and shapes, from the configuration alone."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from outrider.errors import ModelFormatError
from outrider.models.config import Experts, ModelConfig, RecurrentLayers
from outrider.models.latent import LatentAttention
from outrider.weights.files.gemma4 import layer_embedding_shapes, layer_shapes

_MOST_EXPERTS = 1024
_HEAD = "lm_head.weight"
_HARMLESS = re.compile(r"(^|\.)rotary_emb\.inv_freq$")  # old files store what the configuration already says


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Canonical tensor name to shape, in the order a forward pass needs them."""
    d = config.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config.vocab_size, d)}
    shapes |= layer_embedding_shapes(config)
    for i in range(config.num_layers):
        own = layer_shapes(config, i)
        parts = (_mixer(config, i) if config.has_mixer(i) else {}) | (_mlp(config, i) if config.has_mlp(i) else {})
        for name, shape in (parts | own).items():
            if shape:
                shapes[f"model.layers.{i}.{name}"] = shape
    shapes |= _norm(config, "model.norm")
    if not config.tie_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, d)
    return shapes | (_draft_head(config) if config.mtp_layers else {})


def _draft_head(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The head that predicts a token more: a layer with attention, of the kind of the model's last layer."""
    d, last = config.hidden_size, config.num_layers - 1
    shapes: dict[str, tuple[int, ...]] = {"mtp.fc.weight": (d, 2 * d)}
    for name in ("pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        shapes |= _norm(config, f"mtp.{name}")
    for name, shape in (_attention(config, last) | _mlp(config, last)).items():
        shapes[f"mtp.layers.0.{name}"] = shape
    return shapes | _norm(config, "mtp.norm")


def _mixer(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    recurrent = config.recurrent
    if recurrent is None or not config.is_recurrent(layer):
        return _attention(config, layer)
    shapes = _norm(config, "input_layernorm") | _recurrent(recurrent, config.hidden_size)
    return shapes | ({} if config.norms == "before" else _norm(config, "attention_output_norm"))


def _recurrent(recurrent: RecurrentLayers, d: int) -> dict[str, tuple[int, ...]]:
    heads, values, name, bias = recurrent.value_heads, recurrent.values, "linear_attn.", recurrent.projection_bias
    shapes: dict[str, tuple[int, ...]] = {}
    for projection, rows in recurrent.projections.items():
        shapes |= _linear(f"{name}{projection}", rows, d, bias)
    shapes[f"{name}conv1d.weight"] = (recurrent.channels, recurrent.convolution)
    if recurrent.convolution_bias:
        shapes[f"{name}conv1d.bias"] = (recurrent.channels,)
    if recurrent.kind != "short":
        shapes |= {f"{name}dt_bias": (heads,), f"{name}decay": (heads,)}
        shapes[f"{name}norm.weight"] = (values if recurrent.kind == "mamba2" else recurrent.value_dim,)
    if recurrent.kind == "mamba2":
        shapes[f"{name}skip"] = (heads,)
    return shapes | _linear(f"{name}out_proj", d, values, bias)


def _norm(config: ModelConfig, name: str) -> dict[str, tuple[int, ...]]:
    size: tuple[int, ...] = (config.hidden_size,)
    return {f"{name}.weight": size} | ({f"{name}.bias": size} if config.layer_norm else {})


def _linear(name: str, rows: int, columns: int, bias: bool) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (rows, columns)} | ({f"{name}.bias": (rows,)} if bias else {})


def _latent(config: ModelConfig, sizes: LatentAttention) -> dict[str, tuple[int, ...]]:
    d, heads, name, queries = config.hidden_size, config.num_heads, "self_attn.", "self_attn.q_proj"
    shapes = _norm(config, "input_layernorm")
    if sizes.query_rank:
        queries = f"{name}q_b_proj"
        shapes |= _linear(f"{name}q_a_proj", sizes.query_rank, d, config.attention_bias)
        shapes[f"{name}q_a_layernorm.weight"] = (sizes.query_rank,)
    shapes |= _linear(queries, heads * sizes.query_dim, sizes.query_rank or d, False)
    shapes |= _linear(f"{name}kv_a_proj_with_mqa", sizes.row, d, config.attention_bias)
    shapes |= {
        f"{name}kv_a_layernorm.weight": (sizes.rank,),
        f"{name}k_b_proj.weight": (heads * sizes.rank, sizes.plain),
        f"{name}v_b_proj.weight": (heads * sizes.value_dim, sizes.rank),
    }
    return shapes | _linear(f"{name}o_proj", d, heads * sizes.value_dim, config.output_bias)


def _attention(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    if config.latent is not None:
        return _latent(config, config.latent)
    d, head = config.hidden_size, config.head_dim_of(layer)
    q, kv = config.num_heads * head, config.kv_heads_of(layer) * head
    shapes = {} if config.norms == "after" else _norm(config, "input_layernorm")
    for name, rows in (("q", 2 * q if config.gated_attention else q), ("k", kv), ("v", kv)):
        shapes |= _linear(f"self_attn.{name}_proj", rows, d, config.attention_bias)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (q if config.whole_qk_norm else head,)
        shapes["self_attn.k_norm.weight"] = (kv if config.whole_qk_norm else head,)
    shapes |= _linear("self_attn.o_proj", d, q, config.output_bias)
    if config.attention_sinks:
        shapes["self_attn.sinks"] = (config.num_heads,)
    return shapes | ({} if config.norms == "before" else _norm(config, "attention_output_norm"))


def _mlp(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    experts = config.experts
    shapes = {} if config.norms == "after" else _norm(config, "post_attention_layernorm")
    if experts is not None and config.is_sparse(layer):
        shapes |= _experts(config, experts)
    if experts is None or experts.beside or not config.is_sparse(layer):
        shapes |= _projections(config, "mlp", config.inner_of(layer), config.mlp_bias)
    return shapes | ({} if config.norms == "before" else _norm(config, "mlp_output_norm"))


def _experts(config: ModelConfig, experts: Experts) -> dict[str, tuple[int, ...]]:
    shapes = _linear("mlp.gate", experts.count, config.hidden_size, experts.router_bias)
    shapes |= {"mlp.gate.e_score_correction_bias": (experts.count,)} if experts.score_bias else {}
    for expert in range(experts.count):
        shapes |= _projections(config, f"mlp.experts.{expert}", experts.size, config.mlp_bias or experts.bias)
    if experts.shared_size:
        shapes |= _projections(config, "mlp.shared_expert", experts.shared_size, config.mlp_bias)
        shapes |= {"mlp.shared_expert_gate.weight": (1, config.hidden_size)} if experts.shared_gate else {}
    return shapes


def _projections(config: ModelConfig, name: str, size: int, bias: bool) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {}
    for part in ("gate", "up") if config.gated else ("up",):
        shapes |= _linear(f"{name}.{part}_proj", size, config.hidden_size, bias)
    return shapes | _linear(f"{name}.down_proj", config.hidden_size, size, bias)


def check_counts(config: ModelConfig, tensors: int, where: Path) -> None:
    """Raise ``ModelFormatError`` for more layers than tensors, or too many experts, before names are built for them."""
    layers, experts = config.num_layers, config.experts.count if config.experts is not None else 0
    if layers > max(tensors, 1):
        raise ModelFormatError(f"{where}: {layers} layers are declared, but there are {tensors} tensors")
    if experts > _MOST_EXPERTS:
        raise ModelFormatError(f"{where}: {experts} experts are declared: at most {_MOST_EXPERTS} are supported")


def unread_tensors(expected: Collection[str], found: Iterable[str]) -> list[str]:
    """Sorted names in ``found`` of tensors that the model does not use; transformers ignores them too."""
    return sorted(name for name in found if name not in expected and name != _HEAD and not _HARMLESS.search(name))


def check_shapes(
    config: ModelConfig, expected: Mapping[str, tuple[int, ...]], found: Mapping[str, tuple[int, ...]], where: Path
) -> None:
    """Compare the shapes ``found`` in file headers with those that are expected, before anything is loaded.

    Raises ``ModelFormatError`` naming the first tensor that is missing or of another shape.
    """
    for name, shape in expected.items():
        if name not in found:
            raise ModelFormatError(f"{where}: tensor {name} is missing (expected shape {list(shape)})")
        if found[name] != shape:
            raise ModelFormatError(
                f"{where}: tensor {name} has shape {list(found[name])}, but the configuration says {list(shape)}"
            )
    embedding = config.vocab_size, config.hidden_size
    head = found.get(_HEAD, embedding)
    if head != embedding:
        raise ModelFormatError(f"{where}: tensor {_HEAD} has shape {list(head)}, which is not the embedding's")
