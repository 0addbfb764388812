"""``lm-eval``'s ``local-completions``: token-id prompts with ``echo`` and ``logprobs``, and generation until a stop.

It is an extra (``pip install outrider[conformance]``), and slow to import.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider import SamplingParams
from tests.server.live import Live

pytestmark = pytest.mark.slow
pytest.importorskip("lm_eval", reason="install outrider[conformance]")


@pytest.fixture
def model(served: Live, tool_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    return LocalCompletionsAPI(
        model="tiny",
        base_url=f"{served.url}/v1/completions",
        tokenizer=str(tool_folder),
        tokenizer_backend="huggingface",
        tokenized_requests=True,
        num_concurrent=1,
        max_length=512,
        batch_size=2,
    )


def instance(kind: str, *arguments: Any) -> Any:
    from lm_eval.api.instance import Instance

    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def test_loglikelihoods_are_the_models(model: Any, served: Live) -> None:
    pairs = [("hello", " world"), ("the", " hello and"), ("12 34", " of hello")]
    found = model.loglikelihood([instance("loglikelihood", *pair) for pair in pairs], disable_tqdm=True)
    llm = served.service.engine.llm
    for (context, continuation), (value, greedy) in zip(pairs, found, strict=True):
        ids = llm.tokenizer.encode(context + continuation)
        before = len(llm.tokenizer.encode(context))
        request = llm.request(ids, SamplingParams(max_tokens=1, prompt_logprobs=1))
        rows = _prompt_logprobs(served, request)[before - 1 :]
        own = [row[token] for row, token in zip(rows, ids[before:], strict=True)]
        assert value == pytest.approx(sum(own), abs=1e-4)
        assert greedy == all(
            token == max(row, key=lambda i: row[i]) for row, token in zip(rows, ids[before:], strict=True)
        )


def _prompt_logprobs(served: Live, request: Any) -> Any:
    """Ask the engine itself, while the server is idle."""
    import asyncio

    async def run() -> None:
        async for _ in served.service.engine.bursts([request]):
            pass

    with torch.inference_mode():
        asyncio.run(run())
    return request.prompt_logprobs


def test_generation_until_a_stop(model: Any) -> None:
    arguments = {"until": ["e"], "max_gen_toks": 20, "temperature": 0.0}
    found = model.generate_until([instance("generate_until", "hello", arguments)] * 2, disable_tqdm=True)
    assert found[0] == found[1]
    assert "e" not in found[0]
