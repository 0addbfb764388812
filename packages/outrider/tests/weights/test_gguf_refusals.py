"""A refusal of a GGUF file is a claim: llama.cpp's answer differs, or it refuses as well. What is accepted is computed.

``gguf_reference.json`` keeps llama.cpp's answers (``record_gguf``); ``SPECIALS`` and the keys in it are the proofs.
"""

from __future__ import annotations

import ast
import json
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.cache import CacheSpec
from outrider.errors import ModelFormatError
from outrider.weights.gguf import config as gguf_config
from outrider.weights.gguf import families as gguf_families
from outrider.weights.gguf import header as gguf_header
from outrider.weights.gguf import hybrid as gguf_hybrid
from outrider.weights.gguf import rope as gguf_rope
from outrider.weights.gguf import tokenizer as gguf_tokenizer
from outrider.weights.gguf.keys import KNOWN
from outrider.weights.gguf.reader import open_gguf
from outrider_torch.models.llama import LlamaModel
from outrider_torch.models.stored import torch_tensors
from tests import small_models
from tests.weights.gguf_models import CASES, write_case
from tests.weights.gguf_specials import SPECIALS
from tests.weights.record_gguf import COMPUTED, REFERENCE
from tests.weights.reference import IDS, LlamaCpp, installed, same, sample

ANSWERS: dict[str, Any] = json.loads(REFERENCE.read_text())
API = {
    "tokens that are never sampled",
    *(f"a vocabulary of {kind}" for kind in ("BERT", "T5", "RWKV")),
    "no vocabulary",
}
"""llama.cpp's logits are the same, and its ids or its samples others: see ``test_gguf_tokenizer``."""
ELSEWHERE: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("llama", {"attention.sparkle": 1}, {}),  # test_a_key_that_llama_cpp_does_not_know_may_change_the_answer
    ("llama", {"expert_count": 8}, {}),  # test_a_key_is_refused_only_where_llama_cpp_reads_it
    ("llama", {"general.architecture": "mamba"}, {}),  # another model: there is no answer to compare
    ("llama", {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "chameleon"}, {}),  # test_gguf_tokenizer
    ("gemma3", {"tokenizer.ggml.add_space_prefix": True}, {}),  # test_gguf_tokenizer
]
"""Refusals that are proved by other tests."""
DAMAGED = (
    *("is no number of layers", "is no base", "holds numbers that are no divisors", "is no number of blocks"),
    *("leaves no layer beside", "is no multiple of", "does not name the kind of each of"),
)
"""What is said of damaged files, which no reference can answer for."""


def ours(path: Path) -> list[float] | ModelFormatError:
    try:
        checkpoint = open_gguf(path)
    except ModelFormatError as error:
        return error
    model = LlamaModel(checkpoint.config, torch_tensors(checkpoint), dtype=torch.float32)
    cache = model.new_cache(CacheSpec(max_seq_len=64))
    return sample(small_models.feed(model, cache, (cache.allocate(), IDS))[0][-1].tolist())


def judge(title: str, found: list[float] | ModelFormatError, said: list[float] | str, base: list[float]) -> str:
    """What is wrong about an answer; nothing if it is right."""
    wanted = base if said == "same" else said
    if isinstance(found, ModelFormatError):
        return f"{title}: refused ({found}), and llama.cpp's answer is that of the file without it" * (said == "same")
    if isinstance(wanted, str):
        return f"{title}: accepted, and llama.cpp refuses it"
    return "" if same(found, wanted) else f"{title}: {found[:3]}, llama.cpp says {wanted[:3]}"


@pytest.mark.parametrize("name", CASES)
def test_a_file_of_every_family_gives_the_logits_of_llama_cpp(name: str, tmp_path: Path) -> None:
    write_case(tmp_path / "m.gguf", name)
    found = ours(tmp_path / "m.gguf")
    assert not isinstance(found, ModelFormatError), found
    assert same(found, ANSWERS[name]["logits"])


