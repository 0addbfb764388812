"""Keywords of the constructor: translated, without effect, or refused."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import pytest

from outrider.errors import ConfigError
from outrider_llama import Llama, LlamaPromptLookupDecoding
from outrider_llama.options import check_chat_format, check_pooling, engine_options
from tests.llama_class.recorded import PARAMETERS

USUAL = {
    name: each.default
    for name, each in inspect.signature(Llama.__init__).parameters.items()
    if name not in ("self", "model_path", "kwargs")
}


def options(**changes: Any) -> dict[str, Any]:
    return engine_options({**USUAL, "kwargs": {}, **changes})


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_defaults_are_those_of_llama_cpp_python(name: str) -> None:
    found = [
        each.name if each.default is each.empty else f"{each.name}={each.default!r}"
        for each in inspect.signature(getattr(Llama, name)).parameters.values()
        if each.name != "self"
    ]
    assert found == PARAMETERS[name].split(" ")


def test_options_are_translated() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = options(n_ctx=2048, n_batch=64, n_threads=3, verbose=False, type_k=8, type_v=8, lora_path="adapter")
        assert found == {
            "max_seq_len": 2048,
            "max_batched_tokens": 64,
            "max_batch_size": 1,
            "threads": 3,
            "kv_cache_dtype": "int8",
            "progress": False,
            "enable_lora": True,
            "lora_modules": {"lora": "adapter"},
        }
        assert options(n_ctx=0)["max_seq_len"] is None
        assert options(kwargs={"session_dir": "s"})["session_dir"] == "s"
        drafts = options(draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4))
        assert (drafts["draft"], drafts["spec_length"]) == ("lookup", 4)
        assert options(draft_model="small")["draft_model"] == "small"


def test_options_without_effect_give_one_warning() -> None:
    with pytest.warns(UserWarning, match=r"^n_gpu_layers, use_mlock, flash_attn: without effect") as found:
        options(n_gpu_layers=-1, use_mlock=True, flash_attn=True)
    assert len(found) == 1


@pytest.mark.parametrize(
    "changes",
    [
        *({"rope_freq_base": 1e6}, {"rope_freq_scale": 0.5}, {"yarn_orig_ctx": 4096}, {"kv_overrides": {"a": 1}}),
        *({"lora_scale": 0.5}, {"lora_base": "m"}, {"chat_handler": print}, {"tokenizer": print}, {"type_k": 1}),
        *({"type_v": 8}, {"attention_type": 1}, {"spm_infill": True}, {"draft_model": print}),
    ],
)
def test_options_that_would_change_the_output_are_refused(changes: dict[str, Any]) -> None:
    name = next(iter(changes))
    with pytest.raises(ConfigError, match=rf"{name}=.*cannot be used: \w+"):
        options(**changes)


def test_only_the_model_s_own_template_and_the_mean_are_there() -> None:
    check_chat_format("chat_template.default")
    check_pooling(1)
    with pytest.raises(ConfigError, match="chat_format='chatml' cannot be used"):
        check_chat_format("chatml")
    with pytest.raises(ConfigError, match="pooling_type=3 cannot be used"):
        check_pooling(3)
