"""Recordings of edits for ``benchmarks.replay``: the edit is made by a program, so that no capable model is needed.

    python -m benchmarks.edits RECORDING --tokenizer FOLDER --questions QUESTIONS

Functions of the standard library with a function or a variable renamed, an argument or a line added, the docstring
left out, or one function of a file changed that an earlier message holds; documents of Spec-Bench with words
corrected; JSON with a key renamed. ``--half 0`` and ``--half 1`` have no function and no document in common.
"""

from __future__ import annotations

import argparse
import ast
import datetime
import inspect
import json
import random
import re
import statistics
import textwrap
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from outrider.tokenizer.tokenizer import Tokenizer

MODULES = (textwrap, statistics, argparse, json.encoder, json.decoder, datetime, inspect, ast, random)
PREFACES = ("", "Here is the updated code:\n\n", "Sure! Here's the modified version:\n\n")
MOST = 60  # edits of a kind

Edit = tuple[list[dict[str, str]], str]  # the conversation, and the answer


def renamed(code: str, name: str, new: str) -> str:
    return re.sub(rf"\b{re.escape(name)}\b", new, code)


def functions() -> Iterator[tuple[str, str, str]]:
    """Module source, name and code of functions and methods of some length."""
    for module in MODULES:
        whole = inspect.getsource(module)
        owners = [
            module,
            *(c for _, c in inspect.getmembers(module, inspect.isclass) if c.__module__ == module.__name__),
        ]
        for owner in owners:
            for name, function in inspect.getmembers(owner, inspect.isfunction):
                if function.__module__ == module.__name__ and owner.__dict__.get(name) is function:
                    code = textwrap.dedent(inspect.getsource(function))
                    if 400 < len(code) < 2500:
                        yield whole, name, code


def rename_function(name: str, code: str, whole: str) -> tuple[str, str]:
    return f"Rename the function `{name}` to `new_{name}` and repeat all of its code:", renamed(
        code, name, f"new_{name}"
    )


def rename_variable(name: str, code: str, whole: str) -> tuple[str, str] | None:
    names = Counter(n.id for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Name) and len(n.id) > 2)
    names.update(n.arg for n in ast.walk(ast.parse(code)) if isinstance(n, ast.arg) and len(n.arg) > 2)
    often = [n for n, count in names.most_common(3) if count > 2 and n not in ("self", "cls", "len", "isinstance")]
    if not often:
        return None
    return f"Rename `{often[0]}` to `current_{often[0]}` everywhere:", renamed(code, often[0], f"current_{often[0]}")


def drop_docstring(name: str, code: str, whole: str) -> tuple[str, str] | None:
    body = ast.parse(code).body[0]
    first = body.body[0] if isinstance(body, ast.FunctionDef) else None
    if not isinstance(first, ast.Expr) or not isinstance(first.value, ast.Constant) or first.end_lineno is None:
        return None
    lines = code.splitlines(keepends=True)
    return "Remove the docstring and all comments:", "".join(
        re.sub(r"\s*#.*", "", line) for line in lines[: first.lineno - 1] + lines[first.end_lineno :]
    )


def log_returns(name: str, code: str, whole: str) -> tuple[str, str] | None:
    new = re.sub(r"^( *)return\b", rf'\1logger.debug("leaving {name}")\n\1return', code, flags=re.MULTILINE)
    return None if new == code else ("Log before every return:", new)


def add_argument(name: str, code: str, whole: str) -> tuple[str, str]:
    return "Add a keyword `strict` that is off by default:", re.sub(r"\):\n", ", *, strict=False):\n", code, count=1)


CODE: dict[str, Callable[[str, str, str], tuple[str, str] | None]] = {
    "rename function": rename_function,
    "rename variable": rename_variable,
    "remove lines": drop_docstring,
    "insert lines": log_returns,
    "add argument": add_argument,
}


def code_edits(rng: random.Random, half: int) -> Iterator[tuple[str, Edit]]:
    for i, (whole, name, code) in enumerate(functions()):
        if i % 2 != half:
            continue
        for kind, edit in CODE.items():
            made = edit(name, code, whole)
            if made is None:
                continue
            task, new = made
            preface = rng.choice(PREFACES)
            yield (
                kind,
                ([{"role": "user", "content": f"{task}\n```python\n{code}```"}], f"{preface}```python\n{new}```"),
            )
        task, new = rename_variable(name, code, whole) or rename_function(name, code, whole)
        at = max(0, whole.find(code[:40]))
        file = whole[max(0, at - 4000) : at + 6000]
        if code in file:
            messages = [
                {"role": "user", "content": f"The file is:\n{file}"},
                {"role": "assistant", "content": "What would you like me to change?"},
                {"role": "user", "content": f"In `{name}`: {task[0].lower()}{task[1:]} show only that function."},
            ]
            yield "of a file", (messages, f"{preface}```python\n{new}```")


def typos(rng: random.Random, text: str) -> str:
    """About one word in twelve with two letters exchanged."""

    def spoil(match: re.Match[str]) -> str:
        word = match[0]
        if rng.random() > 1 / 12:
            return word
        at = rng.randrange(1, len(word) - 2)
        return word[:at] + word[at + 1] + word[at] + word[at + 2 :]

    return re.sub(r"[A-Za-z]{5,}", spoil, text)


def prose_edits(rng: random.Random, path: Path, half: int) -> Iterator[tuple[str, Edit]]:
    for i, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
        row = json.loads(line)
        if row["category"] != "summarization" or i % 2 != half:
            continue
        text = row["turns"][0].removeprefix("Summarize: ")[:1500]
        asked = f"Correct the spelling of this text:\n\n{typos(rng, text)}"
        yield "spelling", ([{"role": "user", "content": asked}], text)


def json_edits(rng: random.Random) -> Iterator[tuple[str, Edit]]:
    words = ["north", "amber", "violet", "harbor", "delta", "maple", "cedar", "onyx", "coral", "ember"]
    for _ in range(30):
        rows = [
            {
                "id": rng.randrange(10_000),
                "name": rng.choice(words),
                "price": rng.randrange(999) / 10,
                "stock": rng.randrange(50),
            }
            for _ in range(rng.randrange(5, 12))
        ]
        old = json.dumps(rows, indent=2)
        new = old.replace('"price"', '"unit_price"')
        asked = f"Rename the key `price` to `unit_price`:\n```json\n{old}\n```"
        yield "JSON key", ([{"role": "user", "content": asked}], f"```json\n{new}\n```")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording", type=Path)
    parser.add_argument("--tokenizer", type=Path, required=True, help="a model's folder")
    parser.add_argument("--questions", type=Path, required=True)
    parser.add_argument("--half", type=int, choices=(0, 1), default=1)
    parser.add_argument("--most", type=int, default=20, help="edits of a kind")
    args = parser.parse_args()
    tokenizer, rng = Tokenizer.from_folder(args.tokenizer), random.Random(args.half)
    found = [*code_edits(rng, args.half), *prose_edits(rng, args.questions, args.half), *json_edits(rng)]
    rng.shuffle(found)
    kinds: Counter[str] = Counter()
    with args.recording.open("w", encoding="utf-8") as file:
        for kind, (messages, answer) in found:
            kinds[kind] += 1
            if kinds[kind] <= args.most:
                ids = tokenizer.encode(answer, add_special_tokens=False)
                row = {"category": kind, "prompt": tokenizer.encode_chat(messages), "output": ids}
                file.write(json.dumps(row) + "\n")
    print(dict(kinds))


if __name__ == "__main__":
    main()
