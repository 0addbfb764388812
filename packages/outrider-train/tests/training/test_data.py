"""Data in every form, and what is wrong with it by file and line; batches in an order that the seed alone fixes."""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from outrider import LLM
from outrider.errors import CapacityError, ConfigError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider_torch.heads import load_head
from outrider_train.answers.run import regenerate_answers
from outrider_train.commands import app
from outrider_train.commands.common import parse_size
from outrider_train.data.documents import Document, read_data, split, trainable
from outrider_train.target.features import FeatureSpec
from outrider_train.trainer import Trainer, TrainOptions
from tests.model_folders import model_folder
from tests.training import small


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    model_folder(folder / "target")
    return folder


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return Tokenizer.from_folder(folder / "target")


def write(folder: Path, *objects: Any) -> Path:
    path = folder / "data.jsonl"
    path.write_text("".join(f"{json.dumps(o) if not isinstance(o, str) else o}\n" for o in objects))
    return path


def test_every_form_of_line(folder: Path, tokenizer: Tokenizer) -> None:
    chat = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "world"}]
    path = write(
        folder,
        {"prompt_ids": [5, 6], "answer_ids": [7, 8, 9]},
        "",
        {"messages": chat},
        {"text": "hello world"},
        {"prompt": "hello"},
        {"question": "hello"},
        {"turns": ["hello", "more"]},
        {"messages": chat[:1]},
        {"conversations": [{"from": "human", "value": "hello"}]},
    )
    ids, talk, text, *prompts = read_data(path, tokenizer)
    assert ids.document == Document((5, 6, 7, 8, 9), 2)
    assert talk.document is not None
    assert talk.document.ids[: talk.document.start] == talk.prompt
    assert "world" in tokenizer.decode(talk.document.ids[talk.document.start :])
    assert "hello" not in tokenizer.decode(talk.document.ids[talk.document.start :])
    assert text.document == Document(tuple(tokenizer.encode("hello world")), 1)
    assert [line.document for line in prompts] == [None] * 5
    assert {line.prompt for line in prompts} == {talk.prompt}
    assert {line.messages == (chat[0],) for line in (talk, *prompts)} == {True}
    with pytest.raises(ConfigError, match="--regenerate"):
        trainable(prompts, 100, path)


def test_what_a_line_tells_of_its_chat(folder: Path, tokenizer: Tokenizer) -> None:
    ids = {"prompt_ids": [5, 6], "answer_ids": [7, 8, 9]}
    asked, told = ({"role": role, "content": "hello"} for role in ("user", "system"))
    lines = read_data(
        write(
            folder,
            ids,
            {**ids, "messages": [told, asked], "greedy": True},
            {**ids, "messages": [asked, {"role": "assistant", "content": "x"}, asked], "greedy": False},
            {"text": "hello world and", "category": "math"},
            {"prompt": "hello", "category": "rag"},
            {"prompt": "hello"},
        ),
        tokenizer,
    )
    assert [line.category for line in lines[3:]] == ["math", "rag", None]
    assert [document.tags for document in trainable(lines[:4], 100, folder)] == [
        (),
        ("with a system message", "first turn", "greedy answers"),
        ("without a system message", "later turns", "sampled answers"),
        ("category math",),
    ]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{nonsense", "line 2 is not JSON"),
        ("[1]", r"line 2 is \[1\]"),
        ({"colour": "red"}, "line 2 has none of prompt"),
        ({"prompt": 3}, "line 2 has none of prompt"),
        ({"prompt_ids": [1], "answer_ids": ["x"]}, "line 2: .* no list of token ids"),
        ({"prompt_ids": [1], "answer_ids": [99999]}, "line 2: token 99999"),
        ({"messages": "hello"}, "line 2: messages"),
        ({"messages": []}, "line 2: messages"),
        ({"conversations": [{"from": "cat", "value": "x"}]}, "line 2: conversations"),
        ({"prompt": "x", "category": 3}, r"data\.jsonl, line 2: category=3 is no name"),
        ({"prompt": "x", "category": None}, "line 2: category=None"),
        ({"text": "x y z", "category": ["math"]}, r"line 2: category=\['math'\]"),
        ({"prompt": "x", "category": " "}, "line 2: category=' '"),
        ({"prompt": "x", "category": "a\nb"}, "line 2: category="),
        ({"prompt": "x", "category": "\ud800"}, "line 2: category="),
        ({"prompt": "x", "category": "x" * 61}, "line 2: category='xxx"),
    ],
)
def test_a_bad_line_is_named(line: Any, says: str, folder: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match=says):
        read_data(write(folder, {"text": "hello"}, line), tokenizer)


