"""A sound call of every function of the native library, whose parts can be changed by name.

Every array has memory of its own from the C library, exactly as long as it says, so that sanitizers see each step
beyond its end. Imports neither torch nor NumPy: it runs where the C library's memory is replaced.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from outrider.native.model_structs import (
    ADAPTED,
    BatchStruct,
    CacheStruct,
    ChainStruct,
    FeatureHeadStruct,
    LayerStruct,
    LowRankStruct,
    MLPStruct,
    ModelStruct,
    NormStruct,
    RecurrentStruct,
    ShardStruct,
    SharedStruct,
    SpanStruct,
    StatesStruct,
    TokenFound,
)
from outrider.native.structs import CopyStruct, FixedKeysStruct, RetrievalStruct, SourceStruct, WeightStruct

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INNER, VOCABULARY, POSITIONS, ROWS = 32, 2, 1, 16, 48, 40, 64, 3
WIDTH, KV_WIDTH = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM

_LIBC = ctypes.CDLL(None)
_LIBC.posix_memalign.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]


class SamplingStruct(ctypes.Structure):
    """``outrider_sampling``."""

    _fields_ = (("top_k", ctypes.c_int64), ("top_p", ctypes.c_double), ("temperature", ctypes.c_float),
                ("least", ctypes.c_float))  # fmt: skip


def array_of(kind: Any, count: int, values: Sequence[float] = (), fill: float = 0) -> Any:
    """A ctypes array over memory of its own, of exactly ``count`` items."""
    size = ctypes.sizeof(kind) * count
    found = ctypes.c_void_p()
    _LIBC.posix_memalign(ctypes.addressof(found), 64, max(size, 1))
    place = found.value
    if place is None:
        raise MemoryError(f"no memory for {size} bytes")
    made = (kind * count).from_address(place)
    ctypes.memset(place, 0, size)
    if issubclass(kind, ctypes._SimpleCData):
        for i in range(count):
            made[i] = values[i] if i < len(values) else fill
    return made


def floats(count: int, fill: float = 0.25) -> Any:
    return array_of(ctypes.c_float, count, fill=fill)


def ids(*values: int) -> Any:
    return array_of(ctypes.c_int64, len(values), values)


def at(thing: Any) -> int:
    return ctypes.addressof(thing)


class World:
    """Structs by name, and what they point to: ``change("batch.rows", -1)``, ``change("tokens.0", 2**40)``."""

    def __init__(self, library: ctypes.CDLL) -> None:
        made, self.context_out = ctypes.c_void_p(), ctypes.c_void_p()
        library.outrider_create(2, b"portable", ctypes.byref(made))
        self.context = made.value
        self.held: list[Any] = []
        self._make_model()
        self._make_cache()
        self._make_batch()
        self._make_recurrent()
        self._make_adapters()
        self._make_shards()
        self._make_chain()
        self._make_rest()

    def keep(self, thing: Any) -> int:
        self.held.append(thing)
        return at(thing)

    def weight(self, outputs: int, inputs: int) -> WeightStruct:
        panels = -(-outputs // 16)
        held = self.keep(floats(panels * inputs * 16, 0.01))
        return WeightStruct(layout=0, outputs=outputs, inputs=inputs, panel_bytes=inputs * 64, panels=held)

    def norm(self, width: int = HIDDEN) -> NormStruct:
        return NormStruct(weight=self.keep(floats(width, 1.0)))

    def _mlp(self, inner: int) -> MLPStruct:
        gate, up = self.weight(inner, HIDDEN), self.weight(inner, HIDDEN)
        return MLPStruct(gate=gate, up=up, down=self.weight(HIDDEN, inner))

    def _make_layer(self, wide: int = HIDDEN, **more: Any) -> Any:
        layers = array_of(LayerStruct, 1)
        layers[0] = LayerStruct(
            q=self.weight(WIDTH, wide), k=self.weight(KV_WIDTH, wide), v=self.weight(KV_WIDTH, wide),
            out=self.weight(HIDDEN, WIDTH), mlp=self._mlp(INNER), attention_norm=self.norm(), mlp_norm=self.norm(),
            q_norm=self.keep(floats(HEAD_DIM)), k_norm=self.keep(floats(HEAD_DIM)),
            rotations=self.keep(floats(POSITIONS * HEAD_DIM)), **more,
        )  # fmt: skip
        return layers

    def _model_of(self, layers: Any, **more: Any) -> ModelStruct:
        return ModelStruct(
            layers=1, hidden=HIDDEN, heads=HEADS, kv_heads=KV_HEADS, head_dim=HEAD_DIM, inner=INNER,
            positions=POSITIONS, eps=1e-5, layer=at(layers), final_norm=self.norm(), head=at(self.head), **more,
        )  # fmt: skip

    def _make_model(self) -> None:
        self.head, self.embedding = self.weight(VOCABULARY, HIDDEN), self.weight(VOCABULARY, HIDDEN)
        self.layers = self._make_layer()
        self.model = self._model_of(self.layers, embedding=at(self.embedding))
        self.experts = array_of(MLPStruct, 2)
        self.experts[0], self.experts[1] = self._mlp(INNER), self._mlp(INNER)
        self.sparse = self._make_layer(
            experts=2, experts_used=1, router=self.weight(2, HIDDEN), expert=at(self.experts)
        )

    def _make_cache(self) -> None:
        numbers = 8 * 4 * KV_WIDTH
        self.keys = array_of(ctypes.c_void_p, 1, [self.keep(floats(numbers))])
        self.values = array_of(ctypes.c_void_p, 1, [self.keep(floats(numbers))])
        self.cache = CacheStruct(
            type=0, block=4, rows=32, layers=1, kv_heads=KV_HEADS, head_dim=HEAD_DIM, keys=at(self.keys),
            values=at(self.values),
        )  # fmt: skip

    def _make_batch(self) -> None:
        self.tokens, self.positions, self.logit_rows = ids(1, 2, 3), ids(0, 1, 2), ids(2)
        self.feature_layers = array_of(ctypes.c_int32, 1, [1])
        self.table = array_of(ctypes.c_int32, 1, [3])
        self.mask = array_of(ctypes.c_uint8, 4, [1, 0, 1, 1])
        self.spans = array_of(SpanStruct, 1)
        self.spans[0] = SpanStruct(
            start=0, count=ROWS, mask_rows=2, mask_keys=2, entries=1, table=at(self.table), mask=at(self.mask)
        )
        self.batch = BatchStruct(
            rows=ROWS, spans=1, layers=1, features=1, logit_rows=1, tokens=at(self.tokens),
            positions=at(self.positions), span=at(self.spans), feature_layers=at(self.feature_layers),
            logit_row=at(self.logit_rows), feature=self.keep(floats(ROWS * HIDDEN)),
            hidden_out=self.keep(floats(HIDDEN)), logits=self.keep(floats(VOCABULARY)),
            residual=self.keep(floats(ROWS * HIDDEN)),
        )  # fmt: skip

    def _make_recurrent(self) -> None:
        """A layer with a state, and a gated one with a shared expert."""
        heads, dim, rows = 2, 16, 4  # of keys and of values
        values, channels = heads * dim, 3 * heads * dim
        self.recurrent = RecurrentStruct(
            qkv=self.weight(channels, HIDDEN), z=self.weight(values, HIDDEN), a=self.weight(heads, HIDDEN),
            b=self.weight(heads, HIDDEN), out=self.weight(HIDDEN, values), key_heads=heads, value_heads=heads,
            key_dim=dim, value_dim=dim, convolution=rows, taps=self.keep(floats(rows * channels)),
            decay=self.keep(floats(heads, -1.0)), dt_bias=self.keep(floats(heads)), norm=self.keep(floats(dim)),
        )  # fmt: skip
        self.hybrid = array_of(LayerStruct, 2)
        self.hybrid[0] = LayerStruct(
            recurrent=at(self.recurrent), mlp=self._mlp(INNER), attention_norm=self.norm(), mlp_norm=self.norm()
        )
        self.shared_expert = self._mlp(INNER)
        self.hybrid[1] = self._make_layer(
            experts=2, experts_used=1, router=self.weight(2, HIDDEN), expert=at(self.experts), gated=1,
            shared_expert=at(self.shared_expert), shared_expert_gate=self.keep(floats(HIDDEN)),
        )[0]  # fmt: skip
        self.hybrid[1].q = self.weight(2 * WIDTH, HIDDEN)
        slots, pending = 2, 3
        self.state = array_of(ctypes.c_void_p, 1, [self.keep(floats(slots * heads * dim * dim))])
        self.inputs = array_of(ctypes.c_void_p, 1, [self.keep(floats(slots * (rows - 1 + pending) * channels))])
        update = 2 * values + heads
        self.updates = array_of(ctypes.c_void_p, 1, [self.keep(floats(slots * pending * update))])
        self.states = StatesStruct(
            slots=slots, layers=1, key_heads=heads, value_heads=heads, key_dim=dim, value_dim=dim, convolution=rows,
            pending=pending, state=at(self.state), inputs=at(self.inputs), updates=at(self.updates),
        )  # fmt: skip
        self.path_mask = array_of(ctypes.c_uint8, 2, [1, 1])
        self.settled_span = array_of(SpanStruct, 1)
        self.settled_span[0] = SpanStruct(
            start=2, count=2, entries=1, table=at(self.table), slot=1, settled=1, kept=1, mask_rows=1, mask_keys=2,
            mask=at(self.path_mask),
        )  # fmt: skip

    def _make_adapters(self) -> None:
        sizes = dict(zip(ADAPTED, ((HIDDEN, WIDTH), (HIDDEN, KV_WIDTH), (HIDDEN, KV_WIDTH), (WIDTH, HIDDEN),
                                   (HIDDEN, INNER), (HIDDEN, INNER), (INNER, HIDDEN)), strict=True))  # fmt: skip
        self.adapter = array_of(LowRankStruct, len(ADAPTED))
        for i, (inputs, outputs) in enumerate(sizes.values()):
            down, up = self.keep(floats(inputs * 2)), self.keep(floats(outputs * 2))
            self.adapter[i] = LowRankStruct(rank=2, inputs=inputs, outputs=outputs, down=down, up=up)
        self.adapters = array_of(ctypes.c_void_p, ROWS, [at(self.adapter)] * ROWS)

    def _make_shards(self) -> None:
        self.shared_memory = array_of(ctypes.c_uint8, 64 + 64 + 2 * 64)
        self.shared = SharedStruct(rank=0, size=1, slot_bytes=64, memory=at(self.shared_memory))
        self.heads_bounds, self.hidden_bounds, self.inner_bounds = ids(0, KV_HEADS), ids(0, HIDDEN), ids(0, INNER)
        self.expert_bounds, self.vocabulary_bounds = ids(0, 0), ids(0, VOCABULARY)
        self.shard = ShardStruct(
            rank=0, size=1, group=HEADS // KV_HEADS, key_heads=at(self.heads_bounds), hidden=at(self.hidden_bounds),
            inner=at(self.inner_bounds), expert_inner=at(self.expert_bounds), vocabulary=at(self.vocabulary_bounds),
            context=at(self.shared),
        )  # fmt: skip

    def _make_chain(self) -> None:
        self.chain_layers = self._make_layer(2 * HIDDEN, embedding_norm=self.keep(floats(HIDDEN)))
        self.chain_model = self._model_of(self.chain_layers)
        self.fc = self.weight(HIDDEN, 2 * HIDDEN)
        self.fc_norms = array_of(ctypes.c_void_p, 2, [self.keep(floats(HIDDEN)) for _ in range(2)])
        self.chain_ids = array_of(ctypes.c_int64, VOCABULARY, range(VOCABULARY))
        self.feature_head = FeatureHeadStruct(
            layers=at(self.chain_model), fc=at(self.fc), fc_norm=at(self.fc_norms), embedding=at(self.embedding),
            ids=at(self.chain_ids), parts=2,
        )  # fmt: skip
        self.found = TokenFound(lambda token, score: 1)
        self.chain_sampling = SamplingStruct(top_k=5, top_p=0.9, temperature=1.0, least=-5.0)
        self.chain_keys = array_of(ctypes.c_uint32, 6, fill=214)  # with which token 0, -1 and 2**40 win all others
        self.chain = ChainStruct(
            rows=ROWS, levels=2, start=0, entries=1, table=at(self.table),
            features=self.keep(floats(ROWS * 2 * HIDDEN)), tokens=at(self.tokens), positions=at(self.positions),
            sampling=at(self.chain_sampling), keys=at(self.chain_keys), found=self.found,
            output=self.keep(floats(HIDDEN)), logits=self.keep(floats(VOCABULARY)),
        )  # fmt: skip

    def _make_rest(self) -> None:
        self.x, self.y = floats(ROWS * HIDDEN), floats(ROWS * VOCABULARY)
        self.fixed = FixedKeysStruct(
            type=0, heads=2, head_dim=16, length=5, keys=self.keep(floats(2 * 128 * 16)),
            values=self.keep(floats(2 * 128 * 16)),
        )  # fmt: skip
        self.frequencies = array_of(ctypes.c_double, 4, fill=0.5)
        self.text = array_of(ctypes.c_int32, 24, fill=7)
        self.order = array_of(ctypes.c_int32, 4, [16, 17, 18, 23])
        self.tail = array_of(ctypes.c_int32, 3, fill=7)
        self.places, self.matches = array_of(ctypes.c_int32, 4), array_of(ctypes.c_int32, 4)
        self._make_retrieval()
        self.data = floats(4 * HIDDEN)
        self.source = SourceStruct(type=0, target=0, rows=4, inputs=HIDDEN, outputs=4, data=at(self.data),
                                   data_bytes=4 * HIDDEN * 4)  # fmt: skip
        self.weight_out = WeightStruct()
        self.panels = floats(HIDDEN * 16)
        self.sampling = SamplingStruct(top_k=5, top_p=0.9, temperature=1.0, least=-5.0)
        self.sampling_keys = bytes(range(24))
        self.logits = array_of(ctypes.c_float, VOCABULARY, range(VOCABULARY))
        self.index, self.score, self.counts = ids(0, 0, 0), floats(4), ids(0)
        self.weights_out = floats(VOCABULARY)

    def _make_retrieval(self) -> None:
        self.answers = array_of(ctypes.c_int32, 6, [7, 7, 8, 7, 9, -1])
        self.edits = array_of(ctypes.c_int32, 3, [7, 8, -1])
        self.copies = array_of(CopyStruct, 2)
        self.copies[0] = CopyStruct(table=4, edited=1, match=3, end=1)
        self.copies[1] = CopyStruct(table=3, edited=0, match=2, end=18)
        self.certainty = array_of(ctypes.c_double, 6, [0.9, 0.1, 0.1, 0.5, 0.4, 0.3])
        self.kinds = array_of(ctypes.c_uint8, 5 * 17, [1] * 5 * 17)
        self.retrieval = RetrievalStruct(
            text=at(self.text), answers=at(self.answers), stored=at(self.text), order=at(self.order),
            edits=at(self.edits), copies=at(self.copies), tokens=24, answered=6, stored_tokens=24, places=4,
            edited_tokens=3, weights=at(self.certainty), kinds=at(self.kinds), num_copies=2, num_weights=2, tables=5,
            own_limit=16, other_limit=24, nodes=4, depth=4, branching=1, free_nodes=3, least=0.1, least_ever=0.01,
        )  # fmt: skip
        self.drafted, self.parents = array_of(ctypes.c_int32, 4), array_of(ctypes.c_int32, 4)
        self.shares, self.used = array_of(ctypes.c_double, 4), array_of(ctypes.c_int64, 25)

    def get(self, path: str) -> Any:
        thing: Any = self
        for name in path.split("."):
            thing = thing[int(name)] if name.isdecimal() else getattr(thing, name)
        return thing

    def change(self, path: str, value: Any) -> None:
        holder_path, _, name = path.rpartition(".")
        holder: Any = self.get(holder_path) if holder_path else self
        if callable(value):
            value = value(self.get(path))
        if name.isdecimal():
            holder[int(name)] = value
        else:
            setattr(holder, name, value)
