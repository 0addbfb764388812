"""Packed weights in the cache: the same outputs, made once, and made anew whenever anything about them is wrong."""

from __future__ import annotations

import errno
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from gguf import GGMLQuantizationType

from outrider.cache import CacheSpec
from outrider.errors import ConfigError
from outrider.models.factory import make_model
from outrider.models.native_llama import NativeLlamaModel
from outrider.native import packed
from outrider.native.identity import PackedPlace
from outrider.native.library import library
from outrider.weights.gguf.reader import open_gguf
from outrider.weights.packed import packed_folder, packed_size
from tests import small_models
from tests.weights.files import write_folder, write_gguf

pytestmark = pytest.mark.skipif(library() is None, reason="no native library")

Model = Callable[..., NativeLlamaModel]
_ENVIRONMENT = {**os.environ, packed.VARIABLE: "map"}
"""Of children: with a cache that holds the native library."""
_CHILD = """
import sys
from pathlib import Path
from outrider.models.factory import make_model
from outrider.native.identity import PackedPlace
from outrider.weights.gguf.reader import open_gguf
opened = open_gguf(Path(sys.argv[1]))
{extra}
made = make_model(opened.config, opened.stored, place=PackedPlace(Path(sys.argv[2]), "m", least=0))
print(made.mapped_bytes, flush=True)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv(packed.VARIABLE, "map")
    return tmp_path / "cache"


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    write_gguf(tmp_path / "m.gguf", kind=GGMLQuantizationType.Q8_0)
    return tmp_path / "m.gguf"


@pytest.fixture
def panels(tmp_path: Path) -> Path:
    return tmp_path / "packed" / "m.panels"


@pytest.fixture
def make(gguf: Path, panels: Path) -> Model:
    def model(place: bool = True, **options: Any) -> NativeLlamaModel:
        opened = open_gguf(gguf)
        kept = PackedPlace(panels, "m", least=0) if place else None
        made = make_model(opened.config, opened.stored, place=kept, **options)
        assert isinstance(made, NativeLlamaModel)
        return made

    return model


def logits(model: NativeLlamaModel) -> Any:
    cache = model.new_cache(CacheSpec(slots=1, max_seq_len=16))
    return small_models.feed(model, cache, (cache.allocate(), [3, 4, 5]))[0]


def started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_ENVIRONMENT)


def child(*arguments: Path, extra: str = "") -> list[str]:
    return [sys.executable, "-c", _CHILD.format(extra=extra), *map(str, arguments)]


@pytest.mark.parametrize("dtype", ["auto", "q4_0", "bfloat16"])
def test_mapped_weights_compute_the_same(make: Model, panels: Path, dtype: str) -> None:
    expected = make(place=False, dtype=dtype)
    first = make(dtype=dtype)
    written = panels.stat()
    second = make(dtype=dtype)
    assert expected.mapped_bytes == 0
    assert first.mapped_bytes == second.mapped_bytes >= expected.weight_bytes // 2
    assert first.weight_bytes == expected.weight_bytes
    for model in (first, second):
        assert np.array_equal(logits(model), logits(expected))
    assert (panels.stat().st_ino, panels.stat().st_mtime_ns) == (written.st_ino, written.st_mtime_ns)


@pytest.mark.parametrize(
    ("mode", "mapped", "kept"), [("map", True, True), ("copy", False, True), ("off", False, False)]
)
def test_a_variable_decides(
    make: Model, panels: Path, monkeypatch: pytest.MonkeyPatch, mode: str, mapped: bool, kept: bool
) -> None:
    monkeypatch.setenv(packed.VARIABLE, mode)
    expected = logits(make(place=False))
    for _ in range(2):
        model = make()
        assert (model.mapped_bytes > 0, panels.exists()) == (mapped, kept)
        assert np.array_equal(logits(model), expected)


def test_an_unknown_value_of_the_variable_is_refused(make: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(packed.VARIABLE, "sometimes")
    with pytest.raises(ConfigError, match="'sometimes' is unknown: use one of auto, map, copy, off"):
        make()


def test_damage_anywhere_is_found_and_mended(make: Model, panels: Path, caplog: pytest.LogCaptureFixture) -> None:
    expected = logits(make())
    sound, rng = panels.read_bytes(), random.Random(5)
    header = 32 + int.from_bytes(sound[16:24], "little")
    places = [*range(0, 32, 5), 40, header - 1, 2 << 20, len(sound) - 1]
    places += [rng.randrange(32, header) for _ in range(20)] + [rng.randrange(2 << 20, len(sound)) for _ in range(40)]
    for place in places:
        damaged = bytearray(sound)
        damaged[place] ^= 1 << rng.randrange(8)
        panels.write_bytes(damaged)
        caplog.clear()
        assert np.array_equal(logits(make()), expected), place
        assert "is damaged and is made anew" in caplog.text, place
        assert panels.read_bytes() == sound, place


@pytest.mark.parametrize("size", [0, 1, 31, 32, 100, 2 << 20, -1, -4096])
def test_a_truncated_file_is_made_anew(make: Model, panels: Path, caplog: pytest.LogCaptureFixture, size: int) -> None:
    expected = logits(make())
    sound = panels.read_bytes()
    panels.write_bytes(sound[:size])
    assert np.array_equal(logits(make()), expected)
    assert panels.read_bytes() == sound
    assert "is damaged and is made anew" in caplog.text


def test_what_another_version_has_written_is_not_read(
    make: Model, panels: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The facts of a file are compared, whatever they are; a sound file of others is replaced without a word."""
    with monkeypatch.context() as earlier:
        earlier.setattr("outrider.native.identity.ABI", 1)
        make()
    before = panels.read_bytes()
    expected = logits(make(place=False))
    assert np.array_equal(logits(make()), expected)
    assert panels.read_bytes()[: 2 << 20] != before[: 2 << 20]
    assert not caplog.records


