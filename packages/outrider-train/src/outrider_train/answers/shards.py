"""The folder of answers, which stays consistent when a run is killed.

    settings.json          the model and options; a run resumes only with the same
    answers-00000.jsonl    a line per turn's answer, in order of the conversation's ``index``.
                           ``of``: the conversation's number of lines in all files
    dropped.jsonl          dropped texts with reasons: {"index", "of", "turn", "reason", "text"}
    report.json            counts

A conversation is written after all earlier ones, so the files alone tell where a run resumes: at the first index whose
lines are incomplete. A truncated line, and everything after such a gap left by a power failure, is removed.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Iterator, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import filelock

from outrider.errors import CapacityError, ConfigError
from outrider.utils.json_files import shown

_FULL = (errno.ENOSPC, errno.EDQUOT)
PATTERN = "answers-*.jsonl"


def whole_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The complete lines of a file, each with its end in bytes; none for a missing file."""
    try:
        with path.open("rb") as file:
            end = 0
            for line in file:
                end += len(line)
                if line.endswith(b"\n"):
                    yield end, line
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


class Shards:
    """Reads the existing lines of a folder, then appends."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], lines: int) -> None:
        """``lines``: the least lines of a shard; a conversation is not divided.

        Raises ``ConfigError`` where the folder was begun with other settings, another run fills it, or it cannot be
        written.
        """
        self.folder, self._most = folder, lines
        self.settings = json.loads(json.dumps(dict(settings)))
        self._files: dict[Path, FileIO] = {}
        self._shard, self._lines = 0, 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot make {folder}: {error.strerror}") from None
        self._lock = filelock.FileLock(folder / ".lock")
        try:
            self._lock.acquire(timeout=0)
        except filelock.Timeout:
            raise ConfigError(f"another run writes to {folder}: wait for it, or use another --out") from None
        try:
            self._check_settings()
        except BaseException:
            self.close()
            raise

    def resume(self, tell: Callable[[dict[str, Any]], None]) -> int:
        """Give ``tell`` each record of the complete conversations, and return the first index that is missing."""
        answers, dropped = sorted(self.folder.glob(PATTERN)), self.folder / "dropped.jsonl"
        missing: dict[int, int] = {}  # records of each conversation
        for path in (*answers, dropped):
            for _, record in self._records(path):
                missing[record["index"]] = missing.get(record["index"], record["of"]) - 1
        first = next((i for i in range(len(missing)) if missing.get(i) != 0), len(missing))
        for path in (*answers, dropped):
            lines = self._keep(path, first, tell)
            if path != dropped and (lines or path == answers[0]):
                self._shard, self._lines = int(path.stem.rpartition("-")[2]), lines
        return first

    def _keep(self, path: Path, first: int, tell: Callable[[dict[str, Any]], None]) -> int:
        """Remove the lines of conversations ``first`` and later, and return the number of lines left."""
        end = lines = 0
        for after, record in self._records(path):
            if record["index"] >= first:
                break
            end, lines = after, lines + 1
            tell(record)
        if path.exists() and path.stat().st_size > end:
            with path.open("r+b") as file:
                file.truncate(end)
        return lines

    def write(self, index: int, answers: list[dict[str, Any]], dropped: list[dict[str, Any]]) -> None:
        """Append a conversation. Raises ``CapacityError`` if the disk is full; earlier lines stay usable."""
        if answers and self._lines >= self._most:
            self.flush()
            self._shard, self._lines = self._shard + 1, 0
        head = {"index": index, "of": len(answers) + len(dropped)}
        self._append(self.folder / f"answers-{self._shard:05}.jsonl", [head | record for record in answers])
        self._append(self.folder / "dropped.jsonl", [head | record for record in dropped])
        self._lines += len(answers)

    def flush(self) -> None:
        """Flush everything to the disk, and close the files."""
        while self._files:
            path, file = self._files.popitem()
            try:
                os.fsync(file.fileno())
                file.close()
            except OSError as error:
                raise self._failed(path, error) from None

    def close(self) -> None:
        """Close the files, and release the folder's lock."""
        self._lock.release()

    def report(self, value: Mapping[str, Any]) -> None:
        """Write ``report.json``."""
        self._replace(self.folder / "report.json", value)

    def _records(self, path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
        """The records of a file with their ends in bytes, up to the first malformed one."""
        for end, line in whole_lines(path):
            try:
                record = json.loads(line)
            except ValueError:
                return
            if not isinstance(record, dict) or not {"index", "of"} <= record.keys():
                raise ConfigError(f"{path} holds {shown(record)}, which this command did not write: use another --out")
            yield end, record

    def _append(self, path: Path, records: list[dict[str, Any]]) -> None:
        if not records:
            return
        data = memoryview("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records).encode())
        try:
            if path not in self._files:
                self._files[path] = path.open("ab", buffering=0)
            while data:
                data = data[self._files[path].write(data) :]
        except OSError as error:
            raise self._failed(path, error) from None

    def _check_settings(self) -> None:
        path = self.folder / "settings.json"
        if not path.exists():
            if any(self.folder.glob(PATTERN)):
                raise ConfigError(f"{self.folder} has answers but no settings.json: use another --out")
            self._replace(path, self.settings)
            return
        try:
            found = dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(f"{path} cannot be read ({error}): use another --out") from None
        for key in sorted(found.keys() | self.settings.keys()):
            old, new = found.get(key), self.settings.get(key)
            if old != new:
                raise ConfigError(
                    f"{self.folder} was begun with {key}={shown(old)}, not {shown(new)}: go on with that, or use "
                    "another --out"
                )

    def _replace(self, path: Path, value: Mapping[str, Any]) -> None:
        fresh = path.with_name(f".{path.name}.tmp")
        try:
            fresh.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
            os.replace(fresh, path)
        except OSError as error:
            raise self._failed(path, error) from None

    def _failed(self, path: Path, error: OSError) -> Exception:
        if error.errno in _FULL:
            return CapacityError(
                f"the disk of {self.folder} is full: free some space, then give the same command again; it goes on"
            )
        return ConfigError(f"cannot write {path}: {error.strerror}")
