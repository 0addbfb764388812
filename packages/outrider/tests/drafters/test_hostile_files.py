"""Datastores, draft tables and heads that are damaged, lie, or change while they are read: one line each, no crash."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider.drafters.datastore import Datastore, collect
from outrider.errors import ConfigError, ModelFormatError, OutriderError
from outrider_drafters.draft_table import DraftTable, count
from outrider_torch.heads.checkpoint import load_head, save_head
from tests.heads import heads

Change = Callable[[Path], object]
TEXTS = [([1, 2, 3], [4, 5, 6, 4, 5, 7]), ([3, 2], [4, 5, 6, 6])]


def store(path: Path) -> Path:
    collect(TEXTS, 10).save(path)
    return path


def table(path: Path) -> Path:
    count([1, 2, 3, 1, 2, 4], 10).save(path)
    return path


def rewritten(metadata: dict[str, str] | None = None, **changes: Any) -> Change:
    """Other tensors (None takes one out), or a part of the metadata."""

    def change(path: Path) -> None:
        content = path.read_bytes()
        length = struct.unpack("<Q", content[:8])[0]
        known = json.loads(content[8 : 8 + length])["__metadata__"] | (metadata or {})
        tensors = load_file(path)
        for name, value in changes.items():
            tensors[name] = value(tensors[name]) if callable(value) else value
        save_file({k: v.contiguous() for k, v in tensors.items() if v is not None}, path, known)

    return change


def with_header(path: Path, **changes: Any) -> None:
    """Another header over the same data. Of a file that has none, as a configuration, all is replaced."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    raw = json.loads(content[8 : 8 + length]) if path.suffix == ".safetensors" else {}
    for name, fields in changes.items():
        raw[name] = raw[name] | fields if isinstance(fields, dict) else fields
    text = json.dumps(raw).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + content[8 + length :])


def header(**changes: Any) -> Change:
    return lambda path: with_header(path, **changes)


def replaced(content: bytes | None) -> Change:
    return lambda path: path.unlink() if content is None else path.write_bytes(content)


def cut(size: int) -> Change:
    return lambda path: path.write_bytes(path.read_bytes()[:size])


def fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


def claims(length: int) -> Change:
    return lambda path: path.write_bytes(struct.pack("<Q", length) + path.read_bytes()[8:])


def item(at: int, value: int) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[at] = value
        return tensor

    return change


