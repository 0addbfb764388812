"""``LLM`` with models whose files bring a draft head, and with models that have none."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.errors import ConfigError
from outrider.native.library import library
from tests.tokenizer.vocabularies import byte_level
from tests.weights.hybrids import build, converted, save, write_gguf

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

PROMPT = [5, 9, 14, 5, 9, 3]
PARAMS = SamplingParams(max_tokens=12, temperature=0.7, seed=3, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "headed"
    own = save(build("qwen35"), path)
    byte_level(path)
    write_gguf(path.parent / "headed.gguf", "qwen35", converted("qwen35", own))
    return path


def load(path: Path, draft: str = "auto") -> LLM:
    return LLM(path, draft=draft, implementation="native", threads=1, spec_length=3, max_seq_len=64)


@pytest.mark.parametrize("name", ["headed", "headed.gguf"])
def test_a_head_in_the_files_drafts_by_default(folder: Path, name: str) -> None:
    llm = load(folder.parent / name)
    assert llm.speculation.draft == "suffix,mtp"
    (plain,) = llm.generate([PROMPT], PARAMS, speculation=SpeculationParams(draft="none"))
    for draft, tree in (("suffix,mtp", None), ("mtp", None), ("mtp", (2, 2))):
        speculation = SpeculationParams(draft=draft, tree=tree, spec_length=3)
        (output,) = llm.generate([PROMPT], PARAMS, speculation=speculation)
        assert output.token_ids == plain.token_ids
        assert output.stats.draft_error is None
        assert output.stats.num_draft_tokens > 0


def test_memory_counts_the_head(folder: Path) -> None:
    without, headed = load(folder, "none").memory_plan, load(folder).memory_plan
    assert (without.draft_weights, without.draft_pool) == (0, 0)
    matrices = 64 * 128 + 64 * (2 * 64 + 2 * 32) + 64 * 64 + 3 * 64 * 96  # fc, q and its gate, k, v, out, MLP
    assert matrices < headed.draft_weights < 2 * matrices
    assert headed.draft_pool == headed.kv_tokens * 2 * 32 * 2  # keys and values of one layer, in bfloat16


def test_a_head_that_is_not_loaded_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="'mtp' is not loaded"):
        load(folder, "none").generate([PROMPT], speculation=SpeculationParams(draft="mtp"))


def test_a_model_without_a_head(tmp_path: Path) -> None:
    save(build("qwen35"), tmp_path, head=False)
    byte_level(tmp_path)
    assert load(tmp_path).speculation.draft == "suffix"
    with pytest.raises(ConfigError, match=r"draft='mtp' needs a draft head .* has none: use the files that have it"):
        load(tmp_path, "mtp")
