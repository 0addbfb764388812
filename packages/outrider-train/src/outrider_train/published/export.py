"""EAGLE-3 heads in the layout that the ``speculators`` library reads and vLLM serves.

Differences from our own folder: the target's embedding and the draft's LM head lie in the file; the vocabulary maps are
``d2t`` (int64 [draft], target id minus draft id) and ``t2d`` (bool [target]); layers are counted as vLLM counts them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import TargetFingerprint, fingerprint_rows
from outrider.errors import ConfigError
from outrider.models.config import ModelConfig
from outrider.weights.families import FAMILIES
from outrider.weights.folder import open_checkpoint
from outrider.weights.hub.convert_tokenizer import write_json
from outrider_torch.heads import load_head
from outrider_torch.heads.checkpoint import write_tensors, write_whole
from outrider_torch.heads.eagle import EagleLayer
from outrider_torch.models.stored import torch_tensors

_STEPS = 5  # default number of tokens that the exported head proposes


def to_speculators(head: Path, target: Path, out: Path, verifier: str) -> int:
    """Write the head in ``head``, trained for the model in ``target``, to ``out``; ``verifier`` names the target there.

    Returns the bytes of the weights. Raises ``ConfigError`` for heads of another kind, ``IncompatibleDraftError`` for a
    head of another target.
    """
    module, config = load_head(head, torch.bfloat16)
    if not isinstance(module, EagleLayer) or config.kind != "eagle3":
        raise ConfigError(f"{head} holds a {config.kind} head: only eagle3 has a layout that speculators reads")
    if len(config.feature_layers) != 3:
        raise ConfigError(f"{head} fuses {len(config.feature_layers)} layers: speculators reads heads that fuse 3")
    checkpoint = open_checkpoint(target)
    own = torch_tensors(checkpoint)
    embedding = own["model.embed_tokens.weight"].to(torch.bfloat16)
    rows = embedding[fingerprint_rows(config.vocab_size)]
    config.check_target(TargetFingerprint.of(checkpoint.config, rows, target.name))
    full = embedding if checkpoint.config.tie_embeddings else own["lm_head.weight"]
    ids = torch.arange(config.vocab_size) if module.draft_ids is None else module.draft_ids
    scores = full[ids] if module.lm_head is None else module.lm_head.weight
    tensors: dict[str, Tensor] = {k: v for k, v in module.state_dict().items() if k not in ("d2t", "lm_head.weight")}
    tensors["embed_tokens.weight"] = embedding.clone()
    tensors["lm_head.weight"] = scores.to(torch.bfloat16).contiguous()
    tensors["d2t"] = ids - torch.arange(len(ids))
    tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill(0, ids, True)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot make {out}: {error.strerror}") from None
    write_tensors(out / "model.safetensors", tensors)
    write_whole(
        out / "config.json", lambda path: write_json(path, speculators_config(config, checkpoint.config, verifier))
    )
    return (out / "model.safetensors").stat().st_size


def speculators_config(config: HeadConfig, target: ModelConfig, verifier: str) -> dict[str, Any]:
    """``config.json`` of an ``Eagle3SpeculatorConfig``."""
    layer = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": 1,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_seq_len,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if config.window:
        layer |= {"sliding_window": config.window, "layer_types": ["sliding_attention"]}
    proposal = {
        "proposal_type": "greedy",
        "speculative_tokens": _STEPS,
        "verifier_accept_k": 1,
        "accept_tolerance": 0.0,
    }
    return {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "draft_vocab_size": config.scored,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": config.fc_norm,
        "norm_output": config.norm_output,
        "target_hidden_size": None,
        "eagle_aux_hidden_state_layer_ids": list(config.feature_layers),
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal],
            "verifier": {"name_or_path": verifier, "architectures": [FAMILIES[target.family].architecture]},
        },
        "transformer_layer_config": layer,
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
    }
