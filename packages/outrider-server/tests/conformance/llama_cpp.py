"""llama.cpp's own server tests, run against ``outrider serve`` through a launcher in place of ``llama-server``.

    pip download --no-deps --no-binary :all: llama-cpp-python
    python -m tests.conformance.llama_cpp llama_cpp_python-*.tar.gz --table TABLE.md

The tests start a server each. So that this takes minutes and not an hour, the launcher asks a process that has
imported everything already to fork one (``Zygote``). The model is stories15m with a chat template: tests that expect
the words of llama.cpp's own 260-thousand-parameter model cannot pass, and the table says so.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from outrider import __version__
from tests.conformance.llama_cpp_reasons import HOW, NOT_HERE, why

FILES = ("chat_completion", "completion", "tokenize", "security", "ctx_shift", "ignore_eos", "speculative")
INSIDE = "vendor/llama.cpp/tools/server/tests"
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}<|assistant|>\n"

LAUNCHER = """#!{python} -SE
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as line:
    line.connect({path!r})
    line.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
    pid = int(line.makefile().readline())
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    while line.recv(1):
        pass
"""


def translated(given: Sequence[str], model: str) -> list[str]:
    """llama-server's flags as ours; those without a like here are left out."""
    flags: dict[str, str] = {}
    for at, word in enumerate(given):
        if word.startswith("--"):
            following = given[at + 1] if at + 1 < len(given) else ""
            flags[word] = "" if following.startswith("--") else following
    slots = int(flags.get("--parallel") or 1)
    ours = ["serve", "-m", model, "--threads", "1", "--max-batch-size", str(slots), "--served-model-name", "*"]
    ours += ["--log-level", "error"]
    if "--alias" in flags:
        ours += ["--served-model-name", flags["--alias"]]
    if "--ctx-size" in flags:
        unified = "--kv-unified" in flags  # one pool of tokens for all
        most = max(2, min(256, int(flags["--ctx-size"]) // (1 if unified else slots)))
        ours += ["--max-seq-len", str(most), *(("--kv-cache", "paged", "--kv-tokens", str(most)) if unified else ())]
    if flags.get("--n-predict", "-1") != "-1":  # a default there, a limit here: enough for what tests ask for
        ours += ["--max-tokens", str(max(128, int(flags["--n-predict"])))]
    if "--model-draft" in flags:  # which cannot be had: the model itself drafts
        ours += ["--draft", "model", "--draft-model", model, "--spec-length", flags.get("--spec-draft-n-max", "8")]
    for name, own in (("--port", "--port"), ("--host", "--host"), ("--api-key", "--api-key")):
        if flags.get(name):
            ours += [own, flags[name]]
    return [*ours, "--cors-origin", flags["--cors-origins"]] if "--cors-origins" in flags else ours


class Zygote:
    """Forks servers from a process in which everything is imported."""

    def __init__(self, path: str, model: str) -> None:
        self._model = model
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(path)
        self._listener.listen()
        import outrider_server.run  # noqa: F401  (what takes seconds)

    def run(self) -> None:
        import signal

        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            line, _ = self._listener.accept()
            given = json.loads(line.makefile().readline())
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                self._listener.close()
                line.sendall(f"{os.getpid()}\n".encode())
                sys.argv = ["outrider", *translated(given, self._model)]
                from outrider.cli.main import main

                try:
                    main()
                finally:
                    os._exit(0)
            line.close()


def model_with_template(folder: Path) -> str:
    """stories15m and a chat template."""
    from outrider.weights.hub.catalog import resolve

    target = folder / "stories15m"
    target.mkdir()
    for file in resolve("stories15m", progress=True).iterdir():
        (target / file.name).symlink_to(file)
    own = target / "tokenizer_config.json"
    settings = json.loads(own.read_text()) if own.exists() else {}
    own.unlink(missing_ok=True)
    own.write_text(json.dumps(settings | {"chat_template": TEMPLATE}))
    (target / "outrider.json").unlink(missing_ok=True)
    return str(target)


def tests_from(archive: Path, folder: Path) -> Path:
    """The tests, out of the source distribution, without what downloads models first."""
    with tarfile.open(archive) as tar:
        wanted = [member for member in tar if f"/{INSIDE}/" in member.name]
        tar.extractall(folder, members=wanted, filter="data")
    tests = next(folder.glob(f"*/{INSIDE}"))
    conftest = (tests / "conftest.py").read_text()
    (tests / "conftest.py").write_text(
        conftest.partition('@pytest.fixture(scope="session", autouse=True)\ndef load_server')[0]
    )
    (tests / "wget.py").write_text("def download(url, out):\n    open(out, 'w').close()  # the launcher has a model\n")
    (tests / "tmp").mkdir(exist_ok=True)
    return tests


def run(archive: Path, files: Sequence[str] = FILES) -> list[tuple[str, str, str]]:
    """(test, outcome, reason) of every test."""
    folder = Path(tempfile.mkdtemp())
    tests, path = tests_from(archive, folder), str(folder / "zygote")
    launcher = folder / "llama-server"
    launcher.write_text(LAUNCHER.format(python=sys.executable, path=path))
    launcher.chmod(0o755)
    zygote = subprocess.Popen([sys.executable, "-m", __spec__.name, "--zygote", path, model_with_template(folder)])
    try:
        while not Path(path).exists():
            pass
        chosen = [f"unit/test_{name}.py" for name in files]
        command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "--junit-xml", str(folder / "report.xml")]
        environment = os.environ | {"LLAMA_SERVER_BIN_PATH": str(launcher), "PYTHONPATH": str(tests)}
        subprocess.run([*command, *chosen], cwd=tests, env=environment, check=False, timeout=1500)
        return outcomes(folder / "report.xml")
    finally:
        zygote.terminate()
        shutil.rmtree(folder, ignore_errors=True)


def outcomes(report: Path) -> list[tuple[str, str, str]]:
    found = []
    for case in ET.parse(report).iter("testcase"):
        failure = next((e for kind in ("failure", "error") if (e := case.find(kind)) is not None), None)
        name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
        if case.find("skipped") is not None:
            found.append((name, "skipped", "skipped by llama.cpp"))
        elif failure is None:
            found.append((name, "passed", ""))
        else:
            found.append((name, *why(name, f"{failure.get('message', '')}\n{failure.text or ''}")))
    return found


def table(found: Sequence[tuple[str, str, str]]) -> str:
    counts = Counter(outcome for _, outcome, _ in found)
    lines = [
        "# llama.cpp's own server tests",
        "",
        HOW,
        "",
        f"Run of {datetime.date.today()}, outrider {__version__}:",
        "",
    ]
    lines += [
        ", ".join(f"{counts[outcome]} {outcome}" for outcome in ("passed", "failed", NOT_HERE, "skipped")) + ".",
        "",
    ]
    lines += ["| test | | why not |", "|---|---|---|"]
    lines += [
        f"| `{name.replace('|', '/')}` | {outcome} | {reason.replace('|', '/')} |" for name, outcome, reason in found
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    if sys.argv[1:2] == ["--zygote"]:
        Zygote(sys.argv[2], sys.argv[3]).run()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("archive", type=Path)
    parser.add_argument("--table", type=Path)
    parser.add_argument("--files", nargs="+", choices=FILES, default=FILES)
    given = parser.parse_args()
    made = table(run(given.archive.resolve(), given.files))
    print(made)
    if given.table:
        given.table.write_text(made)


if __name__ == "__main__":
    main()
