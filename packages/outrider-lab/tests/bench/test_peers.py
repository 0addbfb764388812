"""``outrider bench --peer``: the same file and questions through another engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outrider import LLM
from tests.cli.test_cli import outcome, run
from tests.model_folders import model_folder
from tests.weights.files import write_gguf

_FEW = ("-n", "6", "--rounds", "2", "--threads", "1")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "random.gguf"
    write_gguf(path)
    return path


@pytest.fixture(scope="module")
def questions(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("questions") / "two.txt"
    path.write_text("one two one two\n\nred green blue")
    return str(path)


def test_llama_cpp_reads_the_model_s_own_file(notes: Path, file: Path, questions: str) -> None:
    shown = run("bench", "-m", str(file), "--peer", "llama.cpp", "--prompts", questions, *_FEW, "--json")
    found = json.loads(shown.stdout)
    assert list(found["results"]["1"]) == ["none", "suffix", "llama.cpp"]  # plain decoding, and the default
    theirs = found["results"]["1"]["llama.cpp"]["all"]
    low, middle, high = theirs["tokens_per_s_quartiles"]
    assert 0 < low <= middle <= high
    assert theirs["requests"] == found["count"] == 2
    assert "llama.cpp 9.8.7" in found["versions"]
    first = json.loads(notes.read_text().splitlines()[0])
    assert first[0] == "loaded"
    assert Path(first[1]).samefile(file)
    assert first[2:] == [found["threads"]] * 2 == [1, 1]


def test_a_file_of_its_own_is_named_in_the_table(notes: Path, file: Path, questions: str, tmp_path: Path) -> None:
    other = tmp_path / "other.gguf"
    other.write_bytes(file.read_bytes())
    args = ("-s", "none", "--peer", f"llama.cpp:{other}", "--prompts", questions)
    lines = run("bench", "-m", str(file), *args, *_FEW).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["none", "llama.cpp:other.gguf"]
    assert "median (quartiles)" in lines[1]
    assert json.loads(notes.read_text().splitlines()[0])[1] == str(other)


def test_without_sources_or_peers_every_source_is_timed(file: Path, questions: str) -> None:
    found = json.loads(run("bench", "-m", str(file), "--prompts", questions, *_FEW, "--json").stdout)
    assert list(found["results"]["1"]) == ["none", *LLM(str(file), draft="none").drafters]


def test_peers_that_cannot_run_are_one_error_with_the_remedy(
    notes: Path, file: Path, questions: str, tmp_path: Path
) -> None:
    folder = str(model_folder(tmp_path / "folder"))
    for model, peer, remedy in (
        (str(file), f"llama.cpp:{tmp_path / 'missing.gguf'}", "there is no such file"),
        (folder, "llama.cpp", "name one, llama.cpp:FILE.gguf"),
        (str(file), "ollama", "use llama.cpp[:FILE.gguf]"),
    ):
        failed = outcome("bench", "-m", model, "--peer", peer, "--prompts", questions, *_FEW)
        assert failed.returncode != 0
        assert remedy in failed.stderr
    notes.with_name("llama_cpp.py").write_text("raise ModuleNotFoundError(name='llama_cpp')")
    failed = outcome("bench", "-m", str(file), "--peer", "llama.cpp", "--prompts", questions, *_FEW)
    assert failed.returncode != 0
    assert "pip install llama-cpp-python, or name an interpreter that has it with --python" in failed.stderr
    assert "Traceback" not in failed.stderr
