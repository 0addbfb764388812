"""Log-probabilities of generated tokens are those of a second pass that scores prompt and output, to the last bit.

Trainers weigh a token by the ratio of both. A difference there is noise in every gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from outrider import LLM, Output, SamplingParams, SpeculationParams
from outrider.errors import InvalidRequestError
from outrider.native.library import library
from tests.model_folders import model_folder

native = pytest.mark.skipif(library() is None, reason="no native library here")
MODELS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16", "kv_cache": "paged", "kv_cache_dtype": "int8"},
    "q8_0": {"dtype": "q8_0"},
    "q4_0": {"dtype": "q4_0"},
    "q4_1": {"dtype": "q4_1", "max_batched_tokens": 48},
    "torch": {"dtype": "bfloat16", "implementation": "torch"},
}
FAST = ("q4_1",)
PROMPT = [*range(5, 40)] * 4
OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.7, "top_p": 0.9, "logit_bias": {7: 2.0}},
    {"temperature": 1.3, "top_k": 12, "repetition_penalty": 1.2},
    {"temperature": 1.0, "min_p": 0.02, "banned_token_ids": [9]},
]
MODES = ("raw_logprobs", "processed_logprobs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target", max_position_embeddings=256)


def rollouts(llm: LLM, mode: Any, draft: str) -> list[Output]:
    """Prompts of several lengths side by side, one of them twice: the second finds it in the cache."""
    lengths = (3, 70, 129, 129, 7)
    params = [
        SamplingParams(max_tokens=16, seed=i, ignore_eos=True, logprobs=5 * (i % 2), logprobs_mode=mode, **options)
        for i, options in enumerate(OPTIONS)
    ]
    return llm.generate(
        [PROMPT[:n] for n in lengths], params, speculation=SpeculationParams(draft=draft, spec_length=4)
    )


def generated(outputs: Sequence[Output]) -> list[float]:
    """The log-probability of every generated token."""
    return [row[token] for each in outputs for row, token in zip(each.logprobs or [], each.token_ids, strict=True)]


def scored(llm: LLM, outputs: Sequence[Output], mode: Any) -> list[float]:
    """The same of a pass that reads prompt and output as a prompt."""
    params = [SamplingParams(max_tokens=1, prompt_logprobs=0, logprobs_mode=mode, **options) for options in OPTIONS]
    again = llm.generate([[*each.prompt_token_ids, *each.token_ids] for each in outputs], params)
    return [
        row[token]
        for each, whole in zip(outputs, again, strict=True)
        for row, token in zip(whole.prompt_logprobs[len(each.prompt_token_ids) - 1 :], each.token_ids, strict=True)
    ]


@pytest.mark.parametrize(
    "name", [name if name in FAST else pytest.param(name, marks=pytest.mark.slow) for name in MODELS]
)
def test_a_second_pass_gives_the_same_bits(folder: Path, name: str) -> None:
    if library() is None and name != "torch":
        pytest.skip("no native library here")
    with LLM(str(folder), draft="model", draft_model=str(folder), threads=2, **MODELS[name]) as llm:
        found = {}
        for mode in MODES:
            drafted = rollouts(llm, mode, "model")
            found[mode] = generated(drafted)
            assert found[mode] == scored(llm, drafted, mode)
            assert max(each.stats.num_accepted_draft_tokens for each in drafted) > 0
            assert found[mode] == generated(rollouts(llm, mode, "none"))
        assert found["raw_logprobs"] != found["processed_logprobs"]


@native
def test_a_pass_in_another_precision_gives_other_bits(folder: Path) -> None:
    """The control: the same weights, rounded to nothing."""
    with LLM(str(folder), dtype="bfloat16", draft="none") as llm, LLM(str(folder), dtype="float32", draft="none") as b:
        outputs = rollouts(llm, "raw_logprobs", "none")
        own, other = np.array(generated(outputs)), np.array(scored(b, outputs, "raw_logprobs"))
    assert np.mean(own != other) > 0.9
    assert np.abs(own - other).max() < 0.1


@native
@pytest.mark.slow
def test_the_usual_pass_of_a_trainer_gives_other_bits(folder: Path) -> None:
    """The control: transformers in bfloat16, all sequences in one padded batch."""
    with LLM(str(folder), dtype="bfloat16", draft="none", threads=2) as llm:
        outputs = rollouts(llm, "raw_logprobs", "none")
        own = np.array(generated(outputs))
    usual = np.array(_by_transformers(folder, outputs))
    assert np.mean(own != usual) > 0.5
    assert np.abs(own - usual).max() < 0.1  # by rounding only


def _by_transformers(folder: Path, outputs: Sequence[Output]) -> list[float]:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    sequences = [torch.tensor([*each.prompt_token_ids, *each.token_ids]) for each in outputs]
    ids = torch.nn.utils.rnn.pad_sequence(sequences, batch_first=True)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(each) for each in sequences], batch_first=True)
    with torch.no_grad():
        logits = model(ids, attention_mask=mask).logits.float()
    found = []
    for row, each in zip(logits.log_softmax(-1), outputs, strict=True):
        start = len(each.prompt_token_ids) - 1
        found += [float(row[start + i, token]) for i, token in enumerate(each.token_ids)]
    return found


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"logprobs_mode": "raw"}, "logprobs_mode='raw'.*raw_logprobs or processed_logprobs"),
        ({"logprobs_mode": "processed_logprobs", "presence_penalty": 0.5}, "presence_penalty=0.5"),
        ({"logprobs_mode": "processed_logprobs", "min_tokens": 3}, "min_tokens=3"),
    ],
)
def test_what_a_prompt_cannot_report_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidRequestError, match=named):
        SamplingParams(prompt_logprobs=0, **options)
