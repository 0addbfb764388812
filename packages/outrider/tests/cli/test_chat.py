"""The chat: through a pipe and step by step in this process, and on a terminal in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from outrider import LLM
from outrider.cli.chat import files
from outrider.config import SamplingParams
from tests.cli.terminal import ALT_ENTER, CTRL_C, CTRL_D, ENTER, UP, Terminal
from tests.cli.test_cli import run
from tests.model_folders import model_folder
from tests.paths import LAB

GREEN = b"\x1b[32m"  # accepted draft tokens


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_folder(tmp_path_factory.mktemp("models") / "target")


def piped(folder: Path, *lines: str, more: tuple[str, ...] = ()) -> tuple[str, str]:
    """What a chat prints to stdout and stderr for these lines; answers have six tokens."""
    given = "".join(f"{line}\n" for line in lines)
    done = run("chat", "-m", str(folder), "-n", "6", *more, stdin=given)
    return done.stdout, done.stderr


def messages(path: Path) -> list[dict[str, str]]:
    found: list[dict[str, str]] = json.loads(path.read_text())
    return found


def test_a_pipe_gets_plain_answers(folder: Path) -> None:
    out, notes = piped(folder, "hello", "/stats", "/reset", "again", "/bye", "never read")
    assert out
    assert ">>>" not in out + notes
    assert "\x1b" not in out + notes
    assert "6 tokens in" in notes
    assert "A new conversation" in notes


def test_what_is_saved_is_a_list_of_messages_that_can_be_loaded(folder: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.json", tmp_path / "second.json"
    system = ("--system", "Be kind.")
    piped(folder, "hello", '"""', "two", "lines", '"""', f"/save {first}", more=system)
    saved = messages(first)
    assert [message["role"] for message in saved] == ["system", "user", "assistant", "user", "assistant"]
    assert (saved[0]["content"], saved[1]["content"], saved[3]["content"]) == ("Be kind.", "hello", "two\nlines")
    assert set(saved[2]) == {"role", "content"}  # as OpenAI's API takes it
    piped(folder, f"/load {first}", "/undo", "/undo", f"/save {second}")
    assert messages(second) == saved[:1]
    first.write_text(json.dumps({"messages": saved[:2]}))
    _, notes = piped(folder, "/regenerate", f"/save {second}", more=("--load", str(first)))
    assert "no answer yet: /regenerate" in notes
    assert messages(second) == saved[:3]


@pytest.mark.parametrize("heat", ["0", "0.9"])
def test_regenerate_gives_the_same_answer_with_the_same_seed(folder: Path, tmp_path: Path, heat: str) -> None:
    once, twice, other = (tmp_path / name for name in ("once.json", "twice.json", "other.json"))
    piped(folder, "hello", f"/save {once}", "/regenerate", f"/save {twice}", "/set seed 8", "/regenerate",
          f"/save {other}", more=("-t", heat, "--seed", "7"))  # fmt: skip
    assert messages(once) == messages(twice)
    assert (messages(once) == messages(other)) is (heat == "0")


def test_a_race_writes_the_same_tokens_with_and_without_drafts(folder: Path, tmp_path: Path) -> None:
    plain, raced = tmp_path / "plain.json", tmp_path / "raced.json"
    sampled = ("-t", "0.8", "--seed", "5", "--draft", "suffix")
    piped(folder, "hello", "/draft none", "one two one two", f"/save {plain}", more=sampled)
    out, notes = piped(folder, "hello", "/race one two one two", f"/save {raced}", more=sampled)
    assert "The same 6 tokens: plain" in notes
    assert messages(plain) == messages(raced)
    assert messages(raced)[-1]["content"] in out
    _, notes = piped(folder, "/draft none", "/race hello", more=sampled)
    assert "nothing drafts" in notes


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temperature hot", "temperature='hot' is not valid"),
        ("/set temperature -1", "temperature=-1 is not valid"),
        ("/set max_tokens 0", "max_tokens=0"),
        ("/set speed 9", "there is no setting 'speed'"),
        ("/set colour green", "colour='green' is not valid: use on or off"),
        ("/draft telepathy", "telepathy"),
        ("/draft model", "draft source 'model' is not loaded"),
        ("/draft lookup:many", "many"),
        ("/load", "/load needs a file"),
        ("/load nowhere.json", "there is no file 'nowhere.json': check the path"),
        ("/load .", "'.' cannot be read"),
        (f"/load {__file__}", "is not JSON"),
        ("/save", "nothing to save"),
        ("/regenerate", "no message to answer"),
        ("/undo", "no message to answer"),
        ("/race", "no message to answer"),
        ("/sav", "did you mean /save?"),
        ("/etc/passwd", "there is no command /etc/passwd"),
        ("word " * 500, "the prompt has"),
        ('"""', "the input ends within"),
    ],
)
def test_what_is_wrong_is_said_in_a_line_and_the_chat_goes_on(folder: Path, line: str, message: str) -> None:
    last = () if line == '"""' else ("hello", "/stats")
    _, notes = piped(folder, line, *last)
    (complaint,) = [note for note in notes.splitlines() if note.startswith("outrider: ")]
    assert message in complaint
    assert not last or "6 tokens in" in notes  # what could not be answered is no part of the conversation


