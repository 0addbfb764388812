"""DSpark in an engine: its confidence is the score of a draft's tokens, and a head beside its model is found."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from outrider import LLM
from outrider.config import ModelOptions, SamplingParams, SpeculationParams
from outrider.drafters.heads.config import HeadConfig
from outrider.drafters.heads.fingerprint import target_fingerprint
from outrider.drafters.heads.masked import DSpark
from outrider.drafters.trained.dspark_files import find_dspark
from outrider.weights.loader import load_model
from outrider_torch.heads import make_head, save_head
from outrider_torch.heads.dspark import DSparkHead
from tests import small_models
from tests.model_folders import model_folder
from tests.small_engines import generate, request
from tests.torch_drafters.heads import random_head, served
from tests.torch_drafters.test_dflash import recorded

TARGET = small_models.llama("fp32", tie_embeddings=False, max_seq_len=64)


def spark(chance: float, **changes: Any) -> DSparkHead:
    """A head that says of every token that it is accepted with probability ``chance``."""
    own = DSpark(rank=4, confidence=True, confidence_reads_token=True)
    head = random_head("dspark", **({"dspark": own} | changes))
    assert isinstance(head, DSparkHead)
    assert head.confidence is not None
    head.confidence.weight.zero_()
    head.confidence.bias.fill_(math.log(chance / (1 - chance)))
    return head


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_confidence_is_the_score_of_a_chain(temperature: float) -> None:
    engine = served(TARGET, spark(0.7))
    params = SamplingParams(temperature=temperature, max_tokens=12, seed=3)
    made = request(small_models.ids(9), params, draft="dspark", spec_length=3)
    drafts = [draft for _, draft in recorded(engine, made, source="dspark")]
    assert max(map(len, drafts)) == 3
    for draft in drafts:
        assert draft.scores == pytest.approx([0.7] * len(draft), abs=1e-4)
        assert draft.source == "dspark"


def test_siblings_share_what_confidence_leaves() -> None:
    engine = served(TARGET, spark(0.6))
    made = request(small_models.ids(9), draft="dspark", tree="dynamic", tree_nodes=8)
    drafts = [draft for _, draft in recorded(engine, made, source="dspark")]
    assert any(draft.branches for draft in drafts)
    for draft in drafts:
        assert draft.scores is not None
        for parent in {*draft.parents}:
            own = [draft.scores[i] for i, p in enumerate(draft.parents) if p == parent]
            assert own[0] == pytest.approx(0.6, abs=1e-4)
            assert sum(own) <= 1.0 + 1e-4
            assert max(own) == own[0]


def test_outputs_stay_with_requests_of_several_depths() -> None:
    engine = served(TARGET, spark(0.5))
    params = SamplingParams(max_tokens=40)
    prompts = [small_models.ids(n, seed=n) for n in (58, 20)]
    plain = [generate(engine, prompt, params) for prompt in prompts]
    requests = [request(p, params, id=str(i), draft="dspark", spec_length=3) for i, p in enumerate(prompts)]
    drafts = recorded(engine, *requests, source="dspark")
    assert [list(r.output) for r in requests] == plain
    assert {len(draft) for _, draft in drafts} >= {1, 3}


def test_a_head_beside_its_model_is_found(tmp_path: Path) -> None:
    model = tmp_path / "Tiny"
    model.mkdir()
    assert find_dspark(str(model)) is None
    other, named = tmp_path / "other-dspark", tmp_path / "some-dspark-head"
    for folder, target in ((other, "org/Other"), (named, "org/Tiny")):
        folder.mkdir()
        raw = {"speculators_config": {"verifier": {"name_or_path": target}}}
        (folder / "config.json").write_text(json.dumps(raw))
    assert find_dspark(str(model)) == named
    beside = tmp_path / "Tiny-DSpark"
    beside.mkdir()
    (beside / "config.json").write_text("{}")
    assert find_dspark(str(model)) == beside
    for file in ("Tiny-Q4_K_M.gguf", "Large-DSpark-BF16.gguf"):
        (tmp_path / file).touch()
    assert find_dspark(str(tmp_path / "Tiny-Q4_K_M.gguf")) is None
    (tmp_path / "Tiny-DSpark-BF16.gguf").touch()
    assert find_dspark(str(tmp_path / "Tiny-Q4_K_M.gguf")) == tmp_path / "Tiny-DSpark-BF16.gguf"


def test_the_default_drafts_with_the_head_beside_the_model(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "Tiny")
    fingerprint = target_fingerprint(load_model(folder, ModelOptions(dtype="float32")), "copy")
    own: dict[str, Any] = {
        "heads": 3, "num_heads": 2, "num_kv_heads": 1, "head_dim": 8, "intermediate_size": 16, "max_seq_len": 64,
        "feature_layers": (1,), "mask_token_id": 1, "dspark": DSpark(rank=2, confidence=True),
    }  # fmt: skip
    own |= {"hidden_size": fingerprint.hidden_size, "vocab_size": fingerprint.vocab_size}
    config = HeadConfig(kind="dspark", target=fingerprint, **own)
    save_head(tmp_path / "Tiny-DSpark", make_head(config), config)
    llm = LLM(str(folder), threads=1, dtype="float32")
    assert llm.speculation.draft == "suffix,dspark"
    params = SamplingParams(max_tokens=8, ignore_eos=True)
    plain = llm.generate("hello world", params, speculation=SpeculationParams(draft="none"))
    output = llm.generate("hello world", params, speculation=SpeculationParams(draft="dspark", spec_length=3))
    assert output.token_ids == plain.token_ids
    assert output.stats.draft_error is None
    assert output.stats.num_draft_tokens > 0
    (tmp_path / "Tiny-DSpark" / "config.json").write_text("{}")
    assert LLM(str(folder), threads=1, dtype="float32").speculation.draft == "suffix"
