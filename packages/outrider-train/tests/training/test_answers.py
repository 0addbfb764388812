"""``outrider train answers``: the same answers in any company and after any interruption, filters, and the folder."""

from __future__ import annotations

import io
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from outrider import LLM
from outrider.errors import CapacityError, ConfigError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_train.answers.filters import LoopWatch
from outrider_train.answers.options import AnswerOptions, Effort, parse_count, parse_range
from outrider_train.answers.run import write_answers
from outrider_train.answers.user_turn import UserTurns
from outrider_train.commands import app
from outrider_train.data.documents import read_data, trainable
from tests.model_folders import model_folder
from tests.tokenizer.chat_formats import tokenizers_by_format
from tests.tokenizer.vocabularies import byte_level

OPTIONS = AnswerOptions(max_tokens=12, prompt_tokens=40, turns=(1, 2), seed=3)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model that ends its turns soon: one token in ten is an end."""
    return model_folder(tmp_path_factory.mktemp("answers") / "target", eos_token_id=[1, *range(30, 65)])


@pytest.fixture(scope="module")
def llm(target: Path) -> LLM:
    return LLM(str(target), draft="none", max_batch_size=8, kv_cache="paged")


@pytest.fixture(scope="module")
def whole(llm: LLM, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve conversations, in shards of six lines."""
    out = tmp_path_factory.mktemp("whole")
    write(llm, out)
    return out


def write(llm: LLM, out: Path, options: AnswerOptions = OPTIONS, **effort: Any) -> dict[str, Any]:
    return write_answers("target", out, options, Effort(**({"own": 12, "shard_lines": 6} | effort)), llm=llm)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for path in sorted(folder.glob("answers-*")) for line in path.open("rb")]


def test_what_a_folder_holds(whole: Path, llm: LLM) -> None:
    report = json.loads((whole / "report.json").read_text())
    found = lines(whole)
    assert report["complete"]
    assert report["own"] == report["conversations"] == len({line["index"] for line in found}) == 12
    assert report["answers"] == len(found) > 12  # some have two turns
    assert report["tokens_out"] == sum(len(line["answer_ids"]) for line in found)
    assert 0.2 < report["greedy_share"] < 0.8
    assert sum(report["dropped"].values()) == sum(1 for _ in (whole / "dropped.jsonl").open("rb"))
    assert {line["finish"] for line in found} == {"stop", "length"}
    assert len(list(whole.glob("answers-*"))) > 2
    for line in found:
        assert line["prompt_ids"] == llm.tokenizer.encode_chat(line["messages"][:-1])
        assert (line["answer_ids"][-1] in llm.tokenizer.eos_token_ids) == (line["finish"] == "stop")
    documents = trainable(read_data(whole, llm.tokenizer), 500, whole)
    assert [document.start for document in documents][:3] == [
        len(line["prompt_ids"]) for line in found if len(line["answer_ids"]) > 1
    ][:3]


def test_answers_do_not_depend_on_their_company(whole: Path, target: Path, tmp_path: Path) -> None:
    """One at a time, and with drafts, they are those of eight at once."""
    with LLM(str(target), draft="suffix", max_batch_size=1) as alone:
        write(alone, tmp_path)
    assert contents(tmp_path) == contents(whole)
    with LLM(str(target), draft="none", max_batch_size=8) as llm:
        write(llm, tmp_path / "other", replace(OPTIONS, seed=4))
    assert contents(tmp_path / "other") != contents(whole)


@pytest.mark.parametrize("steps", [3, 25])
def test_a_run_goes_on_where_it_was_stopped(steps: int, whole: Path, llm: LLM, tmp_path: Path) -> None:
    left = [steps]

    def stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    assert not write(llm, tmp_path, stop=stop)["complete"]
    assert write(llm, tmp_path, own=10)["own"] == 10
    report = write(llm, tmp_path)
    assert contents(tmp_path) == contents(whole)
    same = ("tokens_out", "dropped", "languages", "kinds", "topics")
    assert {k: report[k] for k in same} == {k: json.loads((whole / "report.json").read_text())[k] for k in same}
    assert not llm.engine.busy


