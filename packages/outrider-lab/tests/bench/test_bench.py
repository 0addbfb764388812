"""Benchmarks on a tiny model, and the arithmetic of what is reported."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from outrider import LLM, SamplingParams, SpeculationParams
from outrider.config.setting import parse_source
from outrider.errors import ConfigError
from outrider_lab.bench import runner, show
from outrider_lab.bench.arrivals import closed_loop, poisson
from outrider_lab.bench.backends import OutriderBackend, PeerBackend
from outrider_lab.bench.process import PeerProcess
from outrider_lab.bench.regret import regret
from outrider_lab.bench.summary import BackendResult, paired_ratio
from outrider_lab.data.workloads import Question
from tests.model_folders import model_folder

PARAMS = SamplingParams(max_tokens=10, ignore_eos=True)
PROMPTS = [[5, 6, 7], [8, 9], [10, 11, 12, 13]]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = str(model_folder(tmp_path_factory.mktemp("models") / "target"))
    return LLM(folder, draft_model=folder, dtype="float32", draft_dtype="float32", max_batch_size=2, prefix_reuse=False)


def test_ratios_are_paired() -> None:
    # Prompts differ a hundredfold in time; the ratio is always 2, so its interval has no width.
    ratio = paired_ratio([1.0, 100.0, 10.0], [0.5, 50.0, 5.0])
    assert (ratio.mean, ratio.low, ratio.high) == pytest.approx((2, 2, 2))
    wide = paired_ratio([1.0, 1.0], [0.5, 1.0])
    assert wide.mean == pytest.approx(math.sqrt(2))
    assert wide.low < 1 < wide.high
    assert paired_ratio([1.0], [0.5]).high == math.inf


def test_a_closed_loop_keeps_so_many_requests_running(llm: LLM) -> None:
    served = closed_loop(llm, PROMPTS, PARAMS, SpeculationParams(draft="none"), 2)
    alone = [llm.generate([p], PARAMS)[0].token_ids for p in PROMPTS]
    assert [s.tokens for s in served] == alone
    assert all(len(s.times) == 10 and s.times == sorted(s.times) for s in served)
    assert 0 < served[0].ttft < served[0].latency
    assert served[2].sent > 0  # after one of the others


def test_poisson_requests_arrive_over_time_whatever_is_running(llm: LLM) -> None:
    served = poisson(llm, PROMPTS, PARAMS, SpeculationParams(draft="model", spec_length=3), rate=50.0)
    assert served[0].sent == 0 < served[1].sent < served[2].sent
    assert [len(s.tokens) for s in served] == [10, 10, 10]


def test_backends_take_turns_and_identical_outputs_are_counted(llm: LLM) -> None:
    questions = [Question(str(i), kind, "") for i, kind in enumerate("aab")]
    own = [OutriderBackend(name, llm, PARAMS, parse_source(name, 4), 1, None) for name in ("none", "model:4")]
    records = runner.run_interleaved(own, PROMPTS, group=1, rounds=2)
    found = runner.results(records, questions, 1)
    assert found["model:4"]["all"]["identical"] == found["model:4"]["all"]["requests"] == 3
    assert found["none"]["all"]["speedup"] == 1
    assert set(found["none"]["categories"]) == {"a", "b"}
    drafted = found["model:4"]
    for rates in (drafted["all"], *drafted["categories"].values()):
        assert rates["draft_acceptance_rate"] == 1.0  # the draft is the target
        assert rates["mean_acceptance_length"] == 5.0
    assert found["none"]["all"]["mean_acceptance_length"] == 1.0
    assert "draft_acceptance_rate" not in found["none"]["all"]
    assert len(records["none"].seconds[2]) == 2
    assert found["none"]["ttft_s"]["p50"] <= found["none"]["latency_s"]["p50"]
    lines = show.table(found)
    assert "model:4" in lines[2]
    assert [line.split(",")[0].split()[0] for line in lines if "by category" in line] == ["times", "τ", "α"]


def test_an_interrupted_benchmark_reports_what_all_have_finished(llm: LLM) -> None:
    own = [OutriderBackend(name, llm, PARAMS, parse_source(name, 4), 1, None) for name in ("none", "ngram:4")]
    done = 0

    def tick(_: str) -> None:
        nonlocal done
        done += 1
        if done == 5:  # two have warmed up, both have answered the first prompt, one the second
            raise KeyboardInterrupt

    records = runner.run_interleaved(own, PROMPTS, group=1, rounds=2, tick=tick)
    assert [list(record.seconds) for record in records.values()] == [[0], [0]]
    found = runner.results(records, [Question("", "a", "")] * 3, 1)
    assert found["ngram:4"]["all"]["requests"] == 1

    def at_once(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_interleaved(own, PROMPTS, group=1, rounds=1, tick=at_once)


def test_a_group_of_mixed_categories_counts_for_none_of_them(llm: LLM) -> None:
    questions = [Question(str(i), kind, "") for i, kind in enumerate("aab")]
    records = runner.run_interleaved(
        [OutriderBackend("none", llm, PARAMS, parse_source("none", 4), 2, None)], PROMPTS, group=2, rounds=1
    )
    assert set(runner.results(records, questions, 2)["none"]["categories"]) == {"a", "b"}
    questions[0] = Question("0", "b", "")
    assert set(runner.results(records, questions, 2)["none"]["categories"]) == {"b"}


def test_auto_is_held_against_the_best_fixed_setting_of_each_category() -> None:
    seconds = {  # a token, of the questions of a and of b
        "none": (1.0, 1.0),
        "lookup:4": (0.5, 2.0),
        "lookup:auto": (0.8, 0.9),
        "ngram": (0.1, 0.1),  # adaptive too, without a fixed setting of its own
        "llama.cpp:q4.gguf": (0.1, 0.1),
    }
    records = {name: BackendResult() for name in seconds}
    for name, (a, b) in seconds.items():
        for unit in range(8):
            records[name].add(unit, a if unit < 4 else b, [[1]], [])
    ours = {name: parse_source(name, "auto") for name in seconds if not name.startswith("llama.cpp")}
    questions = [Question(str(i), "a" if i < 4 else "b", "") for i in range(8)]
    results = runner.results(records, questions, 1, ours)
    auto = results["lookup:auto"]["categories"]
    assert auto["a"]["regret"] == pytest.approx(1 - 0.5 / 0.8, abs=1e-3)
    assert auto["b"]["regret"] == pytest.approx(1 - 1 / 0.9, abs=1e-3)
    assert auto["b"]["regret_low"] == auto["b"]["regret_high"] == auto["b"]["regret"]  # every question says the same
    assert results["lookup:auto"]["all"]["regret_low"] <= results["lookup:auto"]["all"]["regret_high"]
    assert not any("regret" in results[name]["all"] for name in results if name != "lookup:auto")


def test_a_regret_within_the_noise_is_told_from_one_that_is_not() -> None:
    rng = np.random.default_rng(1)

    def noisy(seconds: float) -> list[float]:
        return [float(seconds * noise) for noise in rng.lognormal(0, 0.1, 24)]

    rivals = [noisy(1.0) for _ in range(8)]  # all equal: the best of them is the luckiest
    assert regret(noisy(1.0), rivals).share > 0
    assert not regret(noisy(1.0), rivals).is_told
    told = regret(noisy(1.2), rivals)
    assert told.is_told
    assert told.low is not None
    assert told.high is not None
    assert told.low < 1 - 1 / 1.2 < told.high
    assert regret([1.0, 1.0], [[0.9, 0.9]]).low is None  # of two questions nothing can be said


def test_a_plot_is_written(llm: LLM, tmp_path: Path) -> None:
    records = runner.run_interleaved(
        [OutriderBackend("none", llm, PARAMS, parse_source("none", 4), 1, None)], PROMPTS, group=1, rounds=1
    )
    show.plot(tmp_path / "plot.png", {1: runner.results(records, [Question("", "", "")] * 3, 1)}, "title")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_settings_are_read(llm: LLM) -> None:
    assert parse_source("model:4:rejection", 9) == SpeculationParams(draft="model", spec_length=4, verifier="rejection")
    assert parse_source("ngram", 9).spec_length == 9
    assert parse_source("suffix+ngram:auto:tree_nodes=24:lenience=0.5:verifier=lenient", 9) == SpeculationParams(
        draft="suffix+ngram", spec_length="auto", tree_nodes=24, lenience=0.5, verifier="lenient"
    )
    for bad in ("telepathy", "ngram:x", "ngram:3:hope", "ngram:1:matching:2", "ngram:1:speed=9"):
        with pytest.raises(ConfigError, match=bad.split(":")[0]):
            parse_source(bad, 5)


def test_a_peer_runs_in_its_own_process(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "target")
    worker = PeerProcess("outrider:none", folder, "float32", 1)
    peer = PeerBackend(worker, 6)
    tokens, seconds, served = peer.run(PROMPTS, "")
    worker.close()
    expected = LLM(str(folder), draft="none", dtype="float32").generate(PROMPTS, SamplingParams(max_tokens=6))
    assert tokens == [o.token_ids for o in expected]
    assert seconds > 0
    assert served == []
    assert peer.peak_mb() > 10


def test_a_peer_without_its_library_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="ended early"):
        PeerProcess("outrider:none", tmp_path / "missing", "float32", 1)
