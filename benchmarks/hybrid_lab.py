"""Trains the laboratory's hybrid, tests/data/lab/hybrid: Qwen3.5's architecture in small, with its draft head.

    python -m benchmarks.hybrid_lab FOLDER_OF_SOURCES --steps 900 --out FOLDER

The texts are the Python files below the folder, as a standard library; one in twenty, by a hash of its name, is held
out. Model and head learn together: the model the next token, the head the one after it. llama.cpp's converter makes
the GGUF file (its check of known tokenizers must be told that this one splits as "qwen35" does).
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.modeling_layers import MtpLayer
from transformers.models.qwen3_5 import modeling_qwen3_5

SKIPPED = {"test", "encodings", "idlelib", "turtledemo", "site-packages", "lib-dynload", "ensurepip"}
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)
SHAPE: dict[str, Any] = {
    **{"vocab_size": 4096, "hidden_size": 256, "intermediate_size": 768, "num_hidden_layers": 8, "head_dim": 64},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "tie_word_embeddings": True},
    **{"linear_key_head_dim": 64, "linear_value_head_dim": 64, "initializer_range": 0.02},
}
ROTATION = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
HEAD_NAMES = {
    **{"enorm": "pre_fc_norm_embedding", "hnorm": "pre_fc_norm_hidden", "eh_proj": "fc", "post_norm": "norm"},
    "mtp_block": "layers.0",
}
STEADY = 0.4  # of all steps, before the learning rate falls


@dataclass(frozen=True)
class Texts:
    """Texts by their names."""

    train: dict[str, str]
    held_out: dict[str, str]


def read_texts(folder: Path) -> Texts:
    """The sources below ``folder``, but tests, tables and the smallest."""
    texts = Texts({}, {})
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder)
        text = path.read_text(encoding="utf-8", errors="ignore")
        if SKIPPED & set(name.parts) or name.name.startswith("_sysconfigdata") or len(text) < 300:
            continue
        held_out = int(hashlib.sha256(str(name).encode()).hexdigest(), 16) % 20 == 7
        (texts.held_out if held_out else texts.train)[str(name)] = text
    return texts


def make_tokenizer(texts: Sequence[str], size: int) -> Tokenizer:
    """A byte-level BPE of ``size`` tokens that splits as Qwen3.5's does."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(SPLIT), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size - len(SPECIAL), initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def end_of(tokenizer: Tokenizer) -> int:
    """The token of an end of text."""
    end = tokenizer.token_to_id(SPECIAL[0])
    assert end is not None
    return end


def encode(tokenizer: Tokenizer, texts: Sequence[str]) -> Tensor:
    """int64 [n]: all texts, each behind an end of text."""
    end = end_of(tokenizer)
    rows = [np.array([end, *found.ids]) for found in tokenizer.encode_batch(list(texts))]
    return torch.from_numpy(np.concatenate(rows))


def shifted_sums(x: Tensor, weight: Tensor, bias: Any = None, activation: Any = None, **more: Any) -> Tensor:
    """transformers' ``causal_conv1d_fn`` of x [B, channels, n], as a sum over taps: many times as fast on CPUs."""
    taps, n = weight.shape[-1], x.shape[-1]
    padded = F.pad(x.transpose(1, 2), (0, 0, taps - 1, 0))
    terms = [padded[:, i : i + n] * weight[:, i].to(x.dtype) for i in range(taps)]
    return F.silu(torch.stack(terms).sum(0)).transpose(1, 2)