ANY_FILE: dict[str, Change] = {
    "missing": replaced(None), "empty": replaced(b""), "a pipe": fifo, "a folder": folder, "a loop of links": loop,
    "cut in its length": cut(5), "cut in its header": cut(60), "cut at its end": lambda p: cut(p.stat().st_size - 4)(p),
    "bytes behind": lambda p: p.write_bytes(p.read_bytes() + b"x"), "a pickle": replaced(b"\x80\x04]\x94." * 20),
    "no header": claims(0), "a header beyond the file": claims(10_000), "a header of 2^64": claims(2**64 - 1),
    "a header of 2^63": claims(2**63), "JSON of nothing": replaced(struct.pack("<Q", 4) + b"null"),
    "long metadata that are none": lambda path: with_header(path, __metadata__="a" * 100_000),
    "JSON 10,000 deep": replaced(struct.pack("<Q", 10_000) + b"[" * 10_000),
}  # fmt: skip
STORES: dict[str, Change] = ANY_FILE | {
    "another format": rewritten({"format": "outrider-datastore-9"}), "no format": rewritten({"format": ""}),
    "a vocabulary of -1": rewritten({"vocab_size": "-1"}), "a huge vocabulary": rewritten({"vocab_size": "9" * 5000}),
    "a vocabulary of other digits": rewritten({"vocab_size": "\u0661\u0662"}),
    "a small vocabulary": rewritten({"vocab_size": "5"}),
    "no texts": rewritten({"texts": ""}), "no order": rewritten(order=None),
    "an unknown tensor": rewritten(more=torch.zeros(1)), "places before the text": rewritten(order=item(0, 3)),
    "places below zero": rewritten(order=item(0, -1)), "places behind the text": rewritten(order=item(1, 10_000)),
    "the largest place": rewritten(order=item(1, 2**31 - 1)), "places in a gap": rewritten(order=item(0, 26)),
    "tokens below -1": rewritten(tokens=item(20, -2)), "tokens above the vocabulary": rewritten(tokens=item(20, 10)),
    "no places": rewritten(order=torch.zeros(0, dtype=torch.int32)),
    "no tokens": rewritten(tokens=torch.zeros(0, dtype=torch.int32)),
    "int64": rewritten(order=lambda t: t.long()), "floats": rewritten(tokens=lambda t: t.float()),
    "a matrix": rewritten(order=lambda t: t[None]), "a scalar": rewritten(order=torch.tensor(20, dtype=torch.int32)),
    "a shape that overflows": header(tokens={"shape": [2**62, 4]}),
    "a shape below zero": header(tokens={"shape": [-1]}),
    "offsets out of the file": header(tokens={"data_offsets": [0, 2**40]}),
    "offsets backwards": header(order={"data_offsets": [40, 0]}),
    "offsets that overlap": header(order={"data_offsets": [8, 48]}),
    "an unknown type": header(order={"dtype": "I128"}),
}  # fmt: skip
TABLES: dict[str, Change] = ANY_FILE | {
    "another format": rewritten({"format": "x"}), "starts that fall": rewritten(bigram_starts=item(2, 90)),
    "starts below zero": rewritten(bigram_starts=item(0, -5)),
    "fewer starts": rewritten(bigram_starts=lambda t: t[:-1]),
    "followers above": rewritten(bigram_tokens=item(0, 10)), "followers below": rewritten(bigram_tokens=item(0, -1)),
    "more followers": rewritten(bigram_tokens=lambda t: torch.cat([t, t])),
    "counts of 0": rewritten(bigram_counts=item(0, 0)),
    "counts below zero": rewritten(unigram=item(0, -1)), "nothing seen": rewritten(unigram=lambda t: t * 0),
    "no vocabulary": rewritten(unigram=torch.zeros(0, dtype=torch.int64)),
    "no starts": rewritten(bigram_starts=torch.zeros(0, dtype=torch.int64)),
    "counts that overflow": rewritten(unigram=lambda t: t * 0 + 2**62), "int32": rewritten(unigram=lambda t: t.int()),
}  # fmt: skip


def refused(load: Callable[[], object]) -> None:
    with pytest.raises(OutriderError) as found:
        load()
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 600


@pytest.mark.parametrize("name", STORES)
def test_hostile_datastores(name: str, tmp_path: Path) -> None:
    path = store(tmp_path / "x.safetensors")
    STORES[name](path)
    refused(lambda: Datastore.load(path))


@pytest.mark.parametrize("name", TABLES)
def test_hostile_tables(name: str, tmp_path: Path) -> None:
    path = table(tmp_path / "x.safetensors")
    TABLES[name](path)
    refused(lambda: DraftTable.load(path))


@pytest.mark.parametrize("shuffle", ["backwards", "all one place"])
def test_an_order_that_is_none_costs_drafts_and_no_more(shuffle: str, tmp_path: Path) -> None:
    path = store(tmp_path / "x.safetensors")
    rewritten(order=lambda t: t.flip(0) if shuffle == "backwards" else t * 0 + t[0])(path)
    for tail in ([4, 5], [9], [4] * 40, []):
        assert all(found.match >= 1 for found in Datastore.load(path).find(tail, 64))


