"""Ask llama.cpp what every key of a GGUF file changes, and keep its answers: ``gguf_reference.json``.

    python -m tests.weights.record_gguf PYTHON          (PYTHON: one that has llama-cpp-python)

For every small model of ``gguf_models`` and every key that llama.cpp knows: with a text in the key's place, which
fails or changes the logits if it is read at all; then with numbers and truths.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from outrider.weights.gguf.config import READ
from outrider.weights.gguf.keys import KNOWN
from tests.weights.gguf_models import CASES, write_case
from tests.weights.gguf_specials import SPECIALS
from tests.weights.reference import LlamaCpp, same

COMPUTED = {*READ, "attention.layer_norm_epsilon"}
"""Keys whose every value becomes part of what is computed, or is refused: ``SPECIALS`` has those."""
REFERENCE = Path(__file__).with_name("gguf_reference.json")
PROBES: tuple[Any, ...] = (0, 1, 3, 0.5, True, False)
"""Of which llama.cpp takes those of the type that it wants."""


class Recorder:
    def __init__(self, reference: LlamaCpp, folder: Path) -> None:
        self._reference, self._path = reference, folder / "m.gguf"

    def answer(self, name: str, changes: dict[str, Any], extra: dict[str, Any] | None = None) -> list[float] | str:
        write_case(self._path, name, changes, extra)
        return self._reference.logits(self._path)

    def record(self, name: str) -> dict[str, Any]:
        base = self.answer(name, {})
        assert not isinstance(base, str), f"{name}: {base}"
        keys: dict[str, list[Any]] = {}
        for key in self._read(name, sorted(KNOWN - COMPUTED), base):
            told = [[value, self._told(self.answer(name, {key: value}), base)] for value in PROBES]
            keys[key] = [[value, said] for value, said in told if said == "same" or not isinstance(said, str)]
        special = {
            title: self._told(self.answer(name, changes, extra), base)
            for title, (case, changes, extra) in SPECIALS.items()
            if case == name
        }
        return {"logits": base, "read": keys, "special": special}

    def _read(self, name: str, keys: list[str], base: list[float]) -> list[str]:
        """Those of ``keys`` that make a difference where they hold a text, by halves."""
        if self.answer(name, dict.fromkeys(keys, "x")) == base:
            return []
        half = len(keys) // 2
        return keys if not half else self._read(name, keys[:half], base) + self._read(name, keys[half:], base)

    def _told(self, said: list[float] | str, base: list[float]) -> list[float] | str:
        if isinstance(said, str):
            return "refused"
        return "same" if same(said, base) else said


def record(name: str, python: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder, LlamaCpp(python) as reference:
        return Recorder(reference, Path(folder)).record(name) | {"llama_cpp_python": reference.version}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python")
    parser.add_argument("names", nargs="*", default=list(CASES))
    given = parser.parse_args()
    kept = json.loads(REFERENCE.read_text()) if REFERENCE.exists() else {}
    for name in given.names:
        kept[name] = record(name, given.python)
        print(name, list(kept[name]["read"]), flush=True)
        lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(kept[key])}" for key in CASES if key in kept)
        REFERENCE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
