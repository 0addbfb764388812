"""EAGLE-3 heads for gpt-oss, in the layouts of Red Hat, NVIDIA and LMSYS."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import save_file
from torch import Tensor

from outrider.config import ModelOptions, SamplingParams
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import target_fingerprint
from outrider.drafters.trained.heads import load_head
from outrider.errors import ModelFormatError
from outrider.models.native_llama import NativeLlamaModel
from outrider.weights.loader import load_model
from outrider_torch.heads import make_head
from tests import small_models
from tests.small_engines import generate, request, run
from tests.torch_drafters.heads import served
from tests.weights.gpt_oss_files import OPTIONS

pytestmark = pytest.mark.slow
LAYERS, SCORED = 8, 24
VOCAB: int = OPTIONS["vocab_size"]
LAYER: dict[str, Any] = {"num_heads": 8, "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 48}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> NativeLlamaModel:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("gpt-oss")
    model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**OPTIONS | {"num_hidden_layers": LAYERS}))
    for parameter in model.parameters():
        parameter.data = 0.3 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    loaded = load_model(folder, ModelOptions(dtype="float32"))
    assert isinstance(loaded, NativeLlamaModel)
    return loaded


def layer(**changes: Any) -> dict[str, Any]:
    own = {
        "model_type": "llama", "hidden_size": OPTIONS["hidden_size"], "vocab_size": VOCAB, "num_hidden_layers": 1,
        "intermediate_size": LAYER["intermediate_size"], "num_attention_heads": LAYER["num_heads"], "head_dim": 8,
        "num_key_value_heads": LAYER["num_kv_heads"], "rms_norm_eps": 1e-5, "rope_theta": 150000.0,
        "max_position_embeddings": 128, "hidden_act": "silu", "attention_bias": False, "mlp_bias": False,
        "tie_word_embeddings": False, "rope_scaling": None,
    }  # fmt: skip
    return own | changes


def red_hat() -> dict[str, Any]:
    verifier = {"name_or_path": "openai/gpt-oss-20b", "architectures": ["GptOssForCausalLM"]}
    return {
        "architectures": ["Eagle3Speculator"], "speculators_model_type": "eagle3", "speculators_version": "0.4.0",
        "speculators_config": {"algorithm": "eagle3", "verifier": verifier}, "draft_vocab_size": SCORED,
        "eagle_aux_hidden_state_layer_ids": None, "norm_before_fc": True, "norm_before_residual": True,
        "transformer_layer_config": layer(), "target_hidden_size": None, "tie_word_embeddings": False,
    }  # fmt: skip


def nvidia(**eagle: Any) -> dict[str, Any]:
    own = {
        "use_input_layernorm_in_first_layer": True, "use_last_layernorm": True, "use_mtp_layernorm": False,
        "next_layer_regular": True, "parallel_draft_step": 1, "parallel_draft_heads_num_layers": 1,
    }  # fmt: skip
    return layer(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=SCORED, eagle_config=own | eagle)


def lmsys() -> dict[str, Any]:
    return layer(architectures=["LlamaForCausalLMEagle3"], draft_vocab_size=SCORED, vocab_size=VOCAB)


LAST = (5, 7, LAYERS)
LAYOUTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Red Hat": (red_hat(), {"feature_layers": (2, 4, 5), "norm_before_fc": True, "norm_before_residual": True}),
    "NVIDIA, long": (
        nvidia(use_aux_hidden_state=True, eagle_aux_hidden_state_layer_ids=[1, 4, 6]),
        {"feature_layers": (1, 4, 6)},
    ),
    "NVIDIA, third": (
        nvidia(use_aux_hidden_state=True, eagle_aux_hidden_state_layer_ids=list(LAST)) | {"norm_before_fc": True},
        {"feature_layers": LAST, "norm_before_fc": True},
    ),
    "NVIDIA, last state": (
        nvidia(use_aux_hidden_state=False, eagle_aux_hidden_state_layer_ids=[]),
        {"feature_layers": ()},
    ),
    "LMSYS": (lmsys(), {"feature_layers": (2, 4, 5)}),
}


def publish(folder: Path, raw: dict[str, Any], fields: dict[str, Any], target: NativeLlamaModel) -> HeadConfig:
    """A random head in a layout, scoring every other token."""
    config = HeadConfig(
        kind="eagle3", target=target_fingerprint(target, "m"), hidden_size=OPTIONS["hidden_size"], vocab_size=VOCAB,
        draft_vocab_size=SCORED, own_lm_head=True, **LAYER, **fields,
    )  # fmt: skip
    head = make_head(config)
    state: dict[str, Tensor] = {}
    for name, value in head.state_dict().items():
        if value.is_floating_point():
            named = name if "transformer_layer_config" in raw else name.replace("layers.0.", "midlayer.")
            state[named] = 1 + 0.1 * torch.randn_like(value) if value.dim() == 1 else 0.2 * torch.randn_like(value)
    ids = torch.randperm(VOCAB)[:SCORED]
    state["d2t"] = (ids - torch.arange(SCORED)).to(torch.int32 if raw.get("eagle_config") else torch.int64)
    state["t2d"] = torch.isin(torch.arange(VOCAB), ids)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(raw))
    save_file({name: value.contiguous() for name, value in state.items()}, folder / "model.safetensors")
    return config


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_published_head_drafts_for_gpt_oss(layout: str, target: NativeLlamaModel, tmp_path: Path) -> None:
    torch.manual_seed(1)
    raw, fields = LAYOUTS[layout]
    config = publish(tmp_path / "head", raw, fields, target)
    head = load_head(tmp_path / "head", target, "m")
    for name in ("feature_layers", "norm_before_fc", "norm_before_residual", "draft_vocab_size", "rope_scaling"):
        assert getattr(head.config, name) == getattr(config, name), name
    engine = served(target, head)
    prompts = [small_models.ids(9, VOCAB), small_models.ids(17, VOCAB, seed=2)]
    for temperature, tree in ((0.0, None), (0.0, "dynamic"), (0.8, None)):
        params = SamplingParams(max_tokens=12, temperature=temperature, seed=5)
        plain = [generate(engine, prompt, params) for prompt in prompts]
        options: dict[str, Any] = {"draft": "eagle", "spec_length": 3, "tree": tree, "tree_nodes": 6}
        requests = [request(prompt, params, id=str(i), **options) for i, prompt in enumerate(prompts)]
        run(engine, *requests)
        assert [list(r.output) for r in requests] == plain
        assert all(r.stats.draft_error is None and r.stats.num_draft_tokens > 0 for r in requests)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_last_layernorm": False}, "use_last_layernorm=False"),
        ({"use_mtp_layernorm": True}, "use_mtp_layernorm=True"),
        ({"parallel_draft_step": 4}, "parallel_draft_step=4"),
        ({"eagle_aux_hidden_state_layer_ids": [24, 30, 36]}, "the target has 8 layers"),
        ({"eagle_aux_hidden_state_layer_ids": [0, 4, 6]}, "feature_layers"),
        ({"use_aux_hidden_state": False, "norm_before_fc": True}, "names no layer"),
        ({"another": True}, "another"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_layout_that_cannot_be_right_is_refused(
    changes: dict[str, Any], said: str, target: NativeLlamaModel, tmp_path: Path
) -> None:
    publish(tmp_path / "head", nvidia(**changes), {"feature_layers": (1, 4, 6)}, target)
    with pytest.raises(ModelFormatError, match=said):
        load_head(tmp_path / "head", target, "m")
