"""The small trained hybrid: its own head's drafts are accepted on text, and change no token."""

from __future__ import annotations

import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.native.library import library
from tests.paths import LAB

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

PROMPTS = (
    'class Reader:\n    """Reads lines from a file."""\n\n    def __init__(self, file):\n        self.file = file\n',
    "def parse(text):\n    if not text:\n        raise ValueError(",
    "import os\nimport sys\n\ndef main(args=None):\n    if args is None:\n        args = sys.argv[1:]\n    for name in",
)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(str(LAB / "hybrid" / "model.gguf"), threads=1, max_seq_len=512)


def test_a_model_with_a_head_drafts_with_it_by_default(llm: LLM) -> None:
    assert llm.config.speculation.draft == "suffix,mtp"


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft", ["mtp", "suffix,mtp"])
def test_drafts_are_accepted_and_change_no_token(llm: LLM, draft: str, temperature: float) -> None:
    params = SamplingParams(max_tokens=64, ignore_eos=True, temperature=temperature, seed=7)
    plain = llm.generate(list(PROMPTS), params, speculation=SpeculationParams(draft="none"))
    drafted = llm.generate(list(PROMPTS), params, speculation=SpeculationParams(draft=draft, spec_length=3))
    assert [out.token_ids for out in drafted] == [out.token_ids for out in plain]
    assert all(out.stats.draft_error is None for out in drafted)
    runs = sum(len(out.stats.rounds) for out in drafted)
    assert sum(accepted for out in drafted for _, accepted in out.stats.rounds) > 0.8 * runs
