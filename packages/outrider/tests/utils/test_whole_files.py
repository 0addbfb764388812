"""A disk that is full: one clear error, no half file under the final name, and what was there before stays."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider.errors import CapacityError, ConfigError
from outrider.utils.whole_files import write_text, write_whole

SCRIPT = """
import json, resource, signal, sys
from pathlib import Path
import torch
from outrider.errors import OutriderError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
place = Path(sys.argv[1])

def datastore():
    from outrider.drafters.datastore import collect
    collect([([1], [2] * 5000)], 9).save(place / "out")

def table():
    from outrider_drafters.draft_table import count
    count(list(range(3000)), 3000).save(place / "out")

def head():
    from tests.heads import heads
    from outrider_torch.heads.checkpoint import save_head
    save_head(place / "out", *heads.random("eagle3"))

def text():
    from outrider.utils.whole_files import write_text
    write_text(place / "out.txt", "x" * 5000)

def model():
    from outrider.utils.user_cache import building
    with building(place / "out") as fresh:
        (fresh / "model.safetensors").write_bytes(b"x" * 5000)

for name in sys.argv[2:]:
    try:
        globals()[name]()
        print(name, "was written")
    except OutriderError as error:
        print(name, type(error).__name__, "full" in str(error), len(str(error).splitlines()))
    except BaseException as error:
        print(name, "raised", repr(error))
"""
PARTS = ("datastore", "table", "head", "text", "model")


@pytest.mark.skipif(sys.platform != "linux", reason="limits files")
def test_nothing_half_written_is_left(tmp_path: Path) -> None:
    environment = {**os.environ, "OUTRIDER_CACHE": str(tmp_path / "cache"), "OUTRIDER_COMPILE": "0"}
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), *PARTS]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.stdout.splitlines() == [f"{part} CapacityError True 1" for part in PARTS], done.stderr[-2000:]
    left = [path for path in tmp_path.rglob("*") if path.is_file() and "cache" not in path.parts]
    assert left == []


def fails(number: int) -> Callable[[Path], object]:
    def write(path: Path) -> None:
        path.write_text("half")
        raise OSError(number, os.strerror(number))

    return write


@pytest.mark.parametrize(
    ("number", "kind", "says"),
    [
        (errno.ENOSPC, CapacityError, "is full"),
        (errno.EDQUOT, CapacityError, "is full"),
        (errno.EFBIG, CapacityError, "is full"),
        (errno.EACCES, ConfigError, "Permission denied"),
        (errno.EIO, ConfigError, "Input/output error"),
    ],
)
def test_what_was_there_stays(number: int, kind: type[Exception], says: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("before")
    with pytest.raises(kind, match=says):
        write_whole(path, fails(number))
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    def write(path: Path) -> None:
        path.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "x", write)
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        write_text(tmp_path / "no" / "x", "text")
    with pytest.raises(ConfigError, match="cannot write"):
        write_whole(tmp_path / "no" / "x", lambda path: save_file({"a": torch.zeros(1)}, path))


def test_links_stay_links_and_pipes_are_written_to(tmp_path: Path) -> None:
    real, link, pipe = tmp_path / "real", tmp_path / "link", tmp_path / "pipe"
    real.write_text("before")
    link.symlink_to(real)
    write_text(link, "after")
    assert link.is_symlink()
    assert real.read_text() == "after"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    write_text(pipe, "through")
    reader.join(30)
    assert read == ["through"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no such device")
def test_a_device_that_is_full() -> None:
    with pytest.raises(CapacityError, match="is full"):
        write_text(Path("/dev/full"), "text")
