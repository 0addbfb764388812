"""The command line as a user meets it, with its exit codes and its one-line errors.

Most commands run in this process, as starting one takes longer than what it does; what only a process of its own shows
(exit codes, the terminal, what reaches standard output) is tested in one.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from rich.console import Console

from outrider import LLM, StructuredOutput
from outrider.cli import main, suggest
from outrider.cli.shared import first_words
from outrider.cli.shared.options import structured
from outrider.native.processor import num_threads, set_num_threads
from tests.model_folders import model_folder, other_vocabulary
from tests.paths import ROOT

EXAMPLES = str(ROOT / "examples")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target")


def outcome(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """What ``outrider`` with these arguments does, in this process."""
    given, out, err = (io.TextIOWrapper(io.BytesIO(text), encoding="utf-8") for text in (stdin.encode(), b"", b""))
    threads = num_threads()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["outrider", *args])
        patch.setattr(sys, "stdin", given)
        patch.setattr(sys, "stdout", out)
        patch.setattr(sys, "stderr", err)
        patch.syspath_prepend(EXAMPLES)
        with pytest.raises(SystemExit) as end:
            main.main()
    set_num_threads(threads)
    texts = []
    for stream in (out, err):
        stream.flush()
        stream.seek(0)
        texts.append(stream.read())
    return subprocess.CompletedProcess(args, int(end.value.code or 0), *texts)


def run(*args: str, stdin: str = "", code: int = 0) -> subprocess.CompletedProcess[str]:
    """``outcome``, which ends as expected."""
    done = outcome(*args, stdin=stdin)
    assert done.returncode == code, done.stderr
    return done


def run_process(*args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "outrider", *args]
    done = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done


def test_generate_prints_text_to_stdout_and_statistics_to_stderr(folder: Path) -> None:
    done = run_process("generate", "-m", str(folder), "-p", "hello", "-n", "8", "--ignore-eos", "--draft", "none")
    assert "8 tokens in" in done.stderr
    assert "\x1b[" not in done.stdout + done.stderr


def test_json_has_the_documented_fields(folder: Path) -> None:
    common = ("generate", "-m", str(folder), "-n", "12", "--ignore-eos", "-t", "0.9", "--seed", "3", "--json")
    plain = json.loads(run(*common, "--draft", "none", stdin="hello world\n").stdout)
    drafted = json.loads(run(*common, "--draft-model", str(folder), "-k", "4", "-p", "hello world").stdout)
    usual = json.loads(run(*common, "hello world").stdout)
    assert plain["token_ids"] == drafted["token_ids"] == usual["token_ids"]
    assert plain["text"] == drafted["text"]
    assert (plain["draft"], drafted["draft"], usual["draft"]) == ("none", "model", "suffix")
    assert plain.keys() == {"text", "token_ids", "finish_reason", "model", "draft", "seed", "stats"}
    assert plain["stats"].keys() >= {
        "prompt_tokens", "completion_tokens", "target_runs", "num_draft_tokens", "num_accepted_draft_tokens",
        "draft_acceptance_rate", "mean_acceptance_length", "acceptance_by_position", "prefill_s", "decode_s",
        "tokens_per_s",
    }  # fmt: skip
    assert drafted["stats"]["num_accepted_draft_tokens"] > 0


def test_beams(folder: Path) -> None:
    common = ("generate", "-m", str(folder), "-n", "8", "--json", "-p", "hello world")
    found = {
        (width, draft): json.loads(
            run(*common, "--beam-width", width, "--length-penalty", "0", "--draft", draft).stdout
        )
        for width, draft in (("1", "none"), ("6", "none"), ("6", "lookup"))
    }
    assert found["6", "none"]["score"] == found["6", "lookup"]["score"]
    assert found["6", "none"]["token_ids"] == found["6", "lookup"]["token_ids"]
    assert found["6", "none"]["score"] >= found["1", "none"]["score"]
    assert (
        run(*common[:-3], "-p", "hello world", "--beam-width", "6", "--length-penalty", "0").stdout.rstrip("\n")
        == (found["6", "none"]["text"])
    )
    refused = run(*common, "--beam-width", "2", "-t", "0.5", code=2).stderr
    assert "temperature=0.5" in refused
    assert "beam search does not take it" in refused


def test_a_source_of_one_s_own_and_a_prediction(folder: Path, tmp_path: Path) -> None:
    common = ("generate", "-m", str(folder), "-n", "12", "--ignore-eos", "--json", "-p", "hello world")
    plain = json.loads(run(*common).stdout)
    (tmp_path / "expected.txt").write_text(plain["text"])
    predicted = json.loads(run(*common, "--prediction", str(tmp_path / "expected.txt")).stdout)
    own = json.loads(run(*common, "--draft", "own_source:Echo,suffix", "-k", "4").stdout)
    assert plain["token_ids"] == predicted["token_ids"] == own["token_ids"]
    assert (predicted["draft"], own["draft"]) == ("prediction", "own_source:Echo,suffix")
    assert "draft_error" not in own["stats"]
    assert set(own["stats"]["draft_sources"]) <= {"echo", "suffix"}


def test_a_trained_table_drafts(folder: Path, tmp_path: Path) -> None:
    text, table = tmp_path / "text.txt", tmp_path / "table.safetensors"
    common = ("generate", "-m", str(folder), "-n", "12", "--ignore-eos", "--json", "-p", "hello world")
    plain = json.loads(run(*common).stdout)
    text.write_text(plain["text"].encode("ascii", "ignore").decode() + "hello world and the world")
    assert "pairs" in run("train", "table", str(text), "-o", str(table), "-m", str(folder)).stdout
    drafted = json.loads(run(*common, "-k", "4", "--draft", "bigram,unigram", "--draft-table", str(table)).stdout)
    assert drafted["token_ids"] == plain["token_ids"]
    assert drafted["stats"]["num_draft_tokens"] > 0
    assert "no text to count" in run("train", "table", os.devnull, "-o", str(table), "-m", str(folder), code=2).stderr
    assert "cannot read" in run("train", "table", "nowhere", "-o", str(table), "-m", str(folder), code=2).stderr


def test_a_lossy_verifier_is_named_in_the_statistics(folder: Path) -> None:
    common = ("generate", "-m", str(folder), "-p", "hello", "-n", "8", "-t", "0.9", "--ignore-eos", "--draft", "ngram")
    lenient = ("--verifier", "lenient", "--lenience", "0.3")
    assert "not exact (lenient)" in run(*common, *lenient).stderr
    assert json.loads(run(*common, *lenient, "--json").stdout)["stats"]["exact"] is False
    assert "exact" not in run(*common, "--verifier", "block").stderr


def on_a_terminal(*args: str) -> str:
    """Everything a command writes when its output is a terminal."""
    outer, inner = pty.openpty()
    written = io.BytesIO()

    def read() -> None:
        with contextlib.suppress(OSError):  # Linux reports the end of a terminal this way
            while chunk := os.read(outer, 65536):
                written.write(chunk)

    reader = threading.Thread(target=read)
    reader.start()
    with os.fdopen(inner, "w", encoding="utf-8") as screen, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["outrider", *args])
        patch.setattr(sys, "stdout", screen)
        patch.setattr(sys, "stderr", screen)
        with pytest.raises(SystemExit) as end:
            main.main()
        assert not end.value.code
    reader.join(60)
    os.close(outer)
    return written.getvalue().decode()


def test_colours_on_a_terminal_only_and_not_with_no_color(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path))
    command = ("generate", "-m", str(folder), "-p", "hello", "-n", "12", "--ignore-eos", "--draft-model", str(folder))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, piped = on_a_terminal(*command), run(*command)
    assert "\x1b[32m" in coloured
    assert "\x1b[32m" not in piped.stdout
    assert "a toy to try" in coloured.replace("\r\n", " ")
    assert "a toy to try" not in piped.stdout + piped.stderr
    monkeypatch.setenv("NO_COLOR", "1")
    plain = on_a_terminal(*command)
    assert "\x1b[32m" not in plain
    assert "12 tokens in" in plain
    assert "a toy to try" not in plain.replace("\r\n", " "), "it is said once"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("-m", "no-such-model", "-p", "x"), "no-such-model"),
        (("-p", ""), "the prompt is empty"),
        (("hello", "-p", "world"), "given a second time"),
        (("-p", "x", "-n", "0"), "max_tokens=0"),
        (("-p", "x", "-n", "-5"), "max_tokens=-5"),
        (("-p", "x", "-t", "-1"), "temperature=-1.0"),
        (("-p", "x", "-t", "nan"), "temperature=nan"),
        (("-p", "x", "--top-p", "0"), "top_p=0.0"),
        (("-p", "x", "--top-p", "1.5"), "top_p=1.5"),
        (("-p", "x", "-k", "0"), "spec_length=0"),
        (("-p", "x", "--draft", "telepathy"), "telepathy"),
        (("-p", "x", "--draft", "model"), "draft_model"),
        (("-p", "x", "--draft", "suffix,suffix"), "'suffix' twice"),
        (("-p", "x", "--draft", "nowhere:Class"), "cannot be imported"),
        (("-p", "x", "--draft-table", "nowhere"), "draft_table='nowhere'"),
        (("-p", "x", "--prediction", "nowhere"), "prediction='nowhere'"),
        (("-p", "x", "--verifier", "hope"), "verifier='hope'"),
        (("-p", "x", "--lenience", "0.5"), "use verifier='lenient'"),
        (("-p", "x", "--verifier", "typical", "--posterior-threshold", "2"), "posterior_threshold=2.0"),
        (("-p", "x", "--dtype", "float8"), "dtype='float8'"),
        (("-p", "x", "--device", "abacus"), "abacus"),
        (("-p", "x", "--threads", "0"), "threads=0"),
        (("-p", "x", "--max-tokens", "many"), "many"),
        (("-p", "x", "--no-such-flag"), "--no-such-flag"),
        (("-p", "x", "--logit-bias", "a:b"), "logit_bias='a:b'"),
        (("-p", "word " * 500), "128"),
        (("-p", "x", "--choice", "a", "--regex", "b"), "exactly one of"),
        (("-p", "x", "--regex", "(a"), "unclosed group"),
        (("-p", "x", "--json-schema", "no-such-file"), "json_schema='no-such-file' cannot be read"),
        (("-p", "x", "--json-schema", "{nonsense"), "json_schema is not JSON"),
        (("-p", "x", "--grammar", "."), "grammar='.' cannot be read"),
        (("-p", "x", "--json-object", "--ignore-eos"), "ignore_eos=True"),
        (("-p", "x", "--config", "no-such-file"), "config='no-such-file' cannot be read"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(folder: Path, args: tuple[str, ...], message: str) -> None:
    model = () if "-m" in args else ("-m", str(folder))
    done = run("generate", *model, *args, code=2)
    (error,) = [line for line in done.stderr.splitlines() if not line.startswith("memory: ")]
    assert message in error
    assert done.stdout == ""


def test_a_process_says_what_is_wrong_with_its_exit_code(folder: Path) -> None:
    done = run_process("generate", "-m", str(folder), "-p", "x", "--draft", "telepathy", code=2)
    assert "telepathy" in done.stderr
    assert (done.stderr.count("\n"), done.stdout) == (1, "")


def test_options_from_a_file_give_way_to_the_command_line(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model": str(folder), "draft": "lookup", "spec_length": 3, "max_tokens": 5}))
    common = ("generate", "--config", str(config), "-p", "hello", "--ignore-eos", "--json")
    found, changed = (json.loads(run(*common, *more).stdout) for more in ((), ("--draft", "ngram", "-n", "7")))
    assert (found["draft"], found["model"], len(found["token_ids"])) == ("lookup", str(folder), 5)
    assert (changed["draft"], len(changed["token_ids"])) == ("ngram", 7)
    config.write_text('{"speed": 9}')
    assert "names 'speed'" in run(*common, code=2).stderr
    config.write_text("[1")
    assert "is no JSON" in run(*common, code=2).stderr


def test_structured_output(folder: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"const": {"a": 1}}')
    done = run(
        "generate", "-m", str(folder), "-p", "hello", "-n", "20", "--draft", "grammar", "--json-schema", str(schema)
    )
    assert done.stdout.strip() == '{"a": 1}'
    assert "grammar" in done.stderr


def test_forms_of_output(tmp_path: Path) -> None:
    schema, grammar = tmp_path / "schema.json", tmp_path / "answer.lark"
    schema.write_text('{"const": 1}')
    grammar.write_text('start: "yes" | "no"')
    expected = StructuredOutput(json_schema={"const": 1})
    assert structured(str(schema), False, None, None, None) == expected
    assert structured(' {"const": 1}', False, None, None, None).kind == expected.kind  # type: ignore[union-attr]
    assert structured(None, True, None, None, None) == StructuredOutput(json_object=True)
    assert structured(None, False, "a+", None, None) == StructuredOutput(regex="a+")
    assert structured(None, False, None, ["left", "right"], None) == StructuredOutput(choice=["left", "right"])
    assert structured(None, False, None, None, grammar) == StructuredOutput(grammar='start: "yes" | "no"')
    assert structured(None, False, None, [], None) is None


def test_a_draft_of_another_vocabulary_names_both(folder: Path, tmp_path: Path) -> None:
    other = other_vocabulary(tmp_path / "other")
    done = run("generate", "-m", str(folder), "-p", "x", "--draft-model", str(other), code=2)
    assert f"target {folder}:" in done.stderr
    assert "draft other:" in done.stderr


@pytest.mark.parametrize("damage", ["truncate", "lie", "pickle"])
def test_damaged_weights_are_refused(tmp_path: Path, damage: str) -> None:
    folder = model_folder(tmp_path / "model")
    file = folder / "model.safetensors"
    data = file.read_bytes()
    if damage == "truncate":
        file.write_bytes(data[: len(data) // 2])
    elif damage == "lie":
        file.write_bytes((2**63).to_bytes(8, "little") + data[8:])
    else:
        file.rename(folder / "pytorch_model.bin")
    done = run("generate", "-m", str(folder), "-p", "x", code=2)
    assert done.stderr.startswith("outrider: ")
    assert done.stderr.count("\n") == 1


def test_a_prompt_is_a_message_where_the_model_has_a_template(folder: Path, tmp_path: Path) -> None:
    common = ("-m", str(folder), "-n", "8", "--ignore-eos", "--json", "-p", "hello")
    usual, raw, system = (
        json.loads(run("generate", *common, *more).stdout)["stats"]["prompt_tokens"]
        for more in ((), ("--raw",), ("--system", "Be kind."))
    )
    assert raw < usual < system
    without = model_folder(tmp_path / "base")
    settings = json.loads((without / "tokenizer_config.json").read_text())
    del settings["chat_template"]
    (without / "tokenizer_config.json").write_text(json.dumps(settings))
    continued = json.loads(run("generate", *common, "-m", str(without)).stdout)
    assert continued["stats"]["prompt_tokens"] == raw
    assert "no chat template" in run("generate", *common, "-m", str(without), "--system", "x", code=2).stderr
    assert "leave out --raw" in run("generate", *common, "--raw", "--system", "x", code=2).stderr


@pytest.mark.slow
def test_doctor_reports_and_tests_this_machine() -> None:
    facts = json.loads(run("doctor", "--json", "--threads", "1").stdout)
    kept = {f["dtype"]: f["chains"] and f["trees"] for f in facts["batch_invariance"]}
    assert kept == dict.fromkeys(("bfloat16", "float32", "q8_0", "q4_0", "q4_1"), True)
    assert facts["threads"] == 1
    assert facts["threads_compared"][0]["threads"] == 1


@pytest.mark.parametrize(
    "args",
    [
        ("chat", "-m", "MODEL"),
        ("generate", "hi", "-m", "MODEL", "--system", "Be brief."),
        ("run", "MODEL", "hi", "--system", "Be brief."),
    ],
)
def test_a_model_that_is_no_chat_model_says_so_before_its_weights_are_read(
    args: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = model_folder(tmp_path / "base")
    settings = folder / "tokenizer_config.json"
    settings.write_text(json.dumps({k: v for k, v in json.loads(settings.read_text()).items() if k != "chat_template"}))
    monkeypatch.setattr("outrider.llm.llm.load", lambda *_, **__: pytest.fail("the model was loaded"))
    said = run(*(str(folder) if arg == "MODEL" else arg for arg in args), code=2).stderr
    assert f"{folder} is no chat model (it has no chat template): continue a text with `outrider generate" in said


def test_a_small_model_is_called_a_toy_once_to_people_at_a_terminal(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path))
    llm, said, terminal = LLM(str(folder)), list[str](), Console(file=io.StringIO(), force_terminal=True)
    first_words.say_first_words(llm, "a/tiny", said.append)
    assert said == [], "nobody reads it"
    monkeypatch.setattr(first_words, "stderr", lambda: terminal)
    for keep in (False, True, True):
        first_words.say_first_words(llm, "a/tiny", said.append, keep=keep)
    first_words.say_first_words(llm, "another", said.append)
    assert [text.partition(" has ")[0] for text in said] == ["tiny", "tiny", "another"]
    assert "less than a million parameters: a toy" in said[0]
    monkeypatch.setattr("outrider.cli.suggest.available_memory", lambda: 8 << 30)
    better = suggest.larger_model()
    assert better is not None
    assert f"room for {better.name} (" in str(first_words.first_words(llm, "tiny"))
    monkeypatch.setattr("outrider.cli.suggest.available_memory", lambda: 0)
    assert "room for" not in str(first_words.first_words(llm, "tiny"))
    monkeypatch.setattr(first_words, "SMALL", 1)
    assert first_words.first_words(llm, "tiny") is None


def test_pages_call_the_built_in_model_a_toy() -> None:
    for file in (
        "README.md",
        "examples/demo.py",
        "docs/quickstart.md",
        "packages/outrider/src/outrider/cli/shared/first_words.py",
    ):
        text = (ROOT / file).read_text()
        assert "toy" in text
        assert "outrider chat -m ./my-model.gguf" in text


def test_a_full_disk_behind_stdout_is_one_line(folder: Path) -> None:
    command = [sys.executable, "-m", "outrider", "generate", "-m", str(folder), "-p", "hello", "-n", "4"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            command, stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, timeout=120, check=False
        )
    assert done.returncode == 1
    assert "outrider: cannot write the output: No space left on device" in done.stderr
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


def test_a_cache_where_no_folder_can_be_made_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_CACHE", "/proc/x")
    assert (
        "/proc/x/locks: No such file or directory; correct it, or set OUTRIDER_CACHE"
        in run("pull", "stories15m", code=2).stderr
    )
