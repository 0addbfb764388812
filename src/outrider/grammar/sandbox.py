"""Compiles untrusted grammars in a process that can be killed: some keep the library busy for hours or take all memory.

``{"type": "integer", "multipleOf": 99999989}`` compiles for longer than anyone has waited, and no limit of the library
covers that. So every new grammar is compiled and walked for a few tokens in a process with a deadline and a bound on
memory, and only then, in much the same time, in this one.

The other end of the pipe is ``main``: one line of JSON in, one out.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from typing import Any

from llguidance import LLMatcher

from outrider.config.structured import Kind
from outrider.errors import CapacityError
from outrider.grammar.matcher import compile_grammar, llguidance_tokenizer

DEADLINE = 10.0  # seconds for one grammar; ordinary ones take milliseconds
STARTUP = 120.0  # seconds for a process to start and read the vocabulary, which takes about one
MEMORY_LIMIT = 3 << 30  # bytes of address space
WALK_LENGTH = 32  # tokens
COMMAND = "from outrider.grammar.sandbox import main; main()"


class GrammarSandbox:
    """The process, started when first needed, and again after it had to be stopped."""

    def __init__(self, tokenizer: str, vocab_size: int, eos: Sequence[int], deadline: float = DEADLINE) -> None:
        self._vocabulary = {"tokenizer": tokenizer, "vocab_size": vocab_size, "eos": list(eos)}
        self._deadline = deadline
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def check(self, kind: Kind, text: str, any_whitespace: bool) -> str | None:
        """Why a grammar must not be used; None if it may be.

        Raises:
            CapacityError: the process cannot be started.
        """
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._start()
            reply = self._request({"kind": kind, "text": text, "any_whitespace": any_whitespace}, self._deadline)
            if isinstance(reply, str):
                self._stop()
                return f"compiling it {reply}: simplify it"
            problem: str | None = reply["problem"]
            return problem

    def _start(self) -> None:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, "-c", COMMAND]
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
            )
        except OSError as error:
            raise CapacityError(f"the process that tries grammars cannot be started ({error})") from None
        weakref.finalize(self, _end, self._process)
        reply = self._request(self._vocabulary, STARTUP)
        if isinstance(reply, str):
            self._stop()
            raise CapacityError(f"the process that tries grammars did not come up: starting it {reply}")

    def _stop(self) -> None:
        if self._process is not None:
            _end(self._process)
            self._process = None

    def _request(self, request: dict[str, Any], deadline: float) -> dict[str, Any] | str:
        """The answer, or what went wrong."""
        assert self._process is not None
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # it has died: there is nothing to read either
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        if not select.select([self._process.stdout], [], [], deadline)[0]:
            return f"takes longer than {deadline:g} seconds"
        line = self._process.stdout.readline()
        return json.loads(line) if line else "takes too much memory"


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def random_walk(matcher: LLMatcher, eos: Sequence[int]) -> str | None:
    """Take some possible token at each step; the problem met, if there is one.

    A dead end is a problem only at the start: later it may be the walk's own fault, as no model would go there.
    """
    ends = sum(1 << token for token in eos)
    for step in range(WALK_LENGTH):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little")
        if matcher.is_error():
            error = matcher.get_error()
            if "NoExtension" not in error:
                return f"it becomes too complex ({error})"
            return None if step else "it allows no output at all"
        if not allowed & ~ends:
            return None
        matcher.consume_token(_bit_from(allowed & ~ends, step * 7919 % allowed.bit_length()))
    return None


def _bit_from(bits: int, start: int) -> int:
    """Place of the lowest set bit at or above ``start``, or of the lowest one, if there is none."""
    above = bits >> start << start or bits
    return (above & -above).bit_length() - 1


def main() -> None:
    """Serve the pipe until it closes."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
    vocabulary = json.loads(sys.stdin.readline())
    eos = vocabulary["eos"]
    tokenizer = llguidance_tokenizer(vocabulary["tokenizer"], vocabulary["vocab_size"], eos)
    print("{}", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            problem = random_walk(compile_grammar(tokenizer, **request), eos)
        except (ValueError, RecursionError, MemoryError) as error:
            problem = str(error) or type(error).__name__
        print(json.dumps({"problem": problem}), flush=True)