def test_another_layout_of_the_library_is_not_read(make: Model, panels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    before = panels.stat().st_ino
    monkeypatch.setattr("outrider.native.identity._layout", lambda kind, target: b"another")
    make()
    assert panels.stat().st_ino != before


def test_a_changed_model_is_packed_again(make: Model, gguf: Path, panels: Path) -> None:
    make()
    make(dtype="bfloat16")
    shutil.copy(panels, panels.with_name("other.panels"))  # of the same model, in another precision
    write_gguf(gguf, kind=GGMLQuantizationType.Q4_0)
    assert np.array_equal(logits(make()), logits(make(place=False)))
    assert [path.name for path in panels.parent.iterdir()] == [panels.name]


def test_a_model_of_the_same_size_and_time_is_packed_again(make: Model, gguf: Path) -> None:
    make()
    stat = gguf.stat()
    content = bytearray(gguf.read_bytes())
    content[-8:] = content[-80:-72]
    gguf.write_bytes(content)
    os.utime(gguf, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    assert np.array_equal(logits(make()), logits(make(place=False)))


def test_a_full_disk_is_said_once_and_nothing_is_left(
    make: Model, panels: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits(make(place=False))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=1 << 20))
    model = make()
    assert model.mapped_bytes == 0
    assert np.array_equal(logits(model), expected)
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"0.0 GB of packed weights are not kept in {panels.parent}, and packed at every start: 0.0 GB are free"
    ]
    assert list(panels.parent.iterdir()) == []


def test_a_disk_that_fills_up_in_between(gguf: Path, panels: Path) -> None:
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 21, 1 << 21))"
    command = child(gguf, panels, extra=limit)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=_ENVIRONMENT)
    assert done.stdout == "0\n"
    assert done.stderr.count("are not kept in") == 1
    assert os.strerror(errno.EFBIG) in done.stderr
    assert list(panels.parent.iterdir()) == []


