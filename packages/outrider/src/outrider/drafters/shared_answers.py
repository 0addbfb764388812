"""The answers that come with the package, as a datastore for any tokenizer; shared_answers.md says whose they are.

A model's datastore is made when its first request has ended, by a process of low priority, and kept in the user's
cache. ``OUTRIDER_ANSWERS=now`` makes it while the model is loaded, and ``off`` not at all.
"""

from __future__ import annotations

import hashlib
import logging
import os
import subprocess
import sys
from functools import cached_property
from pathlib import Path
from threading import Thread

import numpy as np

from outrider.drafters.datastore import Datastore, collect
from outrider.errors import ConfigError, ModelFormatError, OutriderError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.system import give_way, limit_process, own_session
from outrider.utils.user_cache import cache_root, locked
from outrider.weights.hub.checksums import large_file_digest

logger = logging.getLogger(__name__)

VARIABLE = "OUTRIDER_ANSWERS"
"""Environment: ``now``, ``off``, or empty for the first pause."""
TEXTS = Path(__file__).with_suffix(".xz")
"""The answers, UTF-8, with a zero byte between two."""
MOST_TOKENS = 1_000_000
"""Tokens of a datastore, 8 bytes each: those of a tokenizer by characters would be 2.7 million."""
_KEPT = 16  # datastores in the cache; the oldest make room
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json")
_COMMAND = "from outrider.drafters.shared_answers import main; main()"
_SINGLE = {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1", "OUTRIDER_COMPILE": "0"}
_CPU_S, _MEMORY = 120, 8 << 30  # seconds, and bytes of address space, until the process is stopped


class SharedAnswers:
    """The answers for one tokenizer. ``store`` is None until they are sorted, which changes speed, never output."""

    def __init__(self, folder: Path, vocab_size: int, texts: Path) -> None:
        """``folder``: of the model; ``vocab_size``: tokens that may be drafted; ``texts``: a file like ``TEXTS``."""
        self._folder, self._vocab_size, self._texts = folder, vocab_size, texts
        self._begun, self._waiting = False, Thread()
        self.store: Datastore | None = None

    def load(self) -> None:
        """Read the datastore, if it was made before."""
        if self.store is None:
            self.store = _read(self._file, self._vocab_size)

    def begin(self) -> None:
        """Have the datastore made unless it is there, or was begun; returns at once."""
        if self.store is not None or self._begun:
            return
        self._begun = True
        arguments = map(str, (self._folder, self._vocab_size, self._texts, self._file))
        command = [sys.executable, "-c", _COMMAND, *arguments]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | _SINGLE
        try:
            null = subprocess.DEVNULL
            process = subprocess.Popen(command, stdin=null, stdout=null, stderr=null, env=environment, **own_session())
        except OSError as error:
            logger.debug("no datastore of the shared answers: %s", error)
            return
        self._waiting = Thread(target=self._take, args=(process,), name="outrider-answers", daemon=True)
        self._waiting.start()

    @cached_property
    def _file(self) -> Path:
        return place(self._folder, self._vocab_size, self._texts)

    def wait(self, seconds: float | None = None) -> Datastore | None:
        """The datastore, begun if need be; None if it cannot be made, or not within ``seconds``."""
        self.begin()
        if self._waiting.ident is not None:
            self._waiting.join(seconds)
        return self.store

    def _take(self, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        self.load()
        if self.store is None:
            logger.debug("no datastore of the shared answers: its process ended with %d", code)


def shared_answers(folder: Path, vocab_size: int) -> SharedAnswers | None:
    """The answers for the tokenizer of a model's folder; None if the environment turns them off.

    Raises ConfigError for another value of ``OUTRIDER_ANSWERS``; for ``now`` also as ``write``.
    """
    when = os.environ.get(VARIABLE, "")
    if when not in ("", "now", "off"):
        raise ConfigError(f"{VARIABLE}={when!r}: choose now or off, or leave it out")
    if when == "off":
        return None
    if when == "now":
        write(folder, vocab_size, TEXTS, place(folder, vocab_size, TEXTS))
    return SharedAnswers(folder, vocab_size, TEXTS)


def make(tokenizer: Tokenizer, vocab_size: int, texts: Path = TEXTS) -> Datastore:
    """The datastore of the answers' first ``MOST_TOKENS`` tokens, without answers that have others than the model.

    Raises ConfigError if none is left.
    """
    import lzma  # not every Python has it

    found, left = [], MOST_TOKENS
    for text in lzma.decompress(texts.read_bytes()).decode().split("\0"):
        ids = np.array(tokenizer.encode(text, add_special_tokens=False)[:left], np.int32)
        if ids.max(initial=-1) < vocab_size:
            found.append(ids)
            left -= len(ids)
        if not left:
            break
    return collect((((), ids) for ids in found), vocab_size)  # type: ignore[misc]  # arrays will do for sequences


def write(folder: Path, vocab_size: int, texts: Path, file: Path) -> None:
    """Make the datastore at its ``place``, unless it is there.

    Raises ``OutriderError`` if it cannot be made or written.
    """
    with locked(f"answers-{file.stem}"):
        if _read(file, vocab_size) is not None:
            return
        file.parent.mkdir(exist_ok=True)
        make(Tokenizer.from_folder(folder), vocab_size, texts).save(file)
        by_age = sorted(file.parent.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns)
        for old in by_age[:-_KEPT]:
            old.unlink(missing_ok=True)


def main() -> None:
    """The process that writes a datastore. Arguments: as for ``write``."""
    give_way()
    limit_process(memory=_MEMORY, seconds=_CPU_S)
    try:
        write(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), Path(sys.argv[4]))
    except OutriderError:
        sys.exit(1)


def place(folder: Path, vocab_size: int, texts: Path) -> Path:
    """The file in the cache for this tokenizer, these answers and so many tokens."""
    files = [texts, *(path for name in _TOKENIZER if (path := folder / name).is_file())]
    digest = hashlib.sha256("\n".join(large_file_digest(path)[1] for path in files).encode()).hexdigest()[:32]
    return cache_root() / "answers" / f"{digest}-{vocab_size}.safetensors"


def _read(file: Path, vocab_size: int) -> Datastore | None:
    """The datastore of a file; None if it is not there, damaged or another's."""
    try:
        store = Datastore.load(file)
        store.check_vocabulary(vocab_size)
    except (ConfigError, ModelFormatError, OSError):
        return None
    return store
