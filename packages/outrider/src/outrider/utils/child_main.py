"""The other end of ``utils.child``: limits first, then one answer a line until the pipe ends."""

from __future__ import annotations

import contextlib
import ctypes
import json
import math
import os
import resource
import select
import signal
import sys
import threading
import time
from importlib import import_module
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_SPARE = 2.0  # seconds of processor time beyond the parent's own deadline


def main() -> None:
    """Arguments: ``module:function``, bytes of memory, seconds for an answer, the parent's process id."""
    target, memory, seconds, parent = sys.argv[1:5]
    _die_with(int(parent))
    _limit(resource.RLIMIT_AS, int(memory))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    module, _, function = target.partition(":")
    respond = getattr(import_module(module), function)(json.loads(sys.stdin.buffer.readline()))
    _write(answers, {})
    for line in sys.stdin.buffer:
        _limit(resource.RLIMIT_CPU, math.ceil(time.process_time() + float(seconds) + _SPARE))
        _write(answers, respond(json.loads(line)))


def _write(answers: Any, answer: Any) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()


def _die_with(parent: int) -> None:
    """End as soon as the parent has: by the kernel's signal where there is one, and by the end of the pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it was too quick
            os._exit(0)
    threading.Thread(target=_exit_at_end, daemon=True).start()


def _exit_at_end() -> None:
    poll = select.poll()
    poll.register(0, 0)  # the other side's end is reported without being asked for
    poll.poll()
    os._exit(0)


def _limit(kind: int, value: int) -> None:
    _, hard = resource.getrlimit(kind)
    with contextlib.suppress(ValueError, OSError):  # an administrator's own limit is lower
        resource.setrlimit(kind, (value, hard))
