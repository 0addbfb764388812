"""Every sound call, and every case of ``cases.py``, each in a process of its own; prints what each came to.

    python -m tests.native.attack LIBRARY [PART OF A NAME]

Prints one JSON object: the status of each, or ``signal N``, or the exit code of a sanitizer. Exits with 1 if a case
came to anything but what it must.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys

from outrider.native.signatures import declare
from tests.native.attack.calls import CALLS, call
from tests.native.attack.cases import CASES, Case
from tests.native.attack.world import World

SECONDS = 20  # of processor time; a sound call takes a thousandth


def outcome(library: ctypes.CDLL, case: Case) -> int | str:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        import resource

        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.write(writer, str(call(library, World(library), case.call, case.changes)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return int(said) if os.WEXITSTATUS(status) == 0 else f"exit {os.WEXITSTATUS(status)}"


def main() -> None:
    library = declare(ctypes.CDLL(sys.argv[1]))
    part = sys.argv[2] if len(sys.argv) > 2 else ""
    sound = [Case(name, {}) for name in CALLS]
    found = {case.name: outcome(library, case) for case in (*sound, *CASES) if part in case.name}
    print(json.dumps(found))
    wrong = [case.name for case in CASES if found.get(case.name, case.right) != case.right]
    sys.exit(f"{len(wrong)} of {len(found)} are wrong: {', '.join(wrong[:20])}" if wrong else 0)


if __name__ == "__main__":
    main()
