"""Does what a first user does with an installed package, in an empty folder (`make wheel-check`).

The interpreter given is that of an environment with the package and its dependencies: it must import nothing from this
checkout, which only lends a small model.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

MODEL = Path(__file__).parents[4] / "tests" / "data" / "lab" / "target"
_PROGRAM = """
import sys
import outrider
from outrider import LLM, SamplingParams, SpeculationParams, StructuredOutput
from outrider.errors import MissingExtensionError
from outrider.native.library import loaded
assert sys.prefix in outrider.__file__, "not the installed package: " + outrider.__file__
found = loaded()
assert found is not None and found.origin == sys.argv[2], found
with LLM(sys.argv[1], draft="suffix+ngram", threads=1) as llm:
    params = SamplingParams(max_tokens=48, temperature=0.8, seed=1)
    drafted = llm.generate("It was the best of times, it was the", params, reports_drafts=True)
    plain = llm.generate("It was the best of times, it was the", params, speculation=SpeculationParams(draft="none"))
    assert drafted.token_ids == plain.token_ids, "drafts changed the output"
    try:
        drafted.plot()
    except MissingExtensionError as error:
        assert "pip install 'outrider[lab]'" in str(error), error
    else:
        raise AssertionError("the laboratory is installed")
    form = StructuredOutput(choice=["yes", "no"])
    assert llm.generate("x", SamplingParams(max_tokens=9, structured=form)).text in ("yes", "no")
assert "torch" not in sys.modules
print("Python", sys.version.split()[0], "outrider", outrider.__version__, found.path.name)
"""


MOST_MB = 180
"""What the default distribution and all that it needs may take, without pip and its tools."""
_SIZES = """
from importlib.metadata import distributions
sizes = {}
for one in distributions():
    files = [one.locate_file(path) for path in one.files or () if not str(path).endswith(".pyc")]
    sizes[one.metadata["Name"]] = sum(path.stat().st_size for path in files if path.is_file()) / 1e6
for name in ("pip", "setuptools", "wheel"):
    sizes.pop(name, None)
largest = sorted(sizes, key=sizes.get, reverse=True)[:8]
print(f"{sum(sizes.values()):.0f} MB:", ", ".join(f"{name} {sizes[name]:.0f}" for name in largest))
assert sum(sizes.values()) <= float(__import__("sys").argv[1])
"""


def main(python: str, origin: str = "wheel") -> None:
    with tempfile.TemporaryDirectory() as empty:
        hidden = ("CC", "OUTRIDER_ISA", "PYTHONPATH")
        environment = {name: value for name, value in os.environ.items() if name not in hidden}
        environment |= {"OUTRIDER_CACHE": empty, "HF_HUB_OFFLINE": "1"}
        subprocess.run([python, "-c", _PROGRAM, MODEL, origin], env=environment, cwd=empty, check=True)
        subprocess.run([python, "-c", _SIZES, str(MOST_MB)], env=environment, cwd=empty, check=True)
        command = Path(python).with_name("outrider")
        absent = subprocess.run(
            [command, "certify"], env=environment, cwd=empty, capture_output=True, text=True, check=False
        )
        assert (absent.returncode, absent.stdout) == (2, ""), absent
        assert absent.stderr == "outrider: outrider certify is not installed: pip install 'outrider[lab]'\n", absent
        for words in (["--version"], ["models", "list"], ["generate", "-m", MODEL, "--raw", "-n", "8", "It was"]):
            subprocess.run([command, *words], env=environment, cwd=empty, check=True, stdout=subprocess.DEVNULL)
        _serve(str(command), environment, empty)


def _serve(command: str, environment: dict[str, str], folder: str) -> None:
    """A server with its page, one answer, and a clean end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [command, "serve", "-m", str(MODEL), "--port", str(port), "--log-level", "warning"]
    windows = sys.platform == "win32"  # a process there takes no signal but that of a group of its own
    group = getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0)
    server = subprocess.Popen(words, env=environment, cwd=folder, creationflags=group)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{url}/health", timeout=2)
                break
            except (urllib.error.URLError, OSError):
                time.sleep(0.5)
        page = urllib.request.urlopen(f"{url}/", timeout=10).read()
        assert b"<html" in page.lower(), "no playground"
        body = json.dumps({"prompt": "It was", "max_tokens": 8}).encode()
        request = urllib.request.Request(f"{url}/v1/completions", body, {"Content-Type": "application/json"})
        answer = json.load(urllib.request.urlopen(request, timeout=60))
        assert answer["usage"]["completion_tokens"] == 8, answer
    finally:
        server.send_signal(signal.CTRL_BREAK_EVENT if windows else signal.SIGTERM)  # type: ignore[attr-defined]
        code = server.wait(timeout=60)
    assert code == 0, f"the server ended with {code}"
    print("the server answered and ended with 0")


if __name__ == "__main__":
    main(*sys.argv[1:])
