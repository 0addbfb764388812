"""Outputs with images: those of transformers, whatever drafts, whoever else runs, however the prompt is read."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from outrider import LLM, Output, SamplingParams
from outrider.config import SpeculationParams
from tests import vision_models
from tests.vision_models import image

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=2)
DRAWN = SamplingParams(temperature=1, seed=5, max_tokens=12, ignore_eos=True, logprobs=2)
QUESTION = "User:<image>What?<end_of_utterance>\nAssistant:"

CASES: list[tuple[str, list[Image.Image]]] = [
    (QUESTION, [image(1)]),
    (QUESTION, [image(1, 16, 16)]),  # as large as a frame
    (QUESTION, [image(1, 7, 90)]),
    ("a<image>b<image>c", [image(2, 16, 16), image(3, 30, 48)]),
    ("no image at all", []),
]


def prompt(text: str, pictures: list[Image.Image]) -> Any:
    return {"prompt": text, "multi_modal_data": {"image": pictures}}


def same(a: Output, b: Output) -> bool:
    return [(x.token_id, x.logprobs) for x in a.steps] == [(x.token_id, x.logprobs) for x in b.steps]


@pytest.mark.parametrize("family", ["smolvlm", "idefics3"])
def test_tokens_are_those_of_transformers(family: str, made: Any, folder: Path, llm: LLM, tmp_path: Path) -> None:
    if family == "idefics3":
        made = vision_models.model(family, seed=3)
        folder = vision_models.save(made, tmp_path / "model", frames=2)
        llm = LLM(str(folder), dtype="float32", draft="none")
    for text, pictures in CASES:
        ids, tokens = vision_models.expected(folder, made, text, pictures, 12)
        found = llm.generate(prompt(text, pictures), GREEDY)
        assert list(found.prompt_token_ids) == ids
        assert list(found.token_ids) == tokens


def test_another_image_gives_another_output(made: Any, folder: Path, llm: LLM) -> None:
    """Else the comparison above would say nothing of images."""
    _, tokens = vision_models.expected(folder, made, QUESTION, [image(1)], 12)
    assert list(llm.generate(prompt(QUESTION, [image(9)]), GREEDY).token_ids) != tokens


@pytest.mark.parametrize("params", [GREEDY, DRAWN], ids=["greedy", "drawn"])
def test_drafts_change_nothing(llm: LLM, params: SamplingParams) -> None:
    plain = [llm.generate(prompt(*case), params, speculation=SpeculationParams(draft="none")) for case in CASES]
    suffix = SpeculationParams(draft="suffix", spec_length=4)
    for _ in range(2):  # the second time, all of it has been said before
        drafted = [llm.generate(prompt(*case), params, speculation=suffix) for case in CASES]
        assert all(map(same, plain, drafted))
    assert sum(output.stats.num_accepted_draft_tokens for output in drafted) > 3


def test_company_and_pieces_change_nothing(folder: Path, llm: LLM) -> None:
    """Side by side with others, a few tokens at a time, and after losing its place to them."""
    prompts = [prompt(*CASES[4]), *(prompt(QUESTION, [image(seed)]) for seed in range(3)), prompt(*CASES[3])]
    params = replace(GREEDY, max_tokens=48)
    alone = [llm.generate(each, params) for each in prompts]
    together = llm.generate(prompts, params)  # the last one has to wait, and is read beside drafts of the others
    assert all(map(same, alone, together))
    options: Any = {"max_batched_tokens": 24, "kv_tokens": 256, "kv_cache": "paged", "max_batch_size": 4}
    with LLM(str(folder), dtype="float32", draft="none", **options) as other:
        assert all(map(same, alone, other.generate(prompts, params)))
        assert other.engine.stats.preemptions
        other.engine.cache.check()


def test_several_outputs_and_beams(llm: LLM) -> None:
    beams = SamplingParams(temperature=0, beam_width=2, n=2, max_tokens=6)
    together = llm.generate(prompt(QUESTION, [image(1)]), beams)
    assert [len(output.token_ids) for output in together] == [6, 6]
    again = llm.generate(prompt(QUESTION, [image(1)]), beams, speculation=SpeculationParams(draft="none"))
    assert [output.token_ids for output in together] == [output.token_ids for output in again]
    other = llm.generate(prompt(QUESTION, [image(9)]), beams)
    assert [output.token_ids for output in together] != [output.token_ids for output in other]


def test_chat(made: Any, folder: Path, llm: LLM) -> None:
    content = [
        {"type": "image_url", "image_url": {"url": vision_models.data_url(image(1))}},
        {"type": "text", "text": "What?"},
    ]
    found = llm.chat([{"role": "user", "content": content}], GREEDY)
    text = "<|im_start|>User:<image>What?<end_of_utterance>\nAssistant:"
    ids, tokens = vision_models.expected(folder, made, text, [image(1)], 12)
    assert list(found.prompt_token_ids) == ids
    assert list(found.token_ids) == tokens
    spelt = llm.chat([{"role": "user", "content": "An <image> of words"}], GREEDY)
    assert vision_models.IMAGE not in spelt.prompt_token_ids
    assert llm.tokenizer.decode(spelt.prompt_token_ids) == "User: An <image> of words\nAssistant:"


@pytest.mark.parametrize("kind", ["paged", "contiguous"])
def test_prefixes_are_shared_by_what_an_image_shows(folder: Path, kind: Any) -> None:
    """The same image is not read twice; another with the same placeholders, or of another domain, is."""

    def read(picture: Image.Image, text: str = "", domain: str = "") -> int:
        found = llm.generate(prompt(QUESTION + text, [picture]), GREEDY, cache_salt=domain)
        cached: int = found.stats.cached_prompt_tokens
        return cached

    with LLM(str(folder), dtype="float32", draft="none", kv_cache=kind) as llm:
        assert read(image(1)) == 0
        after = read(image(1), " more")
        assert after > 60
        assert read(image(2)) <= 16  # what stands before the image
        assert read(image(1), domain="another") == 0