def test_files_that_change_or_shrink_behind_a_load_change_nothing(tmp_path: Path) -> None:
    path, other = store(tmp_path / "x.safetensors"), table(tmp_path / "y.safetensors")
    held, counts = Datastore.load(path), DraftTable.load(other)
    before, rows = held.find([4, 5], 8), counts.bigrams.followers([1])
    for file in (path, other):
        size = file.stat().st_size
        with file.open("r+b") as out:
            out.seek(size // 2)
            out.write(b"\x7f" * (size - size // 2))
        os.truncate(file, 100)
    assert held.find([4, 5], 8) == before
    assert counts.bigrams.followers([1]) == rows


KINDS = ("eagle", "eagle3", "medusa", "blockwise", "dflash", "diffusion", "dspark", "pass")


@pytest.mark.parametrize("name", ANY_FILE)
@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_hostile_files_of_heads(file: str, name: str, tmp_path: Path) -> None:
    save_head(tmp_path / "head", *heads.random("eagle3"))
    ANY_FILE[name](tmp_path / "head" / file)
    refused(lambda: load_head(tmp_path / "head"))


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_tensors_of_heads(kind: str, tmp_path: Path) -> None:
    save_head(tmp_path, *heads.random(kind))
    path = tmp_path / "model.safetensors"
    sound = load_file(path)
    name = next(name for name, value in sound.items() if value.is_floating_point() and len(value) > 1)
    for wrong in (
        sound[name] * torch.nan, sound[name] * torch.inf, sound[name][:1], sound[name][None], sound[name].double(),
        sound[name].to(torch.int64), torch.zeros(0), None,
    ):  # fmt: skip
        save_file({k: v.contiguous() for k, v in (sound | {name: wrong}).items() if v is not None}, path)
        if wrong is not None and wrong.dtype == torch.float64:
            continue  # rounded, and finite
        refused(lambda: load_head(tmp_path))


@pytest.mark.parametrize("ids", ["repeated", "backwards", "below", "above", "cyclic", "huge"])
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_hostile_draft_vocabularies(kind: str, ids: str, tmp_path: Path) -> None:
    save_head(tmp_path, *heads.random(kind))
    path = tmp_path / "model.safetensors"
    sound = load_file(path)
    d2t = sound["d2t"]
    made = {
        "repeated": d2t * 0, "backwards": d2t.flip(0), "below": item(0, -1)(d2t), "above": item(-1, 64)(d2t),
        "cyclic": d2t.roll(1), "huge": item(-1, 2**62)(d2t),
    }  # fmt: skip
    save_file(sound | {"d2t": made[ids].contiguous()}, path)
    with pytest.raises(ModelFormatError, match="d2t"):
        load_head(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"intermediate_size": 2**40}, {"intermediate_size": 2**31 - 1}, {"num_heads": 2**30, "num_kv_heads": 2**30},
        {"head_dim": 2**30}, {"hidden_size": 2**31 - 1}, {"vocab_size": 2**31 - 1}, {"draft_vocab_size": 2**31 - 1},
        {"num_layers": 2**20}, {"feature_layers": list(range(100_000))}, {"feature_layers": [10**30]}, {"heads": -1},
        {"max_seq_len": 10**30}, {"rope_theta": "NaN"}, {"rms_norm_eps": 0}, {"training": []}, {"kind": "x" * 10_000},
        {"target": None}, {"target": {"hidden_size": 2**63}}, {"acceptance": [[2.0]]}, {"calibration": [[1, 2]]},
        {"format": 2}, {"unknown": 1}, {"window": -1}, {"rope_scaling": {"rope_type": "yarn", "factor": "x"}},
    ],
    ids=lambda changes: next(iter(changes)),
)  # fmt: skip
def test_hostile_configurations_of_heads(changes: dict[str, Any], tmp_path: Path) -> None:
    save_head(tmp_path, *heads.random("eagle3"))
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    refused(lambda: load_head(tmp_path))


def test_a_head_is_its_own_when_its_file_changes(tmp_path: Path) -> None:
    save_head(tmp_path, *heads.random("eagle3"))
    path = tmp_path / "model.safetensors"
    head, _ = load_head(tmp_path, torch.bfloat16)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\x11" * 64)
    assert all(torch.equal(value, before[name]) for name, value in head.state_dict().items())


def test_a_number_of_tokens_that_is_none_is_0(tmp_path: Path) -> None:
    path = table(tmp_path / "x.safetensors")
    rewritten({"tokens": "9" * 5000})(path)
    assert DraftTable.load(path).trained_on == 0


def test_another_model_s_are_refused(tmp_path: Path) -> None:
    for thing in (Datastore.load(store(tmp_path / "x")), DraftTable.load(table(tmp_path / "y"))):
        with pytest.raises(ConfigError, match=r"vocabulary|counts"):
            thing.check_vocabulary(11)
