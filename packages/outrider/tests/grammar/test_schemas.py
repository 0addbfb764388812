"""Random schemas through the whole engine: output always valid, and the same with and without drafts."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from jsonschema import Draft202012Validator, FormatChecker

from outrider import LLM, Output, SamplingParams, SpeculationParams, StructuredOutput
from tests.model_folders import model_folder

from .schemas import Schema, random_schema

FORMATS = FormatChecker([name for name in FormatChecker.checkers if not name.startswith(("date", "time"))])
DATE = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
DRAFTED = ("grammar", "lookup", "model")


def serve(
    llm: LLM, schemas: Sequence[Schema], modes: Sequence[SamplingParams], draft: str, **options: str
) -> list[Output]:
    asked = [
        (f"Write a JSON object, number {i}: ", replace(mode, structured=form))
        for i, form in enumerate(StructuredOutput(json_schema=schema) for schema in schemas)
        for mode in modes
    ]
    speculation = SpeculationParams(draft=draft, spec_length=6)
    return llm.generate([prompt for prompt, _ in asked], [params for _, params in asked], speculation=speculation)


@FORMATS.checks("date")
def is_date(value: object) -> bool:
    """By its syntax, which is what a grammar can see to: of the calendar it knows nothing."""
    return not isinstance(value, str) or re.fullmatch(DATE, value) is not None


def check(llm: LLM, schema: Schema, output: Output) -> bool:
    """Whether the output is complete; one that was cut must be the beginning of a valid one."""
    if output.finish_reason == "length":
        constraint = llm.grammars.constraint(StructuredOutput(json_schema=schema))
        assert constraint.mask(output.token_ids) is not None
        return False
    value = json.loads(output.text, parse_float=Decimal)  # -21.0000000000000001 is below -21, but not as a float
    Draft202012Validator(schema, format_checker=FORMATS).validate(value)
    return True


def closing(llm: LLM, **options: Any) -> SamplingParams:
    """A weak model rarely closes what it opens, so the tokens that do are made likelier."""
    likelier = {token: 2.5 for text in '"}]' for token in llm.tokenizer.encode(text, add_special_tokens=False)}
    return SamplingParams(logit_bias=likelier | {llm.tokenizer.eos_token_ids[0]: 4.0}, **options)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    """A random model, and another as its draft."""
    folder = model_folder(tmp_path_factory.mktemp("models") / "target", max_position_embeddings=512)
    small = model_folder(tmp_path_factory.mktemp("models") / "draft", max_position_embeddings=512, num_hidden_layers=1)
    return LLM(str(folder), draft_model=str(small), dtype="float32", threads=1, max_batch_size=8)


@pytest.fixture(scope="module")
def modes(llm: LLM) -> list[SamplingParams]:
    greedy = closing(llm, max_tokens=220)
    return [greedy, replace(greedy, temperature=1.0, top_p=0.95, seed=9)]


def test_output_of_any_schema_is_valid_and_the_same_with_and_without_drafts(
    llm: LLM, modes: list[SamplingParams]
) -> None:
    rng = random.Random(1)
    schemas = [random_schema(rng) for _ in range(10)]
    plain = serve(llm, schemas, modes, "none")
    complete = [check(llm, schemas[i // len(modes)], output) for i, output in enumerate(plain)]
    assert sum(complete) > 0.8 * len(complete)
    for draft in DRAFTED:
        drafted = serve(llm, schemas, modes, draft)
        assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
        assert {o.stats.draft_error for o in drafted} == {None}
        assert sum(o.stats.num_accepted_draft_tokens for o in drafted) > 0


def test_rejection_keeps_to_the_schema_too(llm: LLM, modes: list[SamplingParams]) -> None:
    rng = random.Random(2)
    schemas = [random_schema(rng) for _ in range(4)]
    speculation = SpeculationParams(draft="model", spec_length=4, verifier="rejection")
    for schema in schemas:
        form = StructuredOutput(json_schema=schema)
        check(llm, schema, llm.generate("a", replace(modes[1], structured=form), speculation=speculation))


@pytest.mark.slow
def test_two_hundred_schemas_on_a_real_model() -> None:
    llm = LLM("smollm2-135m-instruct", draft="none", max_batch_size=8, max_seq_len=512)
    rng = random.Random(3)
    schemas = [random_schema(rng) for _ in range(200)]
    greedy = closing(llm, max_tokens=160)
    modes = [greedy, replace(greedy, temperature=0.8, top_p=0.95, seed=5)]
    plain = serve(llm, schemas, modes, "none")
    complete = [check(llm, schemas[i // len(modes)], output) for i, output in enumerate(plain)]
    assert sum(complete) > 0.8 * len(complete)
    for draft in ("grammar", "ngram"):
        drafted = serve(llm, schemas, modes, draft)
        assert [o.token_ids for o in drafted] == [o.token_ids for o in plain]
        assert {o.stats.draft_error for o in drafted} == {None}
