"""Which tensors a configuration implies, and what is said where a file has others."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import ModelFormatError
from outrider.weights.files.layout import check_shapes, expected_shapes, unread_tensors
from tests import small_models

CONFIG = small_models.config()  # 6 heads, 2 of keys and values, of 8 dimensions; hidden size 48
LAYER = "model.layers.1."


def test_shapes_of_grouped_query_attention() -> None:
    shapes = expected_shapes(CONFIG)
    assert {name: shapes[f"{LAYER}self_attn.{name}_proj.weight"] for name in "qkvo"} == {
        "q": (48, 48), "k": (16, 48), "v": (16, 48), "o": (48, 48),
    }  # fmt: skip
    assert shapes[LAYER + "mlp.gate_proj.weight"] == shapes[LAYER + "mlp.up_proj.weight"] == (128, 48)
    assert shapes[LAYER + "mlp.down_proj.weight"] == (48, 128)
    assert "lm_head.weight" not in shapes


def test_a_transposed_tensor_is_refused() -> None:
    name = LAYER + "mlp.down_proj.weight"
    with pytest.raises(ModelFormatError, match=rf"{name} has shape \[128, 48\].*\[48, 128\]"):
        check_shapes(CONFIG, expected_shapes(CONFIG), expected_shapes(CONFIG) | {name: (128, 48)}, Path("model"))


def test_a_bias_that_the_model_would_not_use_is_named() -> None:
    name, known = LAYER + "mlp.down_proj.bias", expected_shapes(CONFIG)
    assert unread_tensors(known, [*known, name, "lm_head.weight", "a.rotary_emb.inv_freq"]) == [name]
