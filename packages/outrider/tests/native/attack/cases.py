"""What is wrong in each call: every case must be refused with a status, whatever else is in memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

HUGE, LONG, MOST = 2**31 - 1, 2**62, 2**63 - 1


def odd(address: Any) -> Any:
    """The same place, one byte further."""
    return int(address or 64) + 1


@dataclass(frozen=True)
class Case:
    """``changes`` of a sound call, and the status that it must return."""

    call: str
    changes: dict[str, Any]
    right: int = 2

    @property
    def name(self) -> str:
        shown = {k: "odd" if v is odd else v for k, v in self.changes.items()}
        return f"{self.call} " + " ".join(f"{key}={value}" for key, value in shown.items())


_FORWARD: dict[str, tuple[Any, ...]] = {
    "model.layers": (-1, 0),
    "model.hidden": (0, -1, 16, 64, HUGE),
    "model.heads": (0, -2, 3, 4, HUGE),
    "model.kv_heads": (0, -1, 2, HUGE),
    "model.head_dim": (0, -16, 8, 15, 32, 512, HUGE),
    "model.inner": (-1, 16, HUGE),
    "model.positions": (0, -1, 1),
    "model.layer": (None, odd),
    "model.embedding": (None,),
    "model.head": (None,),
    "model.final_norm.weight": (odd,),
    "layers.0.q.outputs": (0, -1, 16, 48, LONG),
    "layers.0.q.inputs": (0, 16, 64, LONG),
    "layers.0.q.panels": (None, odd),
    "layers.0.q.panel_bytes": (0, -1, 64, LONG),
    "layers.0.q.layout": (-1, 1, 2, 9),
    "layers.0.q.bias": (odd,),
    "layers.0.k.outputs": (32,),
    "layers.0.v.outputs": (32,),
    "layers.0.out.inputs": (64,),
    "layers.0.out.outputs": (64,),
    "layers.0.mlp.gate.outputs": (64, 16),
    "layers.0.mlp.up.outputs": (64, 16),
    "layers.0.mlp.down.inputs": (64, 16),
    "layers.0.mlp.down.outputs": (64,),
    "layers.0.window": (-1,),
    "layers.0.q_norm": (odd,),
    "layers.0.rotations": (odd,),
    "layers.0.attention_norm.weight": (odd,),
    "layers.0.experts": (2, -1, HUGE),
    "layers.0.embedding_norm": (64,),
    "embedding.inputs": (16, 64),
    "head.inputs": (16, 64),
    "head.panels": (None, odd),
    "cache.type": (-1, 2, 3),
    "cache.block": (0, -4),
    "cache.rows": (0, -1, 12),
    "cache.layers": (0, -1),
    "cache.kv_heads": (0, 2),
    "cache.head_dim": (8, 32),
    "cache.keys": (None,),
    "cache.values": (None,),
    "keys.0": (None, odd),
    "values.0": (None, odd),
    "batch.rows": (-1, 0, 2, 4, HUGE),
    "batch.spans": (-1, 0, -HUGE),
    "batch.span": (None, odd),
    "batch.layers": (-1, 0, 2, HUGE),
    "batch.features": (-1, HUGE),
    "batch.feature": (None, odd),
    "batch.feature_layers": (None, odd),
    "batch.logit_rows": (-1, HUGE, -HUGE),
    "batch.logit_row": (None, odd),
    "batch.positions": (None, odd),
    "batch.tokens": (None, odd),
    "batch.logits": (odd,),
    "batch.hidden_out": (odd,),
    "batch.residual": (odd,),
    "batch.inputs": (1,),
    "tokens.0": (-1, 40, 2**40, MOST, -MOST),
    "positions.1": (-1, 64, 2**40, MOST),
    "logit_rows.0": (-1, 3, 2**40, -MOST),
    "feature_layers.0": (-1, 2, HUGE),
    "spans.0.start": (-1, 2, 30, HUGE, -HUGE),
    "spans.0.count": (0, -1, 2, HUGE),
    "spans.0.table": (None, odd),
    "spans.0.entries": (0, -1, -HUGE),
    "table.0": (-1, 8, HUGE),
    "spans.0.mask_rows": (0, -1, 4, HUGE),
    "spans.0.mask_keys": (0, -1, 4, HUGE),
    "0": (None, odd),
    "1": (None, odd),
    "2": (None, odd),
    "3": (None, odd),
}  # fmt: skip
_OTHERS: dict[str, dict[str, tuple[Any, ...]]] = {
    "adapted": {
        "adapter.0.rank": (-1, HUGE), "adapter.0.inputs": (16, 64, LONG), "adapter.6.outputs": (16, 64, -1),
        "adapter.3.down": (None, odd), "adapter.3.up": (None, odd), "adapters.1": (odd,),
    },
    "sparse": {
        "sparse.0.experts_used": (0, -1, 3, HUGE), "sparse.0.experts": (1, 4), "sparse.0.expert": (None, odd),
        "sparse.0.router.outputs": (16,), "experts.0.gate.outputs": (16, 64), "experts.0.down.inputs": (16, 64),
        "experts.0.up.panels": (None, odd), "experts.0.down.outputs": (64,),
    },
    "hybrid": {
        "recurrent.key_heads": (0, -1, 1, 3, HUGE), "recurrent.value_heads": (0, -1, 3, 4, HUGE),
        "recurrent.key_dim": (0, -1, 8, 2048, HUGE), "recurrent.value_dim": (0, -1, 8, 2048, HUGE),
        "recurrent.convolution": (0, 1, 3, 9, -1, HUGE), "recurrent.taps": (None, odd), "recurrent.decay": (None, odd),
        "recurrent.dt_bias": (None, odd), "recurrent.norm": (None, odd), "recurrent.qkv.outputs": (64, 0, LONG),
        "recurrent.z.inputs": (16,), "recurrent.a.outputs": (1,), "recurrent.b.panels": (None, odd),
        "recurrent.out.inputs": (16, 64), "hybrid.0.recurrent": (odd,), "hybrid.0.embedding_norm": (64,),
        "hybrid.1.gated": (0,), "hybrid.1.shared_expert": (odd,), "hybrid.1.shared_expert_gate": (odd,),
        "shared_expert.gate.outputs": (16, 64), "shared_expert.down.inputs": (16,),
        "states.slots": (0, -1, 1), "states.layers": (0, -1), "states.key_heads": (1, 4), "states.value_heads": (1, 4),
        "states.key_dim": (8, 32), "states.value_dim": (8, 32), "states.convolution": (3, 5, -1),
        "states.pending": (0, -1, HUGE), "states.state": (None, odd), "states.inputs": (None, odd),
        "states.updates": (None, odd), "state.0": (None, odd), "inputs.0": (None, odd), "updates.0": (None, odd),
        "settled_span.0.slot": (-1, 2, HUGE), "settled_span.0.settled": (-1, 3, -HUGE),
        "settled_span.0.kept": (-2, 2, 3, HUGE, -HUGE), "settled_span.0.start": (5,),
        "settled_span.0.mask_keys": (0,), "path_mask.0": (0,),
    },
    "shard": {
        "shard.rank": (-1, 1, HUGE), "shard.size": (0, -1, HUGE), "shard.group": (0, -1, 3),
        "shard.hidden": (None, odd), "shard.inner": (None,), "shard.key_heads": (None,), "shard.vocabulary": (None,),
        "shard.expert_inner": (None,), "hidden_bounds.1": (16, -1, LONG), "heads_bounds.1": (0, 2, LONG),
        "inner_bounds.0": (8,), "vocabulary_bounds.1": (16, LONG), "batch.inputs": (),
    },
    "attend": {
        "0": (None, odd), "1": (None, odd), "2": (-1, 1, HUGE), "3": (0, -2, HUGE), "4": (0, -1, 2, HUGE),
        "5": (0, -1, 8, 512, HUGE),
        "7": (-1, HUGE), "8": (None, odd), "9": (None, odd), "10": (None, odd), "spans.0.count": (HUGE, -1, 0),
        "spans.0.entries": (0,),
        "cache.kv_heads": (2,), "cache.type": (2, 9), "table.0": (8, -1),
    },
    "attend_fixed": {
        "0": (None, odd), "1": (None, odd), "2": (-1, 2**21, MOST), "4": (None, odd), "5": (None, odd),
        "fixed.heads": (0, -1, HUGE),
        "fixed.head_dim": (0, 1024), "fixed.length": (0, -1, HUGE), "fixed.type": (2, -1), "fixed.keys": (None, odd),
        "fixed.values": (None, odd),
    },
    "linear": {
        "0": (None, odd), "1": (None, odd), "2": (-1, LONG, MOST), "3": (None, odd), "4": (None, odd),
        "head.outputs": (0, -1, LONG),
        "head.inputs": (0, -1, LONG), "head.panel_bytes": (0, 1), "head.layout": (2, 3, 77), "head.panels": (None, odd),
    },
    "rows": {"0": (None, odd), "1": (-1,), "2": (None, odd), "3": (None, odd), "tokens.0": (-1, 40, MOST)},
    "norm": {
        "0": (None, odd), "1": (-1, LONG), "2": (0, -1, LONG), "3": (None, odd), "4": (None, odd), "5": (1,),
        "7": (None, odd),
    },
    "rotations": {
        "0": (-1, LONG), "1": (0, -1, LONG), "2": (None, odd), "3": (None, odd),
        "frequencies.0": (float("nan"), float("inf"), -1.0, 1e300),
    },
    "draft_chain": {
        "0": (None, odd), "1": (None, odd), "2": (None, odd), "3": (None, odd), "chain.rows": (0, -1, HUGE),
        "chain.levels": (0, -1, 3, HUGE), "chain.start": (-1, 1, HUGE),
        "chain_sampling.temperature": (0.0, -1.0, float("nan"), float("inf")),
        "chain_sampling.top_p": (0.0, 2.0, float("nan")), "chain_sampling.top_k": (-1,),
        "chain.sampling": (None, odd),
        "chain.table": (None, odd), "chain.entries": (0, -1), "chain.features": (None, odd),
        "chain.tokens": (None, odd),
        "chain.positions": (None, odd), "chain.keys": (odd,), "chain.output": (None, odd), "chain.logits": (None, odd),
        "feature_head.layers": (None, odd), "feature_head.fc": (None, odd), "feature_head.ids": (odd,),
        "feature_head.embedding": (None, odd), "feature_head.embedding_norm": (odd,), "feature_head.more": (odd,),
        "feature_head.parts": (0, -1, 3, HUGE), "fc_norms.1": (None, odd),
        "fc.inputs": (32,), "chain_model.hidden": (0, -1, 64, HUGE), "chain_model.head": (None,),
        "chain_ids.0": (-1, 2**40), "tokens.1": (-1, 40), "positions.2": (-1, 64),
    },
    "plan_weight": {
        "0": (None, odd), "1": (None, odd), "source.rows": (0, -1, 5, LONG), "source.inputs": (0, -1, 33, LONG),
        "source.outputs": (0, -1, 5, LONG), "source.order": (odd,), "source.data": (None,),
        "source.data_bytes": (0, -1, 511, MOST), "source.type": (-1, 99, 2), "source.target": (-1, 6),
    },
    "pack": {
        "0": (None, odd), "1": (-1, 1, 2**62), "2": (0, -1, 2, HUGE, 2**62), "3": (None,), "4": (0, -1, 64, MOST),
    },
    "checksum": {"0": (None,), "1": (-1,), "2": (None, odd)},
    "first_largest": {
        "0": (None, odd), "1": (-1,), "2": (0, -1, LONG), "3": (1, -1), "4": (None, odd), "5": (None, odd),
        "6": (None, odd),
    },
    "most_likely": {
        "0": (None, odd), "1": (-1,), "2": (0, -1, LONG), "3": (1,), "4": (None, odd),
        "5": (0.0, float("nan"), float("inf")),
        "6": (0, -1), "7": (None, odd), "8": (None, odd), "9": (None, odd),
    },
    "gumbel": {"0": (None, odd), "1": (-1, LONG), "2": (None,), "3": (None, odd)},
    "gumbel_of": {"0": (None, odd), "1": (-1,), "2": (None, odd), "3": (None, odd), "x.0": (0.0, 1.0, float("nan"))},
    "gumbel_of_tokens": {
        "0": (None, odd), "1": (-1,), "2": (None, odd), "3": (None,), "4": (None, odd), "tokens.0": (-1, 2**32),
    },
    "log_weights": {
        "0": (None, odd), "1": (0, -1, LONG), "2": (None, odd), "3": (None, odd), "4": (None, odd), "5": (None, odd),
        "sampling.top_k": (-1,), "sampling.top_p": (0.0, 2.0, float("nan")),
        "sampling.temperature": (0.0, float("nan")), "sampling.least": (1.0, float("nan")),
    },
    "draw": {"0": (None, odd), "1": (0, LONG), "2": (None, odd), "3": (None,), "4": (None, odd), "5": (None, odd)},
    "sample": {
        "0": (None, odd), "1": (0, LONG), "2": (None,), "3": (None,), "4": (None,), "5": (None, odd), "6": (None, odd),
    },
    "create": {"0": (0, -1, 257, HUGE), "1": (None, b"", b"avx9000"), "2": (None, odd)},
    "destroy": {"0": (None, odd)},
}  # fmt: skip
_STATUS = {  # of what is not OUTRIDER_BAD_ARGUMENT
    **{f"plan_weight source.{key}={value}": 18 for key, value in (
        ("rows", 0), ("rows", -1), ("rows", 5), ("rows", LONG), ("inputs", 0), ("inputs", -1), ("inputs", 33),
        ("inputs", LONG), ("outputs", 0), ("outputs", -1), ("outputs", 5), ("outputs", LONG), ("data", None),
        ("data_bytes", 0), ("data_bytes", -1), ("data_bytes", 511), ("data_bytes", MOST), ("type", 2))},
    "plan_weight source.type=-1": 17, "plan_weight source.type=99": 17,
    **{f"pack {place}={value}": 18 for place, values in (
        (1, (-1, 1, 2**62)), (2, (0, -1, 2, HUGE, 2**62)), (3, (None,)), (4, (0, -1, 64, MOST))) for value in values},
}  # fmt: skip
_ELSEWHERE = [
    *(Case("suffix_array_search", {key: value}, -1) for key, values in {
        "0": (-1,), "1": (None, odd), "2": (-1, 0, 18), "3": (None, odd), "4": (-1,), "5": (None, odd), "6": (-1,),
        "7": (None, odd), "8": (None, odd), "order.0": (-1, 0, 15, 24, HUGE), "order.2": (-HUGE, HUGE),
    }.items() for value in values),
    *(Case("occurrences", {key: value}, -1) for key, values in {
        "0": (-1,), "1": (None, odd), "2": (-1,), "3": (None, odd), "4": (-1,), "5": (None, odd), "6": (None, odd),
    }.items() for value in values),
    *(Case("copied", {key: value}, -2) for key, values in {
        "0": (-1, 0), "1": (None, odd), "2": (-1,), "3": (-1, 25, MOST), "4": (None, odd),
    }.items() for value in values),
    *(Case("suffix_draft", {key: value}, -1) for key, values in {
        "0": (None, odd), "1": (None, odd), "2": (None, odd), "3": (None, odd), "4": (None, odd),
        "retrieval.text": (None, odd), "retrieval.tokens": (-1, 0), "retrieval.answers": (None, odd),
        "retrieval.answered": (-1,), "retrieval.stored": (None, odd), "retrieval.stored_tokens": (-1, 0, 18),
        "retrieval.order": (None, odd), "retrieval.places": (-1,), "order.0": (-HUGE, HUGE),
        "retrieval.edits": (None, odd), "retrieval.edited_tokens": (-1, 0), "retrieval.copies": (None, odd),
        "retrieval.num_copies": (-1, 17, HUGE), "retrieval.weights": (None, odd), "retrieval.kinds": (None,),
        "retrieval.num_weights": (-1, 0, 1, 256), "retrieval.tables": (-1, 0, 2), "retrieval.own_limit": (-1, 65, HUGE),
        "retrieval.other_limit": (-1, 65, HUGE), "retrieval.nodes": (-1, 1025, HUGE),
        "copies.0.table": (-1, 5, HUGE), "copies.0.match": (-1, 17, HUGE), "copies.0.end": (-1, 4, MOST),
        "copies.1.end": (-1, 25, MOST),
    }.items() for value in values),
    *(Case("suffix_draft", {f"retrieval.{key}": value}, 0) for key, value in (
        ("nodes", 0), ("depth", 0), ("depth", -1),
    )),
    *(Case("shared_gather", {key: value}, 1) for key, values in {
        "0": (None, odd), "1": (None,), "2": (None,), "3": (-1,), "shared.memory": (None, odd),
        "shared.slot_bytes": (0, -1), "shared.size": (0, -1), "shared.rank": (-1, 1),
    }.items() for value in values),
    *(Case("isa_state", {"0": name}, 0) for name in (None, b"", b"avx9000")),
    *(Case(name, {"0": value}, 0) for name in ("threads", "syncs") for value in (None, odd)),
    *(Case("forward", {"spans.0.entries": entries}, 0) for entries in (2, HUGE)),
    *(Case("hybrid", {"settled_span.0.kept": kept}, 0) for kept in (1, 0, -1)),
    Case("hybrid", {"settled_span.0.mask": None, "settled_span.0.kept": 2}, 0),
    Case("sparse", {"batch.layers": 0, "batch.features": 0}, 0),
    Case("suffix_array_search", {"0": 0, "1": None}, 0),
]  # fmt: skip


def _all() -> list[Case]:
    tables = {"forward": _FORWARD, **_OTHERS}
    found = [
        Case(name, {path: value})
        for name, table in tables.items()
        for path, values in table.items()
        for value in values
    ]
    return [Case(c.call, c.changes, _STATUS.get(c.name, c.right)) for c in found] + _ELSEWHERE


CASES = _all()