@pytest.mark.parametrize(
    ("name", "share"), [("answers-00001.jsonl", 0.0), ("answers-00001.jsonl", 0.7), ("dropped.jsonl", 0.5)]
)
def test_a_run_goes_on_after_a_kill(name: str, share: float, whole: Path, llm: LLM, tmp_path: Path) -> None:
    """Whatever part of whichever file is lost, as after a power failure."""
    for path, data in contents(whole).items():
        (tmp_path / path).write_bytes(data[: int(len(data) * share)] if path == name else data)
    (tmp_path / "settings.json").write_bytes((whole / "settings.json").read_bytes())
    write(llm, tmp_path)
    assert contents(tmp_path) == contents(whole)


def test_a_full_disk_is_one_error_and_the_rest_is_kept(
    whole: Path, llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = [1500]

    class Disk(io.FileIO):
        def write(self, data: Any) -> int:
            if not room[0]:
                raise OSError(28, "No space left on device")
            count = super().write(data[: room[0]])
            room[0] -= count
            return count

    opened = Path.open
    monkeypatch.setattr(Path, "open", lambda path, mode="r", *a, **k: Disk(path, mode.replace("b", ""))
                        if mode == "ab" else opened(path, mode, *a, **k))  # fmt: skip
    with pytest.raises(CapacityError, match="free some space"):
        write(llm, tmp_path)
    monkeypatch.undo()
    assert not llm.engine.busy
    write(llm, tmp_path)
    assert contents(tmp_path) == contents(whole)


def test_tokens_asked_for(whole: Path, llm: LLM, tmp_path: Path) -> None:
    report = write(llm, tmp_path, own=None, tokens=60)
    found = lines(tmp_path)
    assert found == lines(whole)[: len(found)]
    assert 60 <= report["tokens_out"] < 60 + 2 * OPTIONS.max_tokens
    assert report["goal"] == {"tokens": 60, "done": report["tokens_out"]}


def test_given_prompts_come_first_and_pass_the_filters(llm: LLM, tmp_path: Path) -> None:
    question = "how many words must this question have before anybody holds it for one of theirs"
    data = tmp_path / "prompts.jsonl"
    prompts = ["hello there", "what is a river", "hello  There!", f"Please say, {question}?", "a last one"]
    data.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
    exclude = tmp_path / "exclude.jsonl"
    exclude.write_text(json.dumps({"turns": [question]}) + "\n")
    options = replace(OPTIONS, prompts=(data,), turns=(1, 1), greedy=1.0)
    report = write(llm, tmp_path / "all", options, own=3)
    assert report["conversations"] == 4 + 3
    assert report["dropped"]["duplicate"] == 1
    assert "excluded" not in report["dropped"]
    assert [line["messages"][0]["content"] for line in lines(tmp_path / "all")][:3] == [*prompts[:2], prompts[3]]
    report = write(llm, tmp_path / "some", replace(options, exclude=(exclude,)), own=None)
    assert report["conversations"] == 3
    assert report["dropped"] == {"duplicate": 1, "excluded": 1}
    report = write(llm, tmp_path / "kept", replace(options, exclude=(exclude,), keep_all=True), own=None)
    assert report["answers"] == 5


def test_an_answer_that_must_end_as_a_loop_is_not_finished(
    llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(OPTIONS, max_tokens=80, greedy=1.0, turns=(1, 1))
    early = write(llm, tmp_path / "early", options, own=30)
    monkeypatch.setattr(LoopWatch, "__call__", lambda self, output: False)
    late = write(llm, tmp_path / "late", options, own=30)
    assert contents(tmp_path / "early") == contents(tmp_path / "late")
    assert early["dropped"]["loop in answer"] > 0
    assert early["generated_tokens"] < late["generated_tokens"]


def test_categories_of_given_prompts_reach_answers_and_documents(llm: LLM, tmp_path: Path) -> None:
    """A folder begun when records had no category goes on to the same answers."""
    data, out = tmp_path / "prompts.jsonl", tmp_path / "out"
    given = [
        {"prompt": "hello there", "category": "chat"},
        {"prompt": "what is a river"},
        {"turns": ["how many are 12"], "category": "math"},
        {"prompt": "a last one", "category": "math"},
    ]
    data.write_text("".join(json.dumps(line) + "\n" for line in given))
    options = replace(OPTIONS, prompts=(data,))
    report = write(llm, out, options, own=2, shard_lines=100)
    found = lines(out)
    wanted = ["chat", None, "math", "math", None, None]
    assert [line.get("category") for line in found] == [wanted[line["index"]] for line in found]
    assert report["answers_by_category"] == Counter(line["category"] for line in found if "category" in line)
    tags = [line.document.tags[3:] for line in read_data(out, llm.tokenizer) if line.document]
    assert tags == [(f"category {line['category']}",) if "category" in line else () for line in found]
    old = [{key: line[key] for key in line if key != "category"} for line in found]
    (out / "answers-00000.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old if line["index"] < 2))
    write(llm, out, options, own=2, shard_lines=100)
    assert lines(out) == [line for line in old if line["index"] < 2] + [line for line in found if line["index"] > 1]


def test_long_contexts(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_train.answers.context._BLOCK", 6)
    text = tmp_path / "text.txt"
    text.write_text("".join(f"hello world {i}\n" for i in range(300)))
    options = replace(OPTIONS, context=(40, 60), context_share=1.0, documents=(text,), turns=(1, 1))
    write(llm, tmp_path / "documents", options, own=5)
    for line in lines(tmp_path / "documents"):
        assert 35 <= len(line["prompt_ids"]) <= 60 + 10 + 40
        assert "hello world" in line["messages"][0]["content"]
    packed = replace(options, documents=(), context_share=0.5, context=(40, 50))
    report = write(llm, tmp_path / "packed", packed, own=26)
    long = [line for line in lines(tmp_path / "packed") if line["kind"] == "context"]
    assert len(long) == report["kinds"]["context"] > 2
    assert min(line["index"] for line in long) >= 12  # before, there is nothing to pack
    assert all(len(line["prompt_ids"]) >= 35 and len(line["messages"]) >= 4 for line in long)
    with pytest.raises(ConfigError, match="use at most"):
        write(llm, tmp_path / "too-long", replace(options, context=(60, 80)))


@pytest.mark.parametrize("byte", [True, False])
def test_openings_of_every_kind_of_template(byte: bool, tmp_path: Path) -> None:
    ends = {"chatml": "<|im_end|>", "llama 3": "<|eot_id|>", "mistral": "[/INST]", "gemma": "<end_of_turn>",
            "llama 2": "[/INST]", "zephyr": "<|eos|>" if byte else "</s>", "thinking": "<|im_end|>"}  # fmt: skip
    for name, tokenizer in tokenizers_by_format(tmp_path, byte=byte).items():
        turns = UserTurns(tokenizer)
        for messages in ([], [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]):
            for start in ("", "hello"):
                turn = turns.open(messages, start)
                said = [*messages, {"role": "user", "content": f"{start} world 12"}]
                assert tuple(tokenizer.encode_chat(said))[: len(turn.ids)] == turn.ids, name
                opening = tokenizer.render_chat(said).partition(f"{start} world 12".strip())[0].rstrip(" ")
                assert tokenizer.decode(turn.ids, skip_special_tokens=False).startswith(opening.strip()), name
                assert tokenizer.decode(turn.written).strip() == start, name
        if name in ends:
            assert tokenizer.vocabulary[ends[name]] in turns.end_ids, name
            assert not turns.stop, name
    json_like = UserTurns(tokenizers_by_format(tmp_path, byte=byte)["json"])
    assert json_like.stop == ('"}',)


def test_a_turn_that_ends_with_text(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.role | upper }}: {{ m.content }}\n{% endfor %}ASSISTANT:"
    turns = UserTurns(Tokenizer.from_folder(byte_level(tmp_path, chat_template=template)))
    assert turns.stop == ("ASSISTANT:",)
    assert turns.takes_system
    alone = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}" + template
    assert not UserTurns(Tokenizer.from_folder(byte_level(tmp_path, chat_template=alone))).takes_system


@pytest.mark.parametrize(
    ("template", "says"),
    [
        (None, "no chat template"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "0 times"),
        ("{% for m in messages %}{{ m.content }}{{ m.content }}{% endfor %}", "2 times"),
        ("{{ raise_exception('alternate') }}", "refuses these messages: alternate"),
    ],
)
def test_templates_without_an_opening(template: str | None, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"{says}.*--prompts"):
        UserTurns(Tokenizer.from_folder(byte_level(tmp_path, chat_template=template)))


@pytest.mark.parametrize(
    ("options", "effort", "says"),
    [
        ({}, {"own": None}, "nothing says how many"),
        ({"seed": 4}, {}, r"begun with seed=3, not 4"),
        ({"prompts": (Path("nowhere.jsonl"),)}, {}, "cannot read nowhere.jsonl"),
        ({"exclude": (Path("nowhere.jsonl"),)}, {}, "cannot read nowhere.jsonl"),
    ],
)
def test_bad_input(options: dict[str, Any], effort: dict[str, Any], says: str, whole: Path, llm: LLM) -> None:
    with pytest.raises(ConfigError, match=says):
        write(llm, whole, replace(OPTIONS, **options), **effort)


@pytest.mark.parametrize(
    "wrong",
    [{"greedy": 1.5}, {"temperature": 0}, {"prompt_top_p": 0}, {"max_tokens": 1}, {"turns": (1, 99)},
     {"documents": (Path("x"),)}],
)  # fmt: skip
def test_wrong_options_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        AnswerOptions(**wrong)


def test_counts_and_ranges() -> None:
    assert [parse_count("tokens", text) for text in ("10M", "1.5k", "7", "2G")] == [10**7, 1500, 7, 2 * 10**9]
    assert parse_range("turns", "2") == (2, 2)
    assert parse_range("context", "2k-8k") == (2000, 8000)
    for text in ("", "0", "M", "-3", "1e3", "nan"):
        with pytest.raises(ConfigError, match="tokens"):
            parse_count("tokens", text)
    for text in ("3-1", "1-", "a-b"):
        with pytest.raises(ConfigError, match="turns"):
            parse_range("turns", text)


def test_a_target_that_writes_nothing_of_use(llm: LLM, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outrider_train.answers.conversations._HOPELESS", 12)
    with pytest.raises(ConfigError, match=r"came to nothing \(unfinished prompt"):
        write(llm, tmp_path, replace(OPTIONS, prompt_tokens=2, prompt_temperature=0.01, prompt_top_p=0.01))


def test_the_command(target: Path, tmp_path: Path) -> None:
    given = ["answers", "-m", str(target), "-o", str(tmp_path / "out"), "--own", "4", "--max-tokens", "8"]
    done = CliRunner().invoke(app, [*given, "--prompt-tokens", "40"])
    assert done.exit_code == 0, done.output
    assert "4 conversations" in done.output
    again = CliRunner().invoke(app, [*given, "--prompt-tokens", "40", "--json"])
    assert json.loads(again.stdout)["own"] == 4
    other = CliRunner().invoke(app, given)
    assert "prompt_tokens=40, not 256" in str(other.exception)
    train = ["medusa", "-m", str(target), "-o", str(tmp_path / "head"), "--data", str(tmp_path / "out"), "--one-pass"]
    train += ["--draft-vocab", "64", "--held-out", "0.4"]
    assert CliRunner().invoke(app, train).exit_code == 0
    more = CliRunner().invoke(app, [*given[:-4], "--own", "12", *given[-2:], "--prompt-tokens", "40"])
    assert more.exit_code == 0, more.output
    again = CliRunner().invoke(app, [*train, "--resume"])
    assert again.exit_code == 0, again.output
    assert "going on with portion 2" in again.output


def test_one_run_at_a_time(llm: LLM, tmp_path: Path) -> None:
    seen: list[bool] = []

    def stop() -> bool:
        if not seen:
            with pytest.raises(ConfigError, match="another run writes"):
                write(llm, tmp_path)
            seen.append(True)
        return True

    write(llm, tmp_path, stop=stop)
    assert seen