def test_nothing_to_read(folder: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(ConfigError, match="is empty"):
        read_data(write(folder), tokenizer)
    with pytest.raises(ConfigError, match="cannot read"):
        read_data(folder / "missing.jsonl", tokenizer)
    with pytest.raises(ConfigError, match="has no answers"):
        read_data(folder, tokenizer)
    short = read_data(write(folder, {"prompt_ids": [5, 6], "answer_ids": [7]}), tokenizer)
    with pytest.raises(ConfigError, match="two tokens of answer"):
        trainable(short, 100, folder)


def test_the_split_is_by_content() -> None:
    documents = [Document((i, i + 1, i + 2), 1) for i in range(200)]
    train, held_out = split(documents, 0.2, 0)
    assert 20 < len(held_out) < 60
    assert sorted(train + held_out) == list(range(200))
    more = [*documents, Document((1, 1, 1), 1), *documents]
    again = split(more, 0.2, 0)[1]
    assert [i for i in again if i < 200] == held_out
    assert [i - 201 for i in again if i > 200] == held_out  # a copy is on the side of its original
    assert split(documents, 0.2, 1)[1] != held_out
    with pytest.raises(ConfigError, match="one document"):
        split(documents[:1], 0.2, 0)


def test_batches_hold_every_answer_row_once(folder: Path) -> None:
    setup = small.setup(folder, cache=folder / "features")
    store = setup.store(FeatureSpec((), 4))
    options = TrainOptions(batch_tokens=128)
    batcher, _ = setup.batchers(store, options, depth=2, queries=6)
    orders = [[w for windows in batcher.plan(epoch) for w in windows] for epoch in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(map(str, orders[0])) == sorted(map(str, orders[2]))
    every = store.fetch(range(len(setup.documents)))
    seen: dict[tuple[int, int], int] = {}
    for batch in batcher.epoch(0):
        index, counts = batch.at(1)
        for row in counts.nonzero()[:, 0].tolist():
            b, column = divmod(row, batch.queries)
            window = batch.windows[b]
            t = window.start + column
            document = setup.documents[window.document]
            place = batch.context + column
            assert int(batch.tokens[b, place]) == document.ids[t]
            assert int(batch.positions[b, place]) == t
            found = every[window.document]
            torch.testing.assert_close(batch.features[b, place], found.rows[t], atol=0.1, rtol=0.1)  # other company
            probs = found.probs[t + 1 - (document.start - 1)].float()
            torch.testing.assert_close(batch.labels.probs[index[row]], probs, atol=0.02, rtol=0.1)
            assert int(batch.token_labels(index[row : row + 1]).ids) == document.ids[t + 2]
            seen[window.document, t] = seen.get((window.document, t), 0) + 1
    wanted = {
        (i, t): 1
        for i in setup.split_indices[0]
        for t in range(setup.documents[i].start - 1, len(setup.documents[i].ids) - 2)
    }
    assert seen == wanted


def test_labels_are_the_targets_distribution(folder: Path) -> None:
    setup = small.setup(folder)
    store = setup.store(FeatureSpec(None, 5))
    document = setup.documents[3]
    found = store.fetch([3])[0]
    logits = setup.target(torch.tensor([document.ids])).hidden[0].float() @ setup.target.head.float().T
    expected = logits.softmax(-1)[document.start - 1 :]
    torch.testing.assert_close(found.probs.float(), expected.gather(1, found.ids.long()), atol=2e-2, rtol=5e-2)
    assert (found.ids[:, 0] == expected.argmax(-1)).float().mean() > 0.7  # bfloat16 decides near ties otherwise


def test_a_disk_without_room_for_features_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(CapacityError, match="--feature-cache"):
        small.setup(folder, cache=folder / "cache").store(FeatureSpec((), 4))


def test_answers_resume_to_the_same_file(folder: Path, tmp_path: Path) -> None:
    llm = LLM(str(folder / "target"), draft="none", max_batch_size=8)
    data = write(tmp_path, *({"prompt": "hello " * (1 + i % 5)} for i in range(70)))
    given: dict[str, Any] = {"max_tokens": 4, "temperature": 0.7, "seed": 3, "llm": llm}
    shard = "answers-00000.jsonl"
    regenerate_answers("target", [data], tmp_path / "whole", **given)
    whole = (tmp_path / "whole" / shard).read_bytes()
    assert len(whole.splitlines()) == 70  # nothing is filtered here
    shutil.copytree(tmp_path / "whole", tmp_path / "part")
    (tmp_path / "part" / shard).write_bytes(whole[: len(whole) * 2 // 3])  # killed within a line
    assert len(read_data(tmp_path / "part", llm.tokenizer)) < 70
    regenerate_answers("target", [data], tmp_path / "part", **given)
    assert (tmp_path / "part" / shard).read_bytes() == whole
    assert all(line.document for line in read_data(tmp_path / "whole", llm.tokenizer))
    other = write(tmp_path, {"prompt": "world"})
    with pytest.raises(ConfigError, match="begun with prompts"):
        regenerate_answers("target", [other], tmp_path / "whole", **given)


@pytest.mark.parametrize(
    ("text", "size"), [("2GB", 2 * 10**9), ("1.5mb", 1_500_000), ("7k", 7000), ("0", 0), ("12", 12)]
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "nan", "1GB2"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ConfigError, match="feature-cache"):
        parse_size(text)


def test_the_command_trains_resumes_and_exports(folder: Path, tmp_path: Path) -> None:
    data = write(tmp_path, *({"prompt": "hello " * (1 + i % 7), "category": "greetings"} for i in range(12)))
    run = CliRunner()
    given = ["eagle", "-m", str(folder / "target"), "--data", str(data), "-o", str(tmp_path / "out")]
    given += ["--regenerate", "--answer-tokens", "8", "--epochs", "1", "--held-out", "0.3", "--draft-vocab", "0.9"]
    given += ["--version", "3.1", "--window", "16", "--loss", "adaptive"]
    done = run.invoke(app, given)
    assert done.exit_code == 0, done.output
    assert "τ" in done.output
    card = (tmp_path / "out" / "README.md").read_text()
    assert "seed: 0" in card
    assert "| category greetings |" in card
    again = run.invoke(app, given)
    assert isinstance(again.exception, ConfigError)
    assert "--resume" in str(again.exception)
    assert run.invoke(app, [*given, "--resume"]).exit_code == 0  # finished: measures again
    config = load_head(tmp_path / "out")[1]
    assert (config.draft_vocab_size, config.window, config.fc_norm, config.norm_output) == (64, 16, True, True)
    assert json.loads((tmp_path / "out" / "state" / "state.json").read_text())["job"]["head"]["loss"] == "adaptive"


def test_ctrl_c_ends_a_training_with_a_report_and_it_goes_on_later(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write(tmp_path, *({"text": "hello " * (4 + i % 7)} for i in range(24)))
    given = ["medusa", "-m", str(folder / "target"), "--data", str(data), "-o", str(tmp_path / "out")]
    given += ["--epochs", "4", "--batch-tokens", "64", "--draft-vocab", "64", "--optimizer", "muon"]
    tell = Trainer._tell

    def interrupt(self: Trainer, step: int, loss: float, hits: list[tuple[int, int]]) -> None:
        tell(self, step, loss, hits)
        if step == 1:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "_tell", interrupt)
    stopped = CliRunner().invoke(app, given)
    assert stopped.exit_code == 130, stopped.output
    assert "stopped after step 2 of" in stopped.output
    assert "τ" in stopped.output
    assert (tmp_path / "out" / "report.json").exists()
    monkeypatch.undo()
    resumed = CliRunner().invoke(app, [*given, "--resume"])
    assert resumed.exit_code == 0
    assert "resuming at step 2" in resumed.output
    assert "- optimizer: Muon" in (tmp_path / "out" / "README.md").read_text()
