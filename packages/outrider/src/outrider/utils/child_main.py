"""The other end of ``utils.child``: limits first, then one answer a line until the pipe ends."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from importlib import import_module
from typing import Any

from outrider.utils.system import end_with, limit_process

_SPARE = 2.0  # seconds of processor time beyond the parent's own deadline


def main() -> None:
    """Arguments: ``module:function``, bytes of memory, seconds for an answer, the parent's process id."""
    target, memory, seconds, parent = sys.argv[1:5]
    end_with(int(parent))
    limit_process(memory=int(memory))
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    module, _, function = target.partition(":")
    respond = getattr(import_module(module), function)(json.loads(sys.stdin.buffer.readline()))
    _write(answers, {})
    for line in sys.stdin.buffer:
        limit_process(seconds=math.ceil(time.process_time() + float(seconds) + _SPARE))
        _write(answers, respond(json.loads(line)))


def _write(answers: Any, answer: Any) -> None:
    answers.write(json.dumps(answer).encode() + b"\n")
    answers.flush()
