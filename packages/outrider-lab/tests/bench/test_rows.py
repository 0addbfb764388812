"""``benchmarks.rows``: engines in turn on the same file, limits, and what drafts could gain at most."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import rows
from benchmarks.rows_engines import LlamaBench, LlamaCpp, Passes, Times, open_peer
from outrider.errors import ConfigError
from outrider.models.config import Experts, ModelConfig
from outrider.weights.gguf.header import read_gguf_header
from outrider_lab import theory
from outrider_lab.cost import LatencyCurve
from tests.weights.files import write_gguf

PASSES = Passes(rows=(1, 4), prompt=8, context=3, repeat=2)
BENCH = """
import json, sys
given = dict(zip(sys.argv[1::2], sys.argv[2::2]))
assert (given["-n"], given["-o"], given["-t"]) == ("0", "json", "2"), given
rows = [int(n) for n in given["-p"].split(",")]
print(json.dumps([{"n_prompt": n, "samples_ns": [n * 1_000_000] * int(given["-r"])} for n in rows]))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "random.gguf")
    return tmp_path / "random.gguf"


@pytest.fixture
def bench(tmp_path: Path) -> str:
    """The command of a llama-bench that takes a millisecond a row."""
    (tmp_path / "bench.py").write_text(BENCH)
    return f"{sys.executable} {tmp_path / 'bench.py'}"


class Fixed:
    """An engine that tells its turns."""

    def __init__(self, name: str, turns: list[str]) -> None:
        self.name, self._turns, self.load_s = name, turns, None

    def turn(self) -> Times:
        self._turns.append(self.name)
        return {1: [float(len(self._turns))]}

    def peak_mb(self) -> None:
        """Not known."""

    def close(self) -> None:
        """Nothing to end."""


def test_engines_take_turns_and_another_one_begins_each_round() -> None:
    turns: list[str] = []
    found = rows.in_turn([Fixed("a", turns), Fixed("b", turns)], 3)
    assert turns == ["a", "b", "b", "a", "a", "b"]
    assert found == [{1: [1.0, 4.0, 5.0]}, {1: [2.0, 3.0, 6.0]}]


def test_llama_cpp_decodes_rows_behind_the_context_and_prompts_from_the_start(notes: Path, file: Path) -> None:
    engine = LlamaCpp(sys.executable, file, 2, PASSES)
    found = engine.turn()
    engine.close()
    assert engine.name == "llama.cpp 9.8.7"
    assert {n: len(seconds) for n, seconds in found.items()} == {1: 2, 4: 2, -8: 1}
    context, one, four = [[0, 1, 2], [2]], [[3], [3]], [[3, 4, 5, 6], [3, 4, 5, 6]]
    prompt = [list(range(8)), [7]]
    start, behind = ["forget", 0], ["forget", 3]
    assert [json.loads(line) for line in notes.read_text().splitlines()] == [
        ["threads", 2, 2, 11, 8],
        start, context, *[behind, one] * 3,
        start, context, *[behind, four] * 3,
        start, *[start, prompt] * 2,
    ]  # fmt: skip


def test_a_llama_bench_warms_up_itself(bench: str, file: Path) -> None:
    assert LlamaBench("ik", bench, file, 2, PASSES).turn() == {1: [0.001] * 2, 4: [0.004] * 2, -8: [0.008]}


def test_peers_that_cannot_run_are_one_error_with_the_remedy(file: Path, tmp_path: Path) -> None:
    bare = f"""{sys.executable} -c "raise SystemExit('broken')" """
    for peer, remedy in {
        "llama.cpp": "write llama.cpp:PYTHON",
        f"llama.cpp:{tmp_path / 'python'}": "name an interpreter",
        f"ik:{tmp_path / 'bench'}": "name its llama-bench program",
    }.items():
        with pytest.raises(ConfigError, match=remedy):
            open_peer(peer, file, 2, PASSES).turn()
    with pytest.raises(ConfigError, match="ended with 1: broken"):
        open_peer(f"ik:{bare}", file, 2, PASSES).turn()


def test_an_interpreter_without_llama_cpp_is_told_from_one_that_fails(notes: Path, file: Path) -> None:
    with pytest.raises(ConfigError, match=r"ended early: .* cannot load"):
        open_peer(f"llama.cpp:{sys.executable}", file.with_name("missing.gguf"), 2, PASSES)
    notes.with_name("llama_cpp.py").write_text("import llama_cpp.absent")
    with pytest.raises(ConfigError, match="ended early"):
        open_peer(f"llama.cpp:{sys.executable}", file, 2, PASSES)
    notes.with_name("llama_cpp.py").write_text("raise ModuleNotFoundError(\"No module named 'llama_cpp'\")")
    with pytest.raises(ConfigError, match="pip install llama-cpp-python, or name an interpreter"):
        open_peer(f"llama.cpp:{sys.executable}", file, 2, PASSES)