def test_a_folder_that_cannot_be_written(make: Model, panels: Path, caplog: pytest.LogCaptureFixture) -> None:
    panels.parent.write_text("a file in the place of a folder")
    model = make()
    assert model.mapped_bytes == 0
    assert np.array_equal(logits(model), logits(make(place=False)))
    assert "are not kept in" in caplog.text


def test_a_cache_that_cannot_be_written(
    make: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "file"))
    assert make().mapped_bytes == 0
    assert "are not kept in" in caplog.text


def test_processes_at_once_write_one_file(gguf: Path, panels: Path, make: Model) -> None:
    children = [
        subprocess.Popen(
            child(gguf, panels), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=_ENVIRONMENT
        )
        for _ in range(3)
    ]
    outputs = [each.communicate(timeout=60) for each in children]
    assert {out for out, _ in outputs} == {f"{make().mapped_bytes}\n"}
    assert [each.returncode for each in children] == [0, 0, 0]
    assert [path.name for path in panels.parent.iterdir()] == [panels.name]
    assert all("damaged" not in err for _, err in outputs)


def test_a_process_killed_while_packing_leaves_nothing_wrong(gguf: Path, panels: Path, make: Model) -> None:
    slow = """
import time
from outrider.native import pieces
_pack = pieces.Piece.pack
pieces.Piece.pack = lambda self, out: (_pack(self, out), time.sleep(0.05))
"""
    running = subprocess.Popen(
        child(gguf, panels, extra=slow), stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=_ENVIRONMENT
    )
    fresh, deadline = panels.parent / f".{panels.name}.tmp", time.monotonic() + 30
    while not (fresh.exists() and fresh.stat().st_size > 2 << 20):
        assert time.monotonic() < deadline
        assert running.poll() is None
        time.sleep(0.005)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=30)
    assert fresh.exists()
    assert not panels.exists()
    assert np.array_equal(logits(make()), logits(make(place=False)))
    assert [path.name for path in panels.parent.iterdir()] == [panels.name]


def test_memory_in_small_pages_is_copied_if_there_is_room(
    make: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(packed.VARIABLE, "auto")
    monkeypatch.setattr(packed, "_huge_bytes", lambda mapped, otherwise: 0)
    room = dict.fromkeys(["bytes"], 1 << 40)
    monkeypatch.setattr(packed, "available_memory", lambda: room["bytes"])
    expected = logits(make(place=False))
    assert make().mapped_bytes == 0
    room["bytes"] = 1000
    model = make()
    assert model.mapped_bytes > 0
    assert np.array_equal(logits(model), expected)
    monkeypatch.setattr(packed, "_huge_bytes", lambda mapped, otherwise: otherwise)
    room["bytes"] = 1 << 40
    assert make().mapped_bytes > 0


def test_a_folder_of_safetensors_is_kept_listed_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from outrider.config import ModelOptions
    from outrider.weights.hub.inventory import list_models
    from outrider.weights.hub.removal import remove
    from outrider.weights.loader import load_model

    def no_hub_cache() -> None:
        from huggingface_hub import CacheNotFound

        raise CacheNotFound("none", cache_dir="none")

    monkeypatch.setattr("huggingface_hub.scan_cache_dir", no_hub_cache)
    folder = tmp_path / "m"
    write_folder(folder, hidden_size=512, intermediate_size=2048, num_hidden_layers=3)
    model = load_model(folder, ModelOptions(device="cpu"))
    assert isinstance(model, NativeLlamaModel)
    assert packed_size(folder) > model.mapped_bytes > 16 << 20
    entry = list_models()[-1]
    assert (entry.name, entry.kind, entry.packed_bytes) == (str(folder), "folder", packed_size(folder))
    gone = remove(str(folder))
    assert gone.bytes > model.mapped_bytes
    assert not packed_folder(folder).exists()
    assert folder.exists()
    assert len(list_models()) == 3
    assert logits(model).shape  # what is mapped stays until the process ends
