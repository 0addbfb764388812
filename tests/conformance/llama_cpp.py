"""llama.cpp's own server tests, run against ``outrider serve`` through a launcher in place of ``llama-server``.

    pip download --no-deps --no-binary :all: llama-cpp-python
    python -m tests.conformance.llama_cpp llama_cpp_python-*.tar.gz --table docs/server-conformance.md

The tests start a server each. So that this takes minutes and not an hour, the launcher asks a process that has
imported everything already to fork one (``Zygote``). The model is stories15m with a chat template: tests that expect
the words of llama.cpp's own 260-thousand-parameter model cannot pass, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import os
import re
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

FILES = ("chat_completion", "completion", "tokenize", "security", "ctx_shift", "ignore_eos", "speculative")
INSIDE = "vendor/llama.cpp/tools/server/tests"
TEMPLATE = "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}{{ eos_token }}\n{% endfor %}<|assistant|>\n"

HOW = """Made by `python -m tests.conformance.llama_cpp llama_cpp_python-0.3.36.tar.gz --table docs/server-conformance.md`: the
files `tools/server/tests/unit/test_{chat_completion,completion,tokenize,security,ctx_shift,ignore_eos,speculative}.py`
of the llama-cpp-python source distribution, without those marked slow, against `outrider serve -m stories15m` in place
of `llama-server`. *Failed*: something that this server has, and does otherwise. *Not applicable*: words and numbers of
llama.cpp's own test model (which cannot be had here), its flags, and what this server does not have."""

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

NOT_HERE, OTHERWISE = "not applicable", "failed"
REASONS = (
    # (test, what it said, outcome, why)
    (
        "cors_proxy|static_assets|local_media|tools_enabled",
        "",
        NOT_HERE,
        "a proxy, pictures or a web interface of its own",
    ),
    (
        "cors_",
        "",
        OTHERWISE,
        "CORS is off here unless asked for, never with credentials, and answers 400 to other origins",
    ),
    ("synth_", "", NOT_HERE, "drafts whose acceptance is made up, to test llama.cpp"),
    (
        "ctx_shift_enabled|with_ctx_shift",
        "",
        NOT_HERE,
        "shifting the context, which forgets: an output ends where its context does",
    ),
    ("chat_template|verbose", "", NOT_HERE, "a template chosen by flag, or shown in the answer"),
    ("", r"startswith\('b'\)|system_fingerprint", NOT_HERE, "expects llama.cpp's build number as fingerprint"),
    ("", r"match_regex|Expected .* got", NOT_HERE, "expects the words of llama.cpp's test model"),
    ("", r"delta.*is None|'' is None", OTHERWISE, "expects null where OpenAI sends empty text"),
    (
        "stream_vs_non_stream|tokens_input",
        "",
        NOT_HERE,
        "a seed or temperature by flag: here they belong to the request",
    ),
    (
        "invalid_chat_completion_req",
        "",
        OTHERWISE,
        "two answers in a row are for the model's template to refuse; this one takes them",
    ),
    ("post_sampling|post_backend", "", OTHERWISE, "probabilities after sampling: refused by name"),
    (
        "",
        r"is not a field this server knows|not supported: leave it out",
        OTHERWISE,
        "a field of llama.cpp's on OpenAI's endpoint: refused by name",
    ),
    (
        "json_schema|grammar|multiple_choices",
        "== 200|got 400",
        OTHERWISE,
        "a field of llama.cpp's on OpenAI's endpoint: refused by name",
    ),
    (
        "",
        "authentication_error|exceed_context_size",
        OTHERWISE,
        "names the kind of error as llama.cpp does; here it is OpenAI's",
    ),
    (
        "long_prompt|long_input",
        "200",
        NOT_HERE,
        "a prompt that is too long in llama.cpp's vocabulary of 512 tokens only",
    ),
    ("", r"assert \d+ == \d+|n_prompt|prompt_n", NOT_HERE, "counts tokens of llama.cpp's test model"),
)


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
        whole = min(256, int(flags["--ctx-size"]))
        unified = "--kv-unified" in flags
        ours += ["--max-seq-len", str(whole if unified else max(2, int(flags["--ctx-size"]) // slots))]
        ours += ["--kv-cache", "paged", "--kv-tokens", str(whole)] if unified else []
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
        import outrider.cli.main
        import outrider.server.run  # noqa: F401  (what takes seconds)

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
    from outrider.models.catalog import resolve

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


def run(archive: Path) -> list[tuple[str, str, str]]:
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
        chosen = [f"unit/test_{name}.py" for name in FILES]
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
            found.append((name, *_why(name, f"{failure.get('message', '')}\n{failure.text or ''}")))
    return found


def _why(name: str, text: str) -> tuple[str, str]:
    """(failed or not applicable, the reason), by the name of a test and what it said."""
    lines = [line for line in text.splitlines() if line.startswith(("E ", ">"))]
    said = "\n".join(lines)
    for test, pattern, outcome, reason in REASONS:
        if re.search(test, name) and re.search(pattern, said):
            return outcome, reason
    return "failed", next((line[1:].strip()[:120] for line in reversed(lines) if line.startswith("E ")), "")


def table(found: Sequence[tuple[str, str, str]]) -> str:
    counts = Counter(outcome for _, outcome, _ in found)
    lines = ["# llama.cpp's own server tests", "", HOW, ""]
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
    given = parser.parse_args()
    made = table(run(given.archive.resolve()))
    print(made)
    if given.table:
        given.table.write_text(made)


if __name__ == "__main__":
    main()