def test_the_file_is_read_but_for_tables_that_are_looked_up_and_experts_that_are_not_used(file: Path) -> None:
    tensors = read_gguf_header(file).tensors
    sizes = {name: tensor.stop - tensor.start for name, tensor in tensors.items()}
    config = ModelConfig(
        family="llama", vocab_size=8, hidden_size=8, intermediate_size=8, num_layers=1, num_heads=1, num_kv_heads=1,
        head_dim=8, max_seq_len=8,
    )  # fmt: skip
    assert rows.bytes_read(file, config, 1) == sum(sizes.values()) - sizes["token_embd.weight"] > 0
    for used, n, share in ((1, 1, 0.25), (1, 2, 0.4375), (4, 1, 1.0)):
        sparse = replace(config, experts=Experts(count=4, used=used, size=8, normalised=True))
        assert rows.share_of_experts(sparse, n) == pytest.approx(share)
    assert rows.share_of_experts(config, 3) == 1


def test_the_command_prints_every_engine_and_the_limits(
    notes: Path, file: Path, bench: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    peers = ("--peer", f"llama.cpp:{sys.executable}", "--peer", f"ik:{bench}")
    few = ("--rows", "1", "4", "--prompt", "8", "--context", "3", "--rounds", "2", "--repeat", "2", "--threads", "2")
    monkeypatch.setattr(sys, "argv", ["rows", str(file), *peers, *few, "--json"])
    rows.main()
    found = json.loads(capsys.readouterr().out)
    ours, theirs, bench_name = found["seconds"]
    assert (ours.split()[0], theirs, bench_name) == ("outrider", "llama.cpp 9.8.7", "ik")
    assert {n: t["passes"] for n, t in found["seconds"][ours].items()} == {"1": 4, "4": 4, "-8": 2}
    assert found["seconds"]["ik"]["4"] == {"q1": 0.004, "median": 0.004, "q3": 0.004, "passes": 4}
    assert found["threads"] == 2
    assert found["load_s"]["ik"] is found["peak_mb"]["ik"] is None
    assert all(found["load_s"][name] > 0 and found["peak_mb"][name] > 1 for name in (ours, theirs))
    memory, arithmetic = found["limits"]["memory"], found["limits"]["arithmetic"]
    assert memory["1"] == memory["4"] == memory["-8"] > 0
    assert arithmetic["4"] == pytest.approx(4 * arithmetic["1"])
    assert arithmetic["4"] < arithmetic["-8"] < 8 * arithmetic["1"]  # a prompt has one row of logits
    monkeypatch.setattr(sys, "argv", ["rows", str(file), *peers, *few])
    rows.main()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("random.gguf: ")
    assert lines[2].split() == ["ms,", "by", "rows", "1", "4", "prompt", "of", "8"]
    assert lines[5].split() == ["ik", "1.0", "4.0", "1000.0", "tok/s"]
    assert [line[:19].strip() for line in lines[6:8]] == ["limit of memory", "limit of arithmetic"]
    assert re.fullmatch(r"llama\.cpp 9\.8\.7: loaded in \d+\.\d s, at most \d+ MB resident", lines[9])


def test_peers_want_a_gguf_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.model_folders import model_folder

    monkeypatch.setattr(sys, "argv", ["rows", str(model_folder(tmp_path / "folder")), "--peer", "ik:bench"])
    with pytest.raises(SystemExit, match="no GGUF file"):
        rows.main()


def test_rows_that_cost_nothing_leave_the_paper_s_formula() -> None:
    found = rows.ceiling(LatencyCurve({1: 1.0, 8: 1.0}), 1, 0.0)
    assert {a: k for a, (k, _) in found["gains"].items()} == dict.fromkeys(rows.ALPHAS, 7)
    for alpha, (k, gain) in found["gains"].items():
        assert gain == pytest.approx(float(theory.improvement(alpha, k)))
    assert found["break_even"] == pytest.approx(0.0, abs=1e-6)


def test_rows_that_cost_as_much_as_the_first_leave_nothing() -> None:
    found = rows.ceiling(LatencyCurve({n: float(n) for n in (1, 2, 8)}), 1, 0.0)
    assert all(gain == pytest.approx(1.0) for _, gain in found["gains"].values())
    assert found["break_even"] is None


def test_rows_of_a_batch_are_those_of_all_its_requests() -> None:
    """Sixteen requests with a draft token each score 32 rows, where one alone scores 2."""
    curve = LatencyCurve({1: 1.0, 2: 1.0, 16: 2.0, 32: 4.0})
    alone, together = rows.ceiling(curve, 1, 0.0), rows.ceiling(curve, 16, 0.0)
    assert alone["break_even"] == pytest.approx(0.0, abs=1e-6)
    assert together["break_even"] is None
    assert together["gains"][0.6] == (0, 1.0)
