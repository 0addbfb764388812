"""Loads the library of an installed wheel where nothing can be compiled (`make wheel-check`).

The interpreter given is that of a fresh environment with nothing but the wheel in it; dependencies come from the
environment that runs this file, and the package itself from the wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile

_CHECK = """
import sys
from outrider.native.library import available_isas, loaded
assert sys.prefix in __import__("outrider").__file__, "not the wheel's package"
found = loaded()
assert found is not None, "no library was loaded"
assert found.origin == "wheel", found
print(found.path.name, *available_isas(found.library))
"""


def main(python: str) -> int:
    with tempfile.TemporaryDirectory() as empty:
        settings = {"PATH": empty, "OUTRIDER_CACHE": empty, "PYTHONPATH": sysconfig.get_path("purelib")}
        environment = {name: value for name, value in os.environ.items() if name not in ("CC", "OUTRIDER_ISA")}
        return subprocess.run([python, "-c", _CHECK], env=environment | settings, cwd=empty, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(os.path.abspath(sys.argv[1])))