@pytest.mark.parametrize("name", CASES)
def test_a_key_is_refused_only_where_llama_cpp_reads_it(name: str, tmp_path: Path) -> None:
    read, base, wrong = ANSWERS[name]["read"], ANSWERS[name]["logits"], []
    write_case(tmp_path / "m.gguf", name, dict.fromkeys(sorted(KNOWN - COMPUTED - read.keys()), "x"))
    found = ours(tmp_path / "m.gguf")
    assert not isinstance(found, ModelFormatError), found
    assert same(found, base)
    for key, probes in read.items():
        for value, said in probes:
            write_case(tmp_path / "m.gguf", name, {key: value})
            wrong.append(judge(f"{key}={value}", ours(tmp_path / "m.gguf"), said, base))
    assert not list(filter(None, wrong))


@pytest.mark.parametrize("title", SPECIALS)
def test_what_a_file_says_is_computed_or_refused_with_proof(title: str, tmp_path: Path) -> None:
    name, changes, extra = SPECIALS[title]
    write_case(tmp_path / "m.gguf", name, changes, extra)
    said, found = ANSWERS[name]["special"][title], ours(tmp_path / "m.gguf")
    assert title in API or not judge(title, found, said, ANSWERS[name]["logits"])


def _raises(module: Any) -> set[tuple[str, int]]:
    """The lines at which a module refuses a file, but for what it says of damaged ones."""
    source = Path(module.__file__).read_text()
    return {
        (Path(module.__file__).name, node.lineno)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise) and node.cause is None and not any(w in ast.unparse(node) for w in DAMAGED)
    }


def _refused_at(error: ModelFormatError) -> set[tuple[str, int]]:
    chain = [error, *([error.__context__] if error.__context__ else [])]
    return {(Path(f.filename).name, f.lineno or 0) for e in chain for f in traceback.extract_tb(e.__traceback__)}


def test_every_refusal_has_a_proof(tmp_path: Path) -> None:
    sites = set().union(*map(_raises, (gguf_config, gguf_families, gguf_hybrid, gguf_rope, gguf_tokenizer)))
    arrays = {site for site in _raises(gguf_header) if "is an array, one value" in _text(gguf_header, site)}
    proved = set()
    for name, changes, extra in [*SPECIALS.values(), *ELSEWHERE]:
        write_case(tmp_path / "m.gguf", name, changes, extra)
        found = ours(tmp_path / "m.gguf")
        if isinstance(found, ModelFormatError):
            proved |= _refused_at(found)
    assert arrays
    assert not (sites | arrays) - proved


def _text(module: Any, site: tuple[str, int]) -> str:
    return Path(module.__file__).read_text().splitlines()[site[1] - 1]


def test_a_key_that_llama_cpp_does_not_know_may_change_the_answer(tmp_path: Path) -> None:
    """As every key once did: a reader of before would have taken OLMo 3 for OLMo 2."""
    assert not same(ANSWERS["olmo2"]["special"]["OLMo 2 with a window"], ANSWERS["olmo2"]["logits"])
    write_case(tmp_path / "m.gguf", "olmo2", {"attention.sparkle": 16})
    assert "is not known here" in str(ours(tmp_path / "m.gguf"))


def test_a_window_that_llama_cpp_does_not_apply_bounds_the_context(tmp_path: Path) -> None:
    for name in ("llama", "phi3", "starcoder2", "qwen2"):
        write_case(tmp_path / "m.gguf", name, {"attention.sliding_window": 16})
        assert open_gguf(tmp_path / "m.gguf").config.max_seq_len == 16


@pytest.mark.skipif(not installed(), reason="compares with llama.cpp itself, where llama-cpp-python is installed")
@pytest.mark.parametrize("name", CASES)
def test_the_answers_are_llama_cpps(name: str, tmp_path: Path) -> None:
    write_case(tmp_path / "m.gguf", name)
    with LlamaCpp() as reference:
        said = reference.logits(tmp_path / "m.gguf")
    assert not isinstance(said, str)
    assert same(said, ANSWERS[name]["logits"])
