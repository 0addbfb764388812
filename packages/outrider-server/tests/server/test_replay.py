"""A record run again: equal under other drafts, threads and instruction sets, and the first token that differs."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from outrider import LLM, SamplingParams
from outrider.cli import main
from outrider.errors import ConfigError
from outrider.recording.records import Recorded, read_record
from outrider_server.replaying import Difference, Replayed, other_model, replay
from tests.model_folders import model_folder
from tests.server.live import Live

BODIES = [
    {"prompt": "one two one two", "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 2},
    {"prompt": "three", "max_tokens": 9, "temperature": 0.9, "ignore_eos": True},
    {
        "prompt": "four",
        "max_tokens": 8,
        "temperature": 1,
        "n": 2,
        "seed": 5,
        "logit_bias": {"7": 3},
        "ignore_eos": True,
    },
    {"prompt": "five", "max_tokens": 9, "stop": ["e"], "presence_penalty": 0.5, "stream": True},
    {"prompt": "six", "max_tokens": 9, "structured_outputs": {"choice": ["yes", "no"]}},
    {"prompt": "seven", "max_tokens": 4, "use_beam_search": True, "n": 2},
]


@pytest.fixture(scope="module")
def record(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record of ``BODIES``, made with n-gram drafts."""
    path = tmp_path_factory.mktemp("record") / "record.jsonl"
    llm = LLM(str(folder), draft="ngram", spec_length=4, max_batch_size=4, threads=1)
    with Live(llm, record=str(path), api_keys=("secret-of-a-caller",)) as server:
        for body in BODIES:
            headers = {"Authorization": "Bearer secret-of-a-caller"}
            assert server.client.post("/v1/completions", json=body, headers=headers).status_code == 200
    return path


@pytest.fixture
def plain(folder: Path) -> Iterator[LLM]:
    llm = LLM(str(folder), draft="none", threads=1)
    yield llm
    llm.close()


def test_a_record_is_the_owner_s_and_holds_no_key(record: Path) -> None:
    assert record.stat().st_mode & 0o77 == 0
    assert "secret-of-a-caller" not in record.read_text()
    found = list(read_record(record))
    assert len(found) == 8
    assert found[5].text in ("yes", "no")
    assert [one.params["seed"] for one in found[2:4]] == [5, 6]
    assert all(isinstance(one.params["seed"], int) for one in found)  # drawn seeds too
    assert all(len(one.origins) == len(one.output) for one in found)


def test_a_record_is_the_same_without_drafts(record: Path, plain: LLM) -> None:
    recorded = list(read_record(record))
    found = list(replay(plain, recorded, at_once=3))
    assert [one.difference for one in found] == [None] * 8
    assert [one.left_out for one in found] == [None] * 6 + ["it is no sampling"] * 2
    assert other_model(plain, recorded) == []


def test_a_request_that_was_given_up_is_compared_as_far_as_it_came(record: Path, plain: LLM) -> None:
    whole = next(read_record(record))
    begun = replace(whole, output=whole.output[:5], origins=whole.origins[:5], finish_reason=None)
    assert [one.difference for one in replay(plain, [begun])] == [None]


def test_the_first_token_that_differs_is_named_with_its_step(record: Path, plain: LLM) -> None:
    whole = next(read_record(record))
    wrong = (whole.output[6] + 1) % 64
    changed = replace(whole, output=[*whole.output[:6], wrong, *whole.output[7:]], origins="taabtaabtaab")
    found = _differing(plain, changed)
    assert (found.token, found.step, found.recorded, found.replayed) == (7, 4, wrong, whole.output[6])
    assert found.recorded_candidates is not None
    assert found.replayed_candidates[0].token == found.replayed  # the output is greedy
    assert found.recorded_candidates[0].logprob == found.replayed_candidates[0].logprob
    shorter = _differing(plain, replace(whole, output=whole.output[:4], origins="tttt"))
    assert (shorter.token, shorter.recorded, shorter.recorded_text) == (5, None, "the end")


def _differing(llm: LLM, recorded: Recorded) -> Difference:
    found: list[Replayed] = list(replay(llm, [recorded]))
    assert found[0].difference is not None
    return found[0].difference


