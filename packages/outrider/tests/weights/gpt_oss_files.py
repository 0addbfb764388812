"""A tiny gpt-oss: experts in floats, in blocks of MXFP4, and the GGUF file that llama.cpp's converter writes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider.verify.arrays import Floats
from tests import small_models
from tests.weights.files import SCORES, TOKEN_TYPES, VOCABULARY, add_keys, finish

D, SIZE, EXPERTS, WINDOW = 64, 96, 5, 12
ROPE: dict[str, Any] = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "truncate": False}
OPTIONS: dict[str, Any] = {
    **{"vocab_size": len(VOCABULARY), "hidden_size": D, "intermediate_size": SIZE, "num_hidden_layers": 2},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128},
    **{"num_local_experts": EXPERTS, "num_experts_per_tok": 2, "sliding_window": WINDOW},
    **{"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": None},
    "rope_parameters": ROPE | {"rope_theta": 150000.0, "beta_fast": 32.0, "beta_slow": 1.0},
}
VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])
IDS = small_models.ids(60, len(VOCABULARY))
Blocks = dict[str, tuple[Tensor, Tensor]]


def build() -> tuple[Any, Blocks]:
    """A model of transformers whose experts are numbers of MXFP4, and their blocks and scales by name."""
    torch.manual_seed(0)
    config = transformers.GptOssConfig(**OPTIONS)
    config._attn_implementation = "eager"
    model, blocks = transformers.GptOssForCausalLM(config).eval(), Blocks()
    for name, parameter in model.named_parameters():
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            count, inputs, rows = parameter.shape
            codes = torch.randint(0, 256, (count, rows, inputs // 32, 16), dtype=torch.uint8)
            scales = torch.randint(123, 126, (count, rows, inputs // 32), dtype=torch.uint8)
            pairs = torch.stack([VALUES[(codes & 15).long()], VALUES[(codes >> 4).long()]], -1).flatten(-2)
            numbers = pairs * torch.exp2(scales.float() - 127)[..., None]
            parameter.data, blocks[name] = numbers.flatten(-2).transpose(1, 2).contiguous(), (codes, scales)
        elif "norm" in name:
            parameter.data += 0.2 * torch.randn_like(parameter)
        else:
            size = 0.5 if parameter.dim() == 1 or "bias" in name else (8.0 if "embed" in name else 1.5) / 8
            parameter.data = size * torch.randn_like(parameter)
        parameter.data = parameter.data.bfloat16().float()
    return model, blocks


def write_all(folder: Path) -> Floats:
    """``floats``, ``blocks`` and ``m.gguf`` of one model in ``folder``; transformers' logits of ``IDS``."""
    model, blocks = build()
    model.save_pretrained(folder / "floats")
    model.save_pretrained(folder / "blocks")
    tensors = load_file(folder / "floats" / "model.safetensors")
    kept = {name: tensor.bfloat16() for name, tensor in tensors.items() if name not in blocks}
    for name, (codes, scales) in blocks.items():
        kept |= {f"{name}_blocks": codes, f"{name}_scales": scales}
    save_file(kept, folder / "blocks" / "model.safetensors", metadata={"format": "pt"})
    change_config(folder / "blocks", quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["x"]})
    write_gguf(folder / "m.gguf", tensors, blocks)
    with torch.inference_mode():
        found: Floats = model(torch.tensor([IDS])).logits[0].numpy()
    return found


def change_config(folder: Path, **changes: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def as_gguf(codes: Tensor, scales: Tensor) -> Tensor:
    """Bytes as GGUF has them: the scale, then codes 16 apart in a byte."""
    each = torch.stack([codes & 15, codes >> 4], -1).flatten(-2)
    return torch.cat([scales[..., None], each[..., :16] | each[..., 16:] << 4], -1).flatten(-2)


def write_gguf(path: Path, tensors: Mapping[str, Tensor], blocks: Blocks, **changes: Any) -> None:
    """As llama.cpp's converter writes the model."""
    writer = gguf.GGUFWriter(path, "gpt-oss")
    add_keys(writer, "gpt-oss", {
        "context_length": 128, "embedding_length": D, "block_count": 2, "feed_forward_length": SIZE,
        "attention.head_count": 4, "attention.head_count_kv": 2, "attention.key_length": 16,
        "attention.value_length": 16, "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 150000.0,
        "rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 32,
        "rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0, "expert_count": EXPERTS,
        "expert_used_count": 2, "expert_feed_forward_length": SIZE, "attention.sliding_window": WINDOW,
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": VOCABULARY, "tokenizer.ggml.scores": SCORES,
        "tokenizer.ggml.token_type": TOKEN_TYPES, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
    } | changes)  # fmt: skip
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.GPT_OSS, 2)
    for own, tensor in tensors.items():
        pair = "gate_up_proj" in own
        for part, kind in ((0, "gate_proj"), (1, "up_proj")) if pair else ((0, ""),):
            step = slice(part, None, 2) if pair else slice(None)
            stem = own.replace("gate_up_proj", kind).replace("_bias", ".bias")
            base, suffix = stem.removesuffix(".weight").removesuffix(".bias"), "bias" if ".bias" in stem else "weight"
            name = f"{names.get_name(base)}.{suffix}"
            if own in blocks:
                codes, scales = (each[:, step] for each in blocks[own])
                data = as_gguf(codes, scales).numpy()
                writer.add_tensor(name, data, raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            else:
                values = tensor[:, step] if pair else tensor
                writer.add_tensor(name, values.float().contiguous().numpy())
    finish(writer)
