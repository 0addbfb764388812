"""Routers are computed as the file has them: rounded, they choose other experts."""

from __future__ import annotations

from outrider.cache import CacheSpec
from outrider.config import DTypeName
from outrider.models.config import Experts
from outrider.models.factory import make_model
from tests import small_models
from tests.small_models import feed


def test_routers_are_not_rounded() -> None:
    """All other matrices are bfloat16 numbers, so that only a rounded router can tell ``auto`` from float32.

    Every second expert is chosen for nearly the same rows as the one before it: in bfloat16 they tie.
    """
    c = small_models.config(experts=Experts(count=8, used=1, size=32, normalised=True), intermediate_size=32)
    weights = {name: w if w.dim() < 2 else w.bfloat16().float() for name, w in small_models.tensors(c).items()}
    routers = [w for name, w in weights.items() if name.endswith("mlp.gate.weight")]
    assert len(routers) == c.num_layers
    for rows in routers:
        rows[1::2] = rows[::2] * (1 + 2**-11)
        assert (rows[1::2].bfloat16() == rows[::2].bfloat16()).all()
    logits = []
    dtypes: list[DTypeName] = ["float32", "auto"]
    for dtype in dtypes:
        model = make_model(c, weights, dtype=dtype, kv_cache_dtype="float32")
        cache = model.new_cache(CacheSpec(max_seq_len=64))
        logits += feed(model, cache, (cache.allocate(), small_models.ids(40)))
    exact, found = logits
    assert abs(found - exact).max() <= 1e-6 * abs(exact).max()
