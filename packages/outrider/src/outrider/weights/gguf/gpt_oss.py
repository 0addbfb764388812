"""gpt-oss in GGUF files."""

from __future__ import annotations

from typing import Any

from outrider.errors import ModelFormatError
from outrider.utils.json_files import shown
from outrider.weights.gguf.header import GGUFHeader
from outrider.weights.gguf.names import GGUFFamily
from outrider.weights.gguf.windows import PATTERN, read_windows

__all__ = ["GPT_OSS"]

_CALL = "<|call|>"
_SIZE, _BASE, _WINDOW_BASE = "expert_feed_forward_length", "rope.freq_base", "rope.freq_base_swa"


def _read(arch: str, header: GGUFHeader) -> dict[str, Any]:
    theta, own = (header.scalar(f"{arch}.{key}") for key in (_BASE, _WINDOW_BASE))
    if own is not None and own != theta:
        raise ModelFormatError(f"{arch}.{_WINDOW_BASE}={shown(own)} is not supported: only {_BASE}={shown(theta)} is")
    return (
        read_windows(arch, header, 2)
        | {
            "num_local_experts": header.scalar(f"{arch}.expert_count"),
            "num_experts_per_tok": header.scalar(f"{arch}.expert_used_count"),
            "intermediate_size": header.scalar(f"{arch}.{_SIZE}"),
            "attention_bias": "blk.0.attn_q.bias" in header.tensors,
        }
        | _ends(header)
    )


def _ends(header: GGUFHeader) -> dict[str, Any]:
    """Ends of an answer: that of the file, and the end of a tool call, which has no key."""
    tokens = list(header.metadata.get("tokenizer.ggml.tokens", ()))
    if _CALL not in tokens:
        return {}
    return {"eos_token_id": [header.scalar("tokenizer.ggml.eos_token_id"), tokens.index(_CALL)]}


GPT_OSS = GGUFFamily(
    family="gpt_oss",
    read=_read,
    keys=("expert_count", "expert_used_count", _SIZE, PATTERN, _WINDOW_BASE),
    tensors={"post_attention_norm": "post_attention_layernorm"},
    whole_names={"attn_sinks.weight": "self_attn.sinks"},
    reads_window=True,
)
