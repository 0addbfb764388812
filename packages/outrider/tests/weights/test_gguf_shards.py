"""GGUF models in several files, as ``gguf``'s own writer splits them: the model of one file, or a refusal by name."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import numpy as np
import pytest
from huggingface_hub.utils._paths import filter_repo_objects

from outrider.errors import ModelFormatError
from outrider.weights.folder import open_checkpoint
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.hub.catalog import resolve
from outrider.weights.hub.inventory import describe, list_models
from outrider.weights.hub.removal import remove
from tests.weights.files import write_gguf


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    """A model in three files, alone in a folder."""
    return written(tmp_path / "split")


def written(folder: Path, **options: Any) -> list[Path]:
    folder.mkdir(exist_ok=True)
    write_gguf(folder / "m.gguf", tensors_per_file=8, rope_divisors=np.ones(8), **options)
    files = sorted(folder.glob("m-0000?-of-00003.gguf"))
    assert len(files) == 3
    return files


def bytes_of(path: Path) -> dict[str, bytes]:
    return {name: tensor.data.tobytes() for name, tensor in open_gguf(path).stored.items()}


def test_the_parts_are_the_whole(parts: list[Path], tmp_path: Path) -> None:
    write_gguf(tmp_path / "whole.gguf", rope_divisors=np.ones(8))
    whole = open_gguf(tmp_path / "whole.gguf")
    assert len(parts) == 3
    for part in parts:
        assert open_gguf(part).config == whole.config
        assert bytes_of(part) == bytes_of(tmp_path / "whole.gguf")


def test_any_part_and_their_folder_name_the_model(parts: list[Path], cache: Path) -> None:
    (parts[0].parent / "mmproj-m.gguf").write_bytes(b"a tower that sees images")
    made = {resolve(str(ref)) for ref in (*parts, parts[0].parent)}
    folder = made.pop()
    assert made == set()
    linked = [folder / f"model-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    assert [path.stat().st_ino for path in linked] == [path.stat().st_ino for path in parts]
    assert open_checkpoint(folder).config == open_gguf(parts[0]).config
    assert (folder / "tokenizer.json").exists()
    assert describe(str(parts[2]), verify=True)["verified"].startswith("every byte")
    entry = next(entry for entry in list_models() if entry.kind == "gguf")
    assert (entry.name, entry.parameters) == (str(parts[0]), describe(str(parts[0]))["parameters"] + 8)  # divisors
    assert sum(path.stat().st_size for path in parts) < (entry.bytes or 0)


def test_a_model_folder_may_hold_parts(parts: list[Path], tmp_path: Path) -> None:
    folder = tmp_path / "own"
    shutil.copytree(resolve(str(parts[0])), folder)
    assert resolve(str(folder)) == folder
    assert open_checkpoint(folder).stored.keys() == open_gguf(parts[0]).stored.keys()


@pytest.mark.parametrize("changed", [0, 1, 2])
def test_a_changed_part_is_converted_again(changed: int, parts: list[Path]) -> None:
    folder = resolve(str(parts[0]))
    content = parts[changed].read_bytes()
    parts[changed].unlink()  # the folder has a link to it
    parts[changed].write_bytes(content[:-4] + bytes([content[-4] ^ 1]) + content[-3:])  # the last digit of a number
    assert resolve(str(parts[0])) == folder
    assert (folder / f"model-0000{changed + 1}-of-00003.gguf").read_bytes() == parts[changed].read_bytes()


@pytest.mark.parametrize("given", ["part", "folder"])
def test_removed_by_any_part(given: str, parts: list[Path]) -> None:
    folder = resolve(str(parts[0]))
    assert remove(str(parts[1] if given == "part" else parts[1].parent)).folder == folder
    assert not folder.exists()
    assert all(path.exists() for path in parts)


def said(path: Path, key: str, value: int) -> None:
    """Write ``value`` where the header of ``path`` has ``key``, a number of 2 or 4 bytes."""
    content = bytearray(path.read_bytes())
    at = content.index(key.encode()) + len(key)
    form = {2: "<H", 5: "<i"}[content[at]]
    struct.pack_into(form, content, at + 4, value)
    path.write_bytes(content)


def of_another_model(parts: list[Path]) -> None:
    folder = parts[0].parent.parent / "another"
    folder.mkdir()
    write_gguf(folder / "m.gguf", "qwen2", tensors_per_file=9)
    shutil.copy(folder / parts[1].name, parts[1])


def one_more_tensor(parts: list[Path]) -> None:
    for part in parts:
        said(part, "split.tensors.count", 23)


def twice_under_two_numbers(parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[2])
    said(parts[2], "split.no", 2)


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda parts: parts[1].unlink(), r"m-00002-of-00003\.gguf is missing, part 2 of 3"),
        (lambda parts: parts[0].unlink(), r"m-00001-of-00003\.gguf is missing, part 1 of 3"),
        (lambda parts: shutil.copy(parts[1], parts[2]), r"m-00003-of-00003\.gguf is part 3 of 3 .* split\.no=1"),
        (
            of_another_model,
            r"m-00002-of-00003\.gguf has split\.tensors\.count=27, but m-00001-of-00003\.gguf 22: it is",
        ),
        (lambda parts: said(parts[2], "split.count", 4), r"m-00003-of-00003\.gguf .* split\.count=4, not 2 and 3"),
        (one_more_tensor, r"m-00001-of-00003\.gguf: split\.tensors\.count=23, but the 3 parts hold 22"),
        (twice_under_two_numbers, r"tensor '.*' is in both .*m-00002-of-00003\.gguf and .*m-00003-of-00003\.gguf"),
        (lambda parts: parts[2].write_bytes(parts[2].read_bytes()[:-1]), r"m-00003-of-00003\.gguf is damaged"),
    ],
)
def test_parts_that_make_no_model(harm: Callable[[list[Path]], Any], says: str, parts: list[Path], cache: Path) -> None:
    harm(parts)
    for part in (part for part in parts if part.exists()):
        with pytest.raises(ModelFormatError, match=says):
            open_gguf(part)
        with pytest.raises(ModelFormatError, match=says) as caught:
            resolve(str(part))
        assert "\n" not in str(caught.value)
    assert not list(cache.glob("gguf/*"))


def test_a_part_under_another_name(parts: list[Path]) -> None:
    parts[0].rename(parts[0].with_name("renamed.gguf"))
    says = r"renamed\.gguf: split\.count=3: this is one part .* NAME-00001-of-00003\.gguf: give it its name back"
    with pytest.raises(ModelFormatError, match=says):
        resolve(str(parts[0].with_name("renamed.gguf")))


def test_the_only_part_of_one(tmp_path: Path) -> None:
    write_gguf(tmp_path / "m-00001-of-00001.gguf")
    assert open_checkpoint(resolve(str(tmp_path)))


def test_all_parts_are_fetched_from_the_hub(parts: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"Q8_0/m-Q8_0-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    files = [*names, "m-Q4_0.gguf", "m-Q8_0.txt"]
    fetched: list[str] = []

    def snapshot(repo_id: str, **options: Any) -> str:
        fetched[:] = filter_repo_objects(files, **options)
        for name in fetched:
            target = tmp_path / "hub" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(parts[names.index(name)], target)
        return str(tmp_path / "hub")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    refs = ["org/m:Q8_0", *(f"https://huggingface.co/org/m/blob/main/{name}" for name in names)]
    for ref in refs:
        folder = resolve(ref)
        assert fetched == names
        assert json.loads((folder / "outrider.json").read_text())["source"]["path"] == str(tmp_path / "hub" / names[0])
        assert len(list(folder.glob("model-*.gguf"))) == 3
