"""Runs the program without a Python installation where there is nothing else (`make standalone`).

python deploy/standalone/check.py ARCHIVE MODEL
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path


def main(archive: str, model: str) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with tarfile.open(archive) as packed:
            packed.extractall(folder, filter="data")
        program = folder / "outrider" / "outrider"
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        environment = {"OUTRIDER_CACHE": str(folder / "cache"), "HOME": name, "OUTRIDER_COMPILE": "0"}

        def run(*words: str) -> str:
            began = time.perf_counter()
            done = subprocess.run(
                [str(program), *words], env=environment, cwd=name, check=True, capture_output=True, text=True
            )
            print(f"{' '.join(words[:2])}: {time.perf_counter() - began:.1f} s")
            return done.stdout

        assert run("--version").startswith("outrider ")
        where = str(Path(model).resolve())
        words = ("generate", "-m", where, "--raw", "-n", "8", "-t", "0", "It was")
        assert run(*words) == run(*words, "--draft", "none"), "drafts changed the output"
        choice = run("generate", "-m", where, "--raw", "-n", "8", "--json-schema", '{"enum": [10, 11]}', "Well,")
        assert choice.strip() in ("10", "11"), choice  # a process of its own tries the grammar
        assert '"native_library": "wheel"' in run("doctor", "--json")
    print(f"{archive}: {size / 1e6:.0f} MB unpacked")


if __name__ == "__main__":
    main(*sys.argv[1:])
