"""Structured output of beam search, against a search that computes every row and every mask anew."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from outrider import LLM, SamplingParams, SpeculationParams, StructuredOutput
from outrider.cache import CacheSpec
from outrider.models.batch import ForwardBatch, Span
from outrider.verify.arrays import Floats, host
from tests.arrays import log_softmax
from tests.beams.reference import search
from tests.model_folders import model_folder

PERSON = StructuredOutput(
    json_schema={
        "type": "object",
        "properties": {"name": {"enum": ["a", "bc", "bd"]}, "old": {"type": "boolean"}},
        "required": ["name"],
        "additionalProperties": False,
    }
)
FORMS = {
    "schema": PERSON,
    "regex": StructuredOutput(regex=r"[a-f]{1,3}(-[0-9]{1,2})?"),
    "choice": StructuredOutput(choice=["left", "lift", "right", "or"]),
    "grammar": StructuredOutput(grammar='start: "(" start ")" | "x"'),
}
DRAFTS = ("grammar", "suffix+recycling", "model")


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = str(model_folder(tmp_path_factory.mktemp("models") / "target"))
    return LLM(folder, draft_model=folder, dtype="float32", threads=1, spec_length=3)


def rows(llm: LLM, form: StructuredOutput, prompt: list[int]) -> Callable[[tuple[int, ...]], Floats]:
    """Log-probabilities after an output, -inf where the form forbids a token; nothing is kept from row to row."""

    def row(output: tuple[int, ...]) -> Floats:
        tokens = [*prompt, *output]
        cache = llm.model.new_cache(CacheSpec(max_seq_len=llm.model.config.max_seq_len))
        slot = cache.allocate()
        cache.extend(slot, len(tokens))
        batch = ForwardBatch(tokens, range(len(tokens)), (Span(slot, 0, len(tokens)),), [len(tokens) - 1])
        logits = host(llm.model.forward(batch, cache).logits)[0, : llm.tokenizer.vocab_size]
        mask = llm.grammars.constraint(form).mask(output)
        assert mask is not None
        return np.where(mask, log_softmax(logits), np.float32(-np.inf))

    return row


@pytest.mark.parametrize("name", FORMS)
def test_finds_what_a_search_without_memory_finds(llm: LLM, name: str) -> None:
    form = FORMS[name]
    params = SamplingParams(beam_width=4, n=4, max_tokens=14, structured=form)
    for text, changes in (("hello", {}), ("world", {"length_penalty": 0.0, "beam_width": 6, "early_stopping": True})):
        prompt = llm.tokenizer.encode(text)
        wanted = replace(params, **changes)  # type: ignore[arg-type]
        expected = search(rows(llm, form, prompt), wanted, list(llm.tokenizer.eos_token_ids))
        plain = llm.generate([prompt], wanted, speculation=SpeculationParams(draft="none"))
        for output, found in zip(plain, expected, strict=False):
            assert tuple(output.token_ids) == found.output
            assert output.score == pytest.approx(found.score, abs=1e-4)
        for output in plain[len(expected) :]:  # the form has fewer outputs
            assert (output.token_ids, output.score) == ([], float("-inf"))
        for draft in DRAFTS:
            drafted = llm.generate([prompt], wanted, speculation=SpeculationParams(draft=draft, spec_length=3))
            assert [(one.token_ids, one.score) for one in drafted] == [(one.token_ids, one.score) for one in plain]
            assert drafted[0].stats.draft_error is None


def test_every_output_has_the_form_and_no_two_are_the_same(llm: LLM) -> None:
    closing = {token: 6.0 for text in '"}' for token in llm.tokenizer.encode(text, add_special_tokens=False)}
    params = SamplingParams(beam_width=8, n=3, max_tokens=40, logit_bias=closing, structured=PERSON)
    outputs = llm.generate(["hello"], params)
    assert len({output.text for output in outputs}) == 3
    assert all(output.finish_reason == "stop" for output in outputs)
    assert all(json.loads(output.text)["name"] in ("a", "bc", "bd") for output in outputs)
    codes = llm.generate(["hello"], replace(params, structured=FORMS["regex"], logit_bias={}))
    assert all(re.fullmatch(r"[a-f]{1,3}(-[0-9]{1,2})?", code.text) for code in codes)
