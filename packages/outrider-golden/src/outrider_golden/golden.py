"""``Golden``: the conversations of one test, and the file that they are compared with."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError
from outrider.llm import LLM
from outrider.recording.records import Recorded, read_record
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.utils.whole_files import write_text
from outrider_golden import exchanges, records
from outrider_golden.model import GoldenLLM
from outrider_golden.proxy import Proxy
from outrider_golden.served import Served

__all__ = ["Golden", "Models"]


@dataclass
class Models:
    """What tests talk with: loaded when first used, shared by the tests of a session."""

    model: str
    """Of conversations in this process."""
    options: Mapping[str, Any]
    """Of ``LLM``."""
    upstream: str | None
    """The address of a server in its place, for ``Golden.url``."""
    record: Path
    """A file of this session."""

    @cached_property
    def llm(self) -> GoldenLLM:
        llm = GoldenLLM(self.model, **self.options)
        llm.record(self.record, logits=True)
        return llm

    @cached_property
    def served(self) -> Served:
        return Served(GoldenLLM(self.model, **self.options), self.model, self.record)

    @cached_property
    def proxy(self) -> Proxy:
        assert self.upstream is not None
        return Proxy(self.upstream)

    def begin(self) -> None:
        """A test begins: forget the conversations before."""
        self.record.write_bytes(b"")
        used = self.__dict__  # cached properties that a test has asked for
        for part in ("llm", "proxy"):
            if part in used:
                used[part].forget()
        if "served" in used:
            used["served"].llm.forget()

    def settle(self) -> None:
        """Wait until all that a test has asked is recorded."""
        if "served" in self.__dict__:
            self.served.settle()

    def close(self) -> None:
        """Release models and ports."""
        for part in ("llm", "served", "proxy"):
            if part in self.__dict__:
                self.__dict__[part].close()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.llm.tokenizer if "llm" in self.__dict__ else self.served.llm.tokenizer


class Golden:
    """The fixture ``golden``: a model to talk with, whose answers in this test are compared with a golden file."""

    def __init__(self, models: Models, folder: Path, name: str, *, update: bool) -> None:
        self._models, self._update = models, update
        stem = re.sub(r"[^\w.-]+", "-", name).strip("-")
        if stem != name:  # another name may become the same
            stem += f"-{hashlib.blake2b(name.encode(), digest_size=3).hexdigest()}"
        self.file = folder / f"{stem}{'.jsonl' if models.upstream is None else '.http.jsonl'}"
        models.begin()

    @property
    def llm(self) -> LLM:
        """The model in this process. Its requests without a seed have one that depends on the request alone."""
        if self._models.upstream is not None:
            raise ConfigError("golden.llm is of this process, and --golden-url names a server: use golden.url")
        return self._models.llm

    @property
    def url(self) -> str:
        """The address of an OpenAI-compatible server, up to ``/v1``: of the model, or before that of --golden-url."""
        return self._models.served.url if self._models.upstream is None else self._models.proxy.url

    def difference(self, *, passed: bool) -> str:
        """The first difference from the golden file, in lines of text; "" if there is none.

        On update the file of a test that ``passed`` is written instead; one without a difference stays as it is.
        Raises ConfigError for a file that is no golden one.
        """
        lines, different = self._compared()
        if not (different and lines and passed and self._update):
            return different
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_text(self.file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
        return ""

    def _compared(self) -> tuple[Sequence[Mapping[str, Any]], str]:
        """The lines of the golden file that this test would write, and its difference from the one that is there."""
        models, is_new = self._models, not self.file.exists()
        models.settle()
        held: Sequence[Any] = list(read_record(models.record))
        if models.upstream is not None:
            held = models.proxy.exchanges
        if not held:
            return [], "the test held no conversation: let it use golden.llm or golden.url"
        lines = exchanges.golden_lines(held) if models.upstream else records.golden_lines(held, models.tokenizer)
        if is_new:
            return lines, f"there are no golden conversations in {self.file}: pytest --golden-update writes them"
        if models.upstream is None:
            golden: list[Recorded] = list(read_record(self.file))
            found = records.compare(golden, held, models.tokenizer)
        else:
            texts = enumerate(self.file.read_text(encoding="utf-8").splitlines(), 1)
            read = [exchanges.read_exchange(text, f"{self.file}, line {line}") for line, text in texts]
            found = exchanges.compare(read, held)
        where = "" if not found else f"{found}\n  golden file: {self.file} (pytest --golden-update writes it)"
        return lines, where
