"""``make gpu`` without one: sessions, budgets, what is gathered, and a rehearsal of everything."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, gpu_session, gpu_training
from benchmarks.gpu_session import Session
from outrider.errors import ConfigError
from outrider_torch.heads import load_head
from tests.paths import LAB

TARGET = LAB / "target"


def arguments(folder: Path, *more: str) -> list[str]:
    return ["--device", "cpu", "--work", str(folder / "work"), "--out", str(folder / "out"), *more]


def test_a_session_does_what_is_left_within_its_budgets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, float]] = []

    def stage(name: str, done: bool) -> Any:
        def run(session: Session) -> bool:
            seen.append((name, session.left))
            if name == "heads":
                raise ConfigError("no answers yet")
            return done

        return run

    monkeypatch.setattr(gpu, "STAGES", {name: stage(name, name == "tests") for name in gpu.BUDGET})
    state = gpu.main(arguments(tmp_path, "--minutes", "6"))
    assert [name for name, _ in seen] == list(gpu.BUDGET)
    assert seen[0][1] < gpu.BUDGET["tests"] < seen[1][1] < 360
    assert state["heads"]["error"] == "no answers yet"
    (tmp_path / "work" / "stages.json").write_text(json.dumps(state | {"answers": {"seconds": 1e4, "done": False}}))
    seen.clear()
    gpu.main(arguments(tmp_path))
    assert [name for name, _ in seen] == ["heads", "bench"]  # tests are done, and answers have had their time
    seen.clear()
    gpu.main(arguments(tmp_path, "--stage", "answers,tests"))
    assert [name for name, _ in seen] == ["tests", "answers"]
    assert json.loads((tmp_path / "out" / "stages.json").read_text())["tests"]["done"]
    with pytest.raises(ConfigError, match="stage='nonsense'"):
        gpu.main(arguments(tmp_path, "--stage", "nonsense"))


def test_processes_are_asked_to_end_when_time_is_up(tmp_path: Path) -> None:
    waits = "import sys, time\ntry:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    sys.exit(130)\n"
    args = gpu.parse(arguments(tmp_path))
    session = Session(args, time.monotonic() + 1.5)
    statuses = gpu_session.run_all([["/bin/true"], [sys.executable, "-c", waits]], session)
    assert statuses == [0, 130]
    assert session.left <= 0


def test_answers_of_all_folders_are_gathered_in_turn(tmp_path: Path) -> None:
    for name, count in (("0", 3), ("1", 1)):
        (tmp_path / name).mkdir()
        lines = [{"prompt_ids": [int(name)], "answer_ids": [i, i], "index": i} for i in range(count)]
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (tmp_path / name / "answers-00000.jsonl").write_text(text + '{"prompt_ids": [1], "answ')
    path = tmp_path / "answers.jsonl"
    assert gpu_training.gather([tmp_path / "0", tmp_path / "1"], path) == 4
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(f["prompt_ids"][0], f["answer_ids"][0]) for f in found] == [(0, 0), (1, 0), (0, 1), (0, 2)]
    (tmp_path / "none").mkdir()
    with pytest.raises(ConfigError, match="no answers yet"):
        gpu_training.gather([tmp_path / "none"], path)


@pytest.mark.slow
def test_a_rehearsal(tmp_path: Path) -> None:
    given = ["--scale", "0.0001", "--model", str(TARGET), "--minutes", "20", "--stage", "answers heads bench"]
    state = gpu.main(arguments(tmp_path, *given))
    assert [name for name, stage in state.items() if stage["done"]] == ["answers", "heads", "bench"]
    out = tmp_path / "out"
    for kind in gpu_training.HEADS:
        report = json.loads((out / "heads" / kind / "report.json").read_text())
        assert report["metrics"]["fresh_answer_tokens"] > 300
        assert (out / "heads" / kind / "README.md").exists()
        if kind != "draft":
            load_head(out / "heads" / kind)
    drafts = json.loads((out / "drafts.json").read_text())
    assert len(drafts["results"]["0"]) == 6
    assert len(json.loads((out / "curve.json").read_text())["held-out documents"]["points"]) == 3
    assert json.loads((out / "answers.json").read_text())["tokens"] > 500  # half of its few openings are too alike
    assert (out / "curve.png").exists()
