"""``benchmarks.mtp``: every source on passages of a text, and the answers of llama.cpp that its drafts changed."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from benchmarks import hybrid_lab, mtp
from outrider import LLM, SamplingParams
from outrider.native.library import library
from tests.paths import LAB

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

PEER = f"""#!{sys.executable}
import sys
model, prompts, count, levels, threads = sys.argv[1:]
for i, prompt in enumerate(open(prompts)):
    ids = [int(word) for word in prompt.split()][: int(count)]
    if int(levels) and i == 1:
        ids[-1] += 1
    print(0.5 / (1 + int(levels)), 4 if int(levels) else 0, 3 if int(levels) else 0, *ids)
"""


def test_it_measures_sources_and_the_peer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peer, out = tmp_path / "peer", tmp_path / "out.json"
    peer.write_text(PEER)
    peer.chmod(0o755)
    given = [str(LAB / "hybrid" / "model.gguf"), __file__, mtp.__file__, "--count", "2", "--max-tokens", "12"]
    given += ["--prompt-tokens", "40", "--threads", "1", "--peer", str(peer), "--out", str(out)]
    monkeypatch.setattr(sys, "argv", ["mtp", *given])
    mtp.main()
    found = json.loads(out.read_text())
    assert list(found) == ["greedy", "sampled", "llama.cpp, greedy"]
    for mode in ("greedy", "sampled"):
        assert set(found[mode]) == {"none", "suffix", "mtp:3", "suffix,mtp:3", "default"}
        assert all((row["different"], row["of"]) == (0, 2) for row in found[mode].values())
        assert found[mode]["none"]["tau"] == 1
    theirs = found["llama.cpp, greedy"]["mtp:3"]
    assert (theirs["different"], theirs["of"], theirs["accepted_share"], theirs["speedup"]) == (1, 2, 0.75, 4.0)
    assert "| mtp:3 |" in capsys.readouterr().out


@pytest.mark.slow
def test_the_laboratorys_hybrid_is_trained_saved_and_drafts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.models.qwen3_5.modeling_qwen3_5.causal_conv1d_fn", hybrid_lab.shifted_sums)
    texts = hybrid_lab.read_texts(Path(mtp.__file__).parent)
    assert len(texts.train) > 10 * len(texts.held_out) > 0
    tokenizer = hybrid_lab.make_tokenizer(list(texts.train.values())[:5], 320)
    torch.manual_seed(0)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 4, "head_dim": 16, "vocab_size": 320}
    module = hybrid_lab.Hybrid(hybrid_lab.end_of(tokenizer), **small, linear_key_head_dim=16, linear_value_head_dim=16)
    ids = hybrid_lab.encode(tokenizer, ["for i in range(10):\n    print(i)\n" * 40])
    before = hybrid_lab.held_out_losses(module, ids, 32, 4)
    hybrid_lab.train(module, ids, steps=100, batch=4, length=32, lr=1e-2)
    after = hybrid_lab.held_out_losses(module, ids, 32, 4)
    assert all(late < 0.5 * early for early, late in zip(before, after, strict=True))
    hybrid_lab.save(module, tokenizer, tmp_path)
    llm = LLM(str(tmp_path), implementation="native", draft="mtp", spec_length=2, threads=1)
    params = SamplingParams(max_tokens=20, ignore_eos=True)
    out = llm.generate(["for i in range(10):\n"], params)[0]
    assert out.token_ids == llm.generate(["for i in range(10):\n"], params, speculation=None)[0].token_ids
    assert (out.stats.draft_acceptance_rate or 0) > 0.5