def test_settings_are_shown_and_change_answers(folder: Path) -> None:
    out, notes = piped(folder, "/set temperature 0.5", "/set stop '##'", "/set max_tokens 3", "/set", "/set color on",
                       "/set colour", "hello", "/stats", "/set stop default", "/set stop", "/help")  # fmt: skip
    assert "temperature" in out
    assert "0.5" in out
    assert "'##'" in out
    assert "colour=on" in out
    assert "3 tokens in" in notes
    assert "stop=not set" in out
    assert "/regenerate" in out


def test_a_text_that_begins_with_a_slash_is_sent_behind_a_space(folder: Path, tmp_path: Path) -> None:
    piped(folder, " /etc is a folder", f"/save {tmp_path / 'x.json'}")
    assert messages(tmp_path / "x.json")[0]["content"] == "/etc is a folder"


def test_files_are_written_whole_or_not_at_all(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "notes.json"
    other.write_text('{"to": "keep"}')
    _, notes = piped(folder, "hello", f"/save {other}", "/save /dev/null/x.json")
    assert "is there and no conversation" in notes
    assert "cannot be written" in notes
    assert other.read_text() == '{"to": "keep"}'
    files.write(tmp_path / "new" / "x.json", [{"role": "user", "content": "é\x1b"}])
    assert files.read(tmp_path / "new" / "x.json") == [{"role": "user", "content": "é\x1b"}]
    assert os.listdir(tmp_path / "new") == ["x.json"]
    for text in ("[1]", '{"messages": 1}', '[{"role": "user"}]', '[{"role": 1, "content": "x"}]'):
        other.write_text(text)
        with pytest.raises(ValueError, match="is no conversation"):
            files.read(other)


def open_chat(folder: Path, *more: str, columns: int = 80, **env: str) -> Terminal:
    """A chat on a terminal, with a model of the laboratory, which writes on until it is stopped."""
    model = folder / "chatty"
    if not model.exists():
        shutil.copytree(LAB / "target", model)
        template = "{% for m in messages %}{{ m['content'] }} {% endfor %}"
        changes = {
            "tokenizer_config.json": {"chat_template": template},
            "config.json": {"max_position_embeddings": 16384},  # longer than a terminal nobody reads takes
        }
        for file, change in changes.items():
            (model / file).write_text(json.dumps(json.loads((model / file).read_text()) | change))
    command = [sys.executable, "-m", "outrider", "chat", "-m", str(model), "--threads", "1"]
    command += ["--draft", "suffix", "--spec-length", "5", *more]  # nothing to measure before the first prompt
    env = {"OUTRIDER_STATE": str(folder), "OMP_NUM_THREADS": "1", "NO_COLOR": "", **env}
    terminal = Terminal(command, env=env, columns=columns)
    terminal.wait_for("commands")
    terminal.wait_for_prompt()
    return terminal


def test_a_conversation_on_a_terminal(tmp_path: Path) -> None:
    """Several lines, colours, a race, editing, Ctrl-C in an answer and after it; then on from where it ended."""
    with open_chat(tmp_path) as chat:
        chat.ask("/set max_tokens 12")
        chat.ask("Once upon" + ALT_ENTER + "a time")
        chat.wait_for("12 tokens in")
        chat.ask('"""one' + ENTER + "two" + ENTER + '"""')
        chat.wait_for("12 tokens in", times=2)
        assert GREEN not in chat.raw
        chat.ask("/set colour on")
        chat.ask("/regenerate")
        assert GREEN in chat.raw  # the drafts know the answer by now
        kept = messages(tmp_path / "last-chat.json")
        assert [kept[0]["content"], kept[2]["content"]] == ["Once upon\na time", "one\ntwo"]
        screen = chat.ask("/race It was")
        assert "The same 12 tokens" in screen
        assert screen.count("12 tokens, ") == 2  # one head over each column
        chat.send("half a thought")
        chat.wait_for("half a thought")
        chat.send(CTRL_C)  # clears the line, and the up key brings it back
        assert "half a thought" not in chat.wait_for_prompt()
        chat.send(UP)
        chat.wait_for("half a thought")
        chat.send(CTRL_C)
        chat.wait_for_prompt()
        chat.ask("/set ignore_eos on")
        chat.ask("/set max_tokens 100000")
        chat.send("It was the best" + ENTER)
        chat.wait_for("It was the best")
        chat.wait_until(lambda: len(chat.text().rpartition("It was the best")[2]) > 60, "some of the answer")
        chat.send(CTRL_C)
        chat.wait_for("Stopped.")
        chat.wait_for_prompt()
        question, answer = messages(tmp_path / "last-chat.json")[-2:]
        assert (question["content"], bool(answer["content"])) == ("It was the best", True)
        chat.send(CTRL_C)
        assert chat.wait() == 0
    assert all((tmp_path / name).stat().st_mode & 0o077 == 0 for name in ("chat-history", "last-chat.json"))
    with open_chat(tmp_path, "--resume", columns=40, NO_COLOR="1") as chat:
        assert "8 messages" in chat.text()
        chat.send(UP)
        chat.wait_for(">>> It was the best")
        chat.send(CTRL_C)
        chat.wait_for_prompt()
        chat.ask("/set colour on")
        chat.ask("/regenerate")
        assert GREEN not in chat.raw
        chat.send(CTRL_C)
        chat.wait_for("Ctrl-C once more leaves")
        chat.wait_for_prompt()
        chat.send(CTRL_D)
        assert chat.wait() == 0


def test_a_dumb_terminal_gets_lines_without_control_codes(tmp_path: Path) -> None:
    with open_chat(tmp_path, "-n", "8", "--no-history", TERM="dumb") as chat:
        chat.ask("hello")
        chat.wait_for("8 tokens in")
        chat.send(CTRL_D)
        assert chat.wait() == 0
        assert b"\x1b" not in chat.raw
    assert os.listdir(tmp_path) == ["chatty"]


def test_a_failed_answer_leaves_the_engine_and_the_conversation_as_they_were(folder: Path) -> None:
    from outrider.cli.chat.session import Session

    llm = LLM(str(folder), threads=1, max_batch_size=1)
    session = Session(llm, SamplingParams(max_tokens=4), kept=None)
    session.ask("hello")
    before = list(session.messages)
    with pytest.raises(ValueError, match="the prompt has"):
        session.ask("word " * 500)
    assert session.messages == before
    session.regenerate()
    assert session.messages == before
    llm.engine.cache.check()


def test_without_a_last_conversation_resume_says_so(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OUTRIDER_STATE", str(tmp_path))
    assert (
        "there is no last conversation yet: leave out --resume"
        in run("chat", "-m", str(folder), "--resume", code=2).stderr
    )
