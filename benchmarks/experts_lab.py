"""Trains a small mixture of experts whose routers have learned, for ``benchmarks.experts``: Qwen3-MoE, 64 experts of 8.

    python -m benchmarks.experts_lab FOLDER_OF_SOURCES --steps 500 --out FOLDER

Texts, tokenizer and optimizers are those of ``benchmarks.hybrid_lab``. Experts are kept in balance by the loss that
Qwen3-MoE is published with, over all tokens of a step.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

from benchmarks.hybrid_lab import SPECIAL, encode, end_of, held_out_losses, make_tokenizer, read_texts, train

SHAPE: dict[str, Any] = {
    **{"vocab_size": 4096, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "head_dim": 32},
    **{"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 2048},
    **{"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 64, "norm_topk_prob": True},
    **{"tie_word_embeddings": True, "router_aux_loss_coef": 0.01},
}


def apart(experts: Any, rows: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    """transformers' experts with matrices that are taken apart once, whose gradients are then not summed expert by
    expert over zeros of all: several times as fast on CPUs."""
    order = chosen.flatten().argsort(stable=True)
    sizes = torch.bincount(chosen.flatten(), minlength=experts.num_experts).tolist()
    sorted_rows = rows[order // chosen.shape[1]].split(sizes)
    matrices = zip(sorted_rows, experts.gate_up_proj.unbind(), experts.down_proj.unbind(), strict=True)
    found = []
    for own, gate_up, down in matrices:
        gate, up = nn.functional.linear(own, gate_up).chunk(2, dim=-1)
        found.append(nn.functional.linear(experts.act_fn(gate) * up, down))
    weighted = torch.cat(found) * weights.flatten()[order, None]
    return torch.zeros_like(rows).index_add(0, order // chosen.shape[1], weighted.to(rows.dtype))


class Mixture(nn.Module):
    """The model, as ``hybrid_lab.train`` takes it."""

    def __init__(self, end: int, **changes: Any) -> None:
        """``end``: the token of an end of text. ``changes`` to ``SHAPE``."""
        super().__init__()
        config = Qwen3MoeConfig(**SHAPE | changes, eos_token_id=end, pad_token_id=end, bos_token_id=None)
        ALL_EXPERTS_FUNCTIONS.register("apart", apart)
        self.model = Qwen3MoeForCausalLM(config).float()
        self.model.set_experts_implementation("apart")

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """The mean loss on tokens [B, n + 2] with that of balance, and the mean loss of balance alone."""
        found = self.model(input_ids=tokens, labels=tokens, output_router_logits=True, use_cache=False)
        return found.loss, 0 * found.aux_loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--experts", type=int, default=64)
    parser.add_argument("--tokenizer", type=Path, help="a tokenizer.json to take; otherwise one is made")
    args = parser.parse_args()
    torch.manual_seed(1)
    texts = read_texts(args.sources)
    if args.tokenizer is None:
        tokenizer = make_tokenizer(list(texts.train.values()), SHAPE["vocab_size"])
    else:
        tokenizer = Tokenizer.from_file(str(args.tokenizer))
    ids, held_out = (encode(tokenizer, list(part.values())) for part in (texts.train, texts.held_out))
    size = SHAPE["num_experts"] * SHAPE["moe_intermediate_size"] // args.experts
    module = Mixture(end_of(tokenizer), num_experts=args.experts, moe_intermediate_size=size)
    done = train(module, ids, steps=args.steps, batch=args.batch, length=args.length, lr=args.lr)
    done["held_out"] = held_out_losses(module, held_out, args.length, count=16)[0]
    module.model.to(torch.bfloat16).save_pretrained(args.out)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=SPECIAL[0], pad_token=SPECIAL[0], additional_special_tokens=[*SPECIAL[1:]]
    ).save_pretrained(args.out)
    (args.out / "training.json").write_text(json.dumps(done, indent=1))
    print(json.dumps(done))


if __name__ == "__main__":
    main()