class Hybrid(nn.Module):
    """Model and draft head."""

    def __init__(self, end: int, **changes: Any) -> None:
        """``end``: the token of an end of text. ``changes`` to ``SHAPE``."""
        super().__init__()
        dims = SHAPE | changes
        config = Qwen3_5TextConfig(
            **dims, eos_token_id=end, pad_token_id=end, bos_token_id=None, rope_parameters=dict(ROTATION)
        )
        self.model = Qwen3_5ForCausalLM(config).float()
        own = copy.deepcopy(self.model.config)
        own.layer_types = ["full_attention"]
        self.head = MtpLayer(own, modeling_qwen3_5.Qwen3_5DecoderLayer, modeling_qwen3_5.Qwen3_5RMSNorm, 0)
        for module in self.head.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=dims["initializer_range"])

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Mean losses of model and head on tokens [B, n + 2]: of the next token, and of the one after it."""
        base, rows = self.model.model, tokens.shape[1] - 2
        hidden = base(input_ids=tokens[:, :rows], use_cache=False).last_hidden_state
        beside = base.embed_tokens(tokens[:, 1:-1])
        positions = torch.arange(1, rows + 1)[None].expand(len(tokens), -1)
        seen = torch.ones(rows, rows, dtype=torch.bool).tril()[None, None].expand(len(tokens), 1, -1, -1)
        out = self.head(beside, hidden, base.rotary_emb(beside, positions), seen, positions, None)
        return tuple(  # type: ignore[return-value]
            F.cross_entropy(self.model.lm_head(x).flatten(0, 1).float(), labels.flatten())
            for x, labels in ((hidden, tokens[:, 1:-1]), (out, tokens[:, 2:]))
        )


def optimizers(module: nn.Module, lr: float) -> list[torch.optim.Optimizer]:
    """Muon for matrices of layers, AdamW for the rest."""
    own = list(module.named_parameters())
    layered = [p for name, p in own if p.ndim == 2 and "embed" not in name and min(p.shape) > 16]
    others = [p for _, p in own if not any(p is other for other in layered)]
    muon = torch.optim.Muon(layered, lr=lr, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
    return [muon, torch.optim.AdamW(others, lr=lr, betas=(0.9, 0.95), weight_decay=0.0)]


def train(module: nn.Module, ids: Tensor, *, steps: int, batch: int, length: int, lr: float) -> dict[str, Any]:
    """Train; the learning rate falls to 0 behind the first ``STEADY`` of all steps. Returns tokens and last losses."""
    generator, made = torch.Generator().manual_seed(3), optimizers(module, lr)
    losses = (math.nan, math.nan)
    for step in range(steps):
        done = step / steps
        starts = torch.randint(len(ids) - length - 2, (batch,), generator=generator)
        tokens = torch.stack([ids[start : start + length + 2] for start in starts.tolist()])
        with torch.autocast("cpu", dtype=torch.bfloat16):
            main, ahead = module(tokens)
        (main + (0.5 if done < 0.6 else 1.0) * ahead).backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        rate = lr * min(1.0, (step + 1) / 60) * (1.0 if done < STEADY else (1 - done) / (1 - STEADY))
        for optimizer in made:
            for group in optimizer.param_groups:
                group["lr"] = rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        losses = (float(main.detach()), float(ahead.detach()))
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} of {steps}  loss {losses[0]:.3f}, of the head {losses[1]:.3f}", flush=True)
    return {"tokens": steps * batch * length, "losses": losses}


@torch.no_grad()
def held_out_losses(module: nn.Module, ids: Tensor, length: int, count: int = 64) -> tuple[float, float]:
    """Mean losses on passages spread over ``ids``."""
    starts = torch.linspace(0, len(ids) - length - 2, count).long().tolist()
    found = [module(torch.stack([ids[start : start + length + 2]])) for start in starts]
    return tuple(float(torch.stack(losses).mean()) for losses in zip(*found, strict=True))  # type: ignore[return-value]


def save(module: Hybrid, tokenizer: Tokenizer, folder: Path) -> None:
    """Write the model in bfloat16 as transformers does, with the head under its published names."""
    module.model.to(torch.bfloat16).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, value in module.head.state_dict().items():
        first, _, rest = name.partition(".")
        tensors[f"mtp.{HEAD_NAMES[first]}.{rest}"] = value.to(torch.bfloat16).contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"mtp_num_hidden_layers": 1}, indent=1))
    end, *others = SPECIAL
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, pad_token=end, additional_special_tokens=others
    ).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=900)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-3)
    args = parser.parse_args()
    modeling_qwen3_5.causal_conv1d_fn = shifted_sums
    torch.manual_seed(1)
    texts = read_texts(args.sources)
    tokenizer = make_tokenizer(list(texts.train.values()), SHAPE["vocab_size"])
    ids, held_out = (encode(tokenizer, list(part.values())) for part in (texts.train, texts.held_out))
    module = Hybrid(end_of(tokenizer))
    done = train(module, ids, steps=args.steps, batch=args.batch, length=args.length, lr=args.lr)
    done["held_out"] = held_out_losses(module, held_out, args.length)
    done["held_out_files"] = list(texts.held_out)
    save(module, tokenizer, args.out)
    (args.out / "training.json").write_text(json.dumps(done, indent=1))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
