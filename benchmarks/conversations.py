"""Digests of whole conversations, by model and dtype, on every instruction set that can be run here.

    make conversations                                  (ARGS=--write after a change that is meant to change bits)
    python -m benchmarks.conversations --models lab     the models of the repository alone
    python -m benchmarks.conversations --under FOLDER/python --target aarch64 ...
        (python -m benchmarks.arm_python FOLDER makes a Python for Arm, and prints the arguments)

A conversation has three turns: greedy, drawn, and drawn with penalties. Its digest is that of the tokens and of the
logits of each. Each instruction set runs in a process of its own, those of a model in C with a library compiled for it;
the threads of each run differ. ``--under`` names another Python, maybe an emulated one, that has the requirements of
the core. All digests must be the noted ones (``conversations.json``); a control drafts with another seed and must not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outrider.native.compile import SOURCES, Compiler, compile_library, find_compiler, library_name, machine_target

ROOT = Path(__file__).parents[1]
NOTED = Path(__file__).with_suffix(".json")
LAB = ROOT / "tests" / "data" / "lab"
MODELS = {
    "lab target": (str(LAB / "target"), ("auto", "bfloat16", "float32", "q8_0", "q4_0", "q4_1")),
    "lab hybrid": (str(LAB / "hybrid" / "model.gguf"), ("auto",)),
    "SmolLM2-135M": ("smollm2-135m-instruct", ("auto", "bfloat16", "float32", "q8_0", "q4_0", "q4_1")),
    "TinyLlama-1.1B": ("tinyllama-1.1b-chat", ("auto", "bfloat16", "q8_0")),
}
"""Of each: the model as it is loaded, and dtypes."""
QUESTIONS = ("Name three rivers, one in each line.", "Copy the second one word for word, twice.", "Why is it long?")
TURNS: Sequence[Mapping[str, Any]] = (
    {"temperature": 0},
    {"temperature": 0.8, "seed": 11},
    {"temperature": 1.0, "seed": 12, "top_p": 0.9, "repetition_penalty": 1.1, "presence_penalty": 0.2},
)
TOKENS = 24  # of a turn, at most
TESTS = ROOT / "packages" / "outrider" / "tests" / "native"
IN_C = {"amx": "tile_model.h", "avxvnni": "vnni_model.h"}
"""Instruction sets that run as a model in C where the processor has none."""


def conversation(model: str, dtype: str, threads: int, draft: str = "ngram", seed: int = 0) -> str:
    """The digest of a conversation. ``seed`` is added to those of the turns: another one is another conversation."""
    from outrider import LLM

    digest = hashlib.sha256()
    room = {"max_seq_len": 512, "max_batch_size": 1}
    with LLM(model, dtype=dtype, threads=threads, draft=draft, spec_length=4, **room) as llm:  # type: ignore[arg-type]
        messages: list[dict[str, str]] = []
        for question, options in zip(QUESTIONS, TURNS, strict=True):
            messages.append({"role": "user", "content": question})
            told = {"max_tokens": TOKENS, "min_tokens": TOKENS // 2, **options}
            told |= {"seed": told["seed"] + seed} if "seed" in told else {}
            if llm.tokenizer.chat_template is None:
                text = "\n".join(f"{one['role']}: {one['content']}" for one in messages) + "\nassistant:"
                output = llm.generate(text, reports_logits=True, **told)
            else:
                output = llm.chat(messages, reports_logits=True, **told)
            messages.append({"role": "assistant", "content": output.text})
            for step in output.steps:
                digest.update(f"{step.token_id} {step.logits.digest}\n".encode())
    return digest.hexdigest()[:16]


@dataclass(frozen=True)
class Place:
    """Where a conversation runs: an instruction set of a Python, and the number of threads."""

    isa: str
    threads: int
    python: Sequence[str]
    variables: Mapping[str, str]


def places(args: argparse.Namespace, folder: Path) -> Iterator[Place]:
    """Every instruction set, natively, emulated, or as a model in C."""
    sets = args.isa or ("portable", "neon", "i8mm") if args.target == "aarch64" else args.isa
    if args.under:
        compiler = find_compiler(target=args.target)
        if compiler is None:
            raise SystemExit(f"no compiler for {args.target}")
        variables = {**made(compiler, folder), "PYTHONPATH": args.pythonpath}
        for index, isa in enumerate(sets or ("portable",)):
            yield Place(isa, 1 + index % 2, shlex.split(args.under), variables)
        return
    from outrider.native.library import available_isas, native_library

    here = available_isas(native_library())
    for index, isa in enumerate(one for one in here if not sets or one in sets):
        yield Place(isa, 1 + index % 2, [sys.executable], {})
    compiler = find_compiler()
    for isa, header in IN_C.items():
        if isa not in here and (not sets or isa in sets) and machine_target() == "x86_64" and compiler is not None:
            include = ("-I", str(SOURCES), "-include", str(TESTS / header))
            modelled = Compiler((*compiler.command, *include), compiler.target, compiler.system)
            yield Place(isa, 2, [sys.executable], made(modelled, folder / isa))


def made(compiler: Compiler, folder: Path) -> dict[str, str]:
    """Variables with which a process uses a library that ``compiler`` makes, and the models that are here."""
    from outrider.utils.user_cache import cache_root

    native = folder / "native"
    native.mkdir(parents=True)
    plain = Path(library_name(compiler.target))
    compile_library(compiler, native / f"{plain.stem}-made{plain.suffix}")
    for kept in cache_root().iterdir():
        if kept.name in ("models", "gguf", "downloads"):
            (folder / kept.name).symlink_to(kept)
    return {"OUTRIDER_CACHE": str(folder), "OUTRIDER_COMPILE": "0"}


def run(place: Place, args: argparse.Namespace, model: str, dtype: str, seed: int = 0) -> str:
    """The digest of a conversation there, in a process of its own. Raises SystemExit if it fails."""
    words = ["-m", "benchmarks.conversations", "--one", model, "--dtype", dtype, "--threads", str(place.threads)]
    words += ["--draft", args.draft, "--seed", str(seed)]
    quiet = {"OUTRIDER_ISA": place.isa, "OUTRIDER_PACKED": "off", "OUTRIDER_ANSWERS": "off"}
    done = subprocess.run(
        [*place.python, *words], check=False, capture_output=True, text=True, cwd=ROOT,
        env=os.environ | place.variables | quiet,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{model} {dtype} on {place.isa} failed:\n{done.stderr[-2000:]}")
    return done.stdout.split()[-1]


def compare(args: argparse.Namespace) -> int:
    """Run everything; the exit code: 0 if all digests are the noted ones."""
    noted: dict[str, dict[str, str]] = {} if args.write else json.loads(NOTED.read_text())
    chosen = [name for name in MODELS if any(word.lower() in name.lower() for word in args.models)]
    wrong, blind = 0, 0
    with tempfile.TemporaryDirectory() as folder:
        for place in places(args, Path(folder)):
            for name in chosen:
                model, dtypes = MODELS[name]
                for dtype in (one for one in dtypes if not args.dtypes or one in args.dtypes):
                    found = run(place, args, model, dtype)
                    expected = noted.get(name, {}).get(dtype)
                    if expected is None and args.write:
                        noted.setdefault(name, {})[dtype] = expected = found
                    wrong += found != expected
                    note = "" if found == expected else f"   <- DIFFERS from {expected}"
                    print(f"{found}  {name}, {dtype}: {place.isa}, threads: {place.threads}{note}", flush=True)
        control = run(place, args, MODELS[chosen[0]][0], "auto", seed=1)
        blind = control in noted.get(chosen[0], {}).values()
        print(f"{control}  control with other seeds{'   <- IS NOTED' if blind else ''}")
    if args.write and not wrong:
        known = json.loads(NOTED.read_text()) if NOTED.exists() else {}
        NOTED.write_text(
            json.dumps({name: (known | noted)[name] for name in MODELS if name in known | noted}, indent=1)
        )
    return int(bool(wrong) or blind)


def table() -> str:
    """The noted digests as a table of Markdown: their first 8 digits, by model and dtype."""
    noted: dict[str, dict[str, str]] = json.loads(NOTED.read_text())
    dtypes = list(dict.fromkeys(dtype for _, each in MODELS.values() for dtype in each))
    lines = [["model", *(f"`{dtype}`" for dtype in dtypes)], ["---"] * (1 + len(dtypes))]
    for name, digests in noted.items():
        lines.append([name, *(digests.get(dtype, "")[:8] for dtype in dtypes)])
    return "".join(f"| {' | '.join(cells)} |\n".replace("  ", " ") for cells in lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", nargs="+", default=["lab", "SmolLM2"], help="words of their names")
    parser.add_argument("--dtypes", nargs="+", help="these alone")
    parser.add_argument("--isa", nargs="+", help="these instruction sets alone")
    parser.add_argument("--under", help="another Python's command")
    parser.add_argument("--target", default=machine_target(), help="its architecture")
    parser.add_argument("--pythonpath", default="", help="its PYTHONPATH")
    parser.add_argument("--write", action="store_true", help="note digests anew")
    parser.add_argument("--table", action="store_true", help="print the noted digests as the table of docs/native.md")
    parser.add_argument("--draft", default="ngram")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    parser.add_argument("--dtype", default="auto", help=argparse.SUPPRESS)
    parser.add_argument("--threads", type=int, default=1, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one is not None:
        print(conversation(args.one, args.dtype, args.threads, args.draft, args.seed))
        return 0
    if args.table:
        print(table(), end="")
        return 0
    return compare(args)


if __name__ == "__main__":
    sys.exit(main())
