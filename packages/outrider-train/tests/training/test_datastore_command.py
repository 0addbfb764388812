"""``outrider train datastore``: what it writes, what that is worth, and answers that it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider import LLM, SamplingParams
from outrider_train.commands import app
from tests.model_folders import model_folder


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("datastore") / "target")


def test_the_command_and_what_it_is_worth(target: Path, tmp_path: Path) -> None:
    """Answers of the very prompt: the output is the same, in a part of the runs."""
    prompts, params = [[5, 6, 7], [9, 8, 7, 6]], SamplingParams(max_tokens=24, ignore_eos=True)
    with LLM(str(target), draft="none") as plain:
        wanted = [output.token_ids for output in plain.generate(prompts, params)]
    data = tmp_path / "answers.jsonl"
    lines = [{"prompt_ids": p, "answer_ids": list(a)} for p, a in zip(prompts, wanted, strict=True)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "store.safetensors"
    ran = CliRunner().invoke(app, ["datastore", "--data", str(data), "-o", str(out), "-m", str(target), "--json"])
    assert ran.exit_code == 0, ran.output
    told = json.loads(ran.stdout)
    assert (told["answers"], told["tokens"], told["bytes"]) == (2, 48, out.stat().st_size)
    runs: dict[str, int] = {}
    for name in (str(out), "none", "auto"):
        with LLM(str(target), draft="suffix", spec_length=8, datastore=name) as llm:
            outputs = [llm.generate([prompt], params, cache_salt=str(prompt))[0] for prompt in prompts]
            assert [output.token_ids for output in outputs] == wanted
            runs[name] = sum(output.stats.target_runs for output in outputs)
    assert runs[str(out)] < runs["none"] == runs["auto"]


@pytest.mark.parametrize(
    ("line", "says"),
    [({"prompt": "One, two,"}, "prompts without answers"), ({"prompt_ids": [1], "answer_ids": []}, "")],
)
def test_answers_that_are_none(line: dict[str, Any], says: str, target: Path, tmp_path: Path) -> None:
    data = tmp_path / "answers.jsonl"
    data.write_text(json.dumps(line) + "\n")
    ran = CliRunner().invoke(app, ["datastore", "--data", str(data), "-o", str(tmp_path / "x"), "-m", str(target)])
    assert ran.exit_code != 0
    assert says in str(ran.exception) + ran.output
    assert not (tmp_path / "x").exists()