def test_the_command_compares_and_names_another_model(
    record: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = model_folder(tmp_path / "other", max_position_embeddings=1024, rms_norm_eps=0.5, rope_theta=3.0)
    for model, code in ((folder, 0), (other, 1)):
        monkeypatch.setattr("sys.argv", ["outrider", "replay", str(record), "-m", str(model), "--draft=none", "--json"])
        with pytest.raises(SystemExit) as ended:
            main.main()
        assert (ended.value.code or 0) == code
        report = json.loads(capsys.readouterr().out)
        assert report["complete"]
        assert (report["equal"] == 6) == (code == 0)
        assert bool(report["other_model"]) == (code == 1)
    monkeypatch.setattr("sys.argv", ["outrider", "replay", str(record)])
    monkeypatch.chdir(folder.parent)  # where the recorded model is
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert not ended.value.code
    assert "6 of 8 outputs are the recorded ones" in capsys.readouterr().out
    monkeypatch.chdir("/")
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 2
    assert "which is not here: name it, or its file, with -m" in capsys.readouterr().err


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    for text in ("{}\n", "no json\n"):
        (tmp_path / "file").write_text(text)
        with pytest.raises(ConfigError, match="no record"):
            list(read_record(tmp_path / "file"))


def test_a_record_that_cannot_be_written_costs_no_answer(folder: Path, tmp_path: Path) -> None:
    place = tmp_path / "gone"
    place.mkdir()
    with Live(LLM(str(folder), threads=1), record=str(place / "record")) as server:
        place.rmdir()
        assert server.client.post("/v1/completions", json=BODIES[1]).status_code == 200


@pytest.fixture
def digests(plain: LLM, tmp_path: Path) -> Path:
    """A record with the digests of logits: a greedy answer, then a drawn one."""
    file = tmp_path / "digests.jsonl"
    with plain.record(file, logits=True):
        kinds = [SamplingParams(max_tokens=20, ignore_eos=True, temperature=t, seed=4) for t in (0, 1)]
        plain.generate(["one two one two", "three"], kinds)
    return file


def test_other_logits_of_the_same_token_are_named(digests: Path, plain: LLM) -> None:
    whole = next(read_record(digests))
    assert whole.logits is not None
    assert _line(plain, whole) == ""
    changed = replace(whole, logits=[*whole.logits[:3], "0" * 16, *whole.logits[4:]])
    assert "token 4, in step 4: " in _line(plain, changed)
    assert " comes from other logits; recorded: " in _line(plain, changed)
    found = _differing(plain, changed)
    assert found.recorded == found.replayed == whole.output[3]
    assert found.recorded_candidates == found.replayed_candidates != []


def _line(llm: LLM, recorded: Recorded) -> str:
    return "".join(one.difference.line() for one in replay(llm, [recorded]) if one.difference is not None)


def test_a_request_that_does_not_fit_here_is_left_out(digests: Path, folder: Path) -> None:
    """Its output would end earlier, which is no difference."""
    long, short = read_record(digests)
    size = len(short.prompt) + len(short.output)
    assert len(long.prompt) < size < len(long.prompt) + len(long.output)
    with LLM(str(folder), draft="none", threads=1, max_seq_len=size) as small:
        found = list(replay(small, [long, short, replace(short, prompt=[1 << 20])]))
    assert [(one.left_out is None, one.difference) for one in found] == [(False, None), (True, None), (False, None)]
    assert f"tokens, and the context here has {size}" in (found[0].left_out or "")
    assert "it cannot run here: " in (found[2].left_out or "")


def _replay(record: Path, folder: Path, isa: str, threads: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "outrider", "replay", str(record), "-m", str(folder), "--threads", str(threads)]
    chosen = {} if isa == "best" else {"OUTRIDER_ISA": isa}
    return subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | chosen)


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("isa", ["portable", "best"])
def test_a_record_is_the_same_on_instruction_sets_and_threads(
    digests: Path, folder: Path, isa: str, threads: int
) -> None:
    done = _replay(digests, folder, isa, threads)
    assert (done.returncode, done.stdout) == (0, "2 of 2 outputs are the recorded ones\n"), done.stderr


@pytest.mark.slow
def test_a_planted_difference_is_named_on_another_instruction_set(digests: Path, folder: Path) -> None:
    first, second = (json.loads(line) for line in digests.read_text().splitlines())
    right, second["output"][11] = second["output"][11], (second["output"][11] + 1) % 64
    digests.write_text("".join(json.dumps(one) + "\n" for one in (first, second)))
    done = _replay(digests, folder, "portable", 2)
    named, total = done.stdout.splitlines()
    assert done.returncode == 1
    assert f"{second['id']}: token 12, in step 12: " in named
    assert f"{right!r}" not in named  # texts, not ids
    then, now = named.partition("; recorded: ")[2].split("; here: ")
    assert then == now != "not recorded"  # the same distribution; the planted token is not among its likeliest
    assert total == "1 of 2 outputs are the recorded ones"


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "has no requests"), ("[1]\n", "line 1: it is no record of outrider"), (None, "cannot read")],
)
def test_the_command_refuses_a_wrong_file_in_one_line(
    text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "file"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr("sys.argv", ["outrider", "replay", str(file), "-m", "no-model-is-loaded"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    said = capsys.readouterr()
    assert ended.value.code == 2
    assert message in said.err
    assert len(said.err.strip().splitlines()) == 1
    assert said.out == ""


def test_an_interruption_reports_what_was_run(
    digests: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(llm: LLM, recorded: list[Recorded]) -> Iterator[Replayed]:
        yield from replay(llm, recorded[:1])
        raise KeyboardInterrupt

    monkeypatch.setattr("outrider_server.replaying.replay", interrupted)
    monkeypatch.setattr("sys.argv", ["outrider", "replay", str(digests), "-m", str(folder), "--threads=1"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert ended.value.code == 130
    assert capsys.readouterr().out == "1 of 2 outputs are the recorded ones; interrupted\n"


def test_a_command_s_answer_is_recorded(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], plain: LLM
) -> None:
    file = tmp_path / "talk.jsonl"
    monkeypatch.setattr("sys.stdin", io.StringIO("one two one two"))
    words = ["generate", "--raw", "-m", str(folder), "-n", "9", "--threads=1", "--ignore-eos", f"--record={file}"]
    monkeypatch.setattr("sys.argv", ["outrider", *words, "--json"])
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert not ended.value.code
    (found,) = read_record(file)
    assert found.output == json.loads(capsys.readouterr().out)["token_ids"]
    assert found.logits is not None
    assert _line(plain, found) == ""
