"""Prompts of many kinds to train heads on, out of public packages: articles, passages, problems, code, instructions.

Nothing is downloaded here; put these into one folder first:

    pip download --no-deps --no-binary :none: bigbench==1.0.0 evals==3.0.1.post1 inspect-evals==0.26.0 -d FOLDER
    python -m benchmarks.training_prompts FOLDER prompts.jsonl --exclude question.jsonl

Only prompts are taken. The answers to train on are the target's own: ``outrider train ... --regenerate``.
``--exclude`` drops every prompt that shares eight words in a row with the questions of a benchmark.
"""

from __future__ import annotations

import argparse
import ast
import json
import random
import re
import sysconfig
import tarfile
import zipfile
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

BIGBENCH = "bigbench-1.0.0/bigbench/benchmark_tasks/{}/task.json"
TASKS = {
    "xsum": "gem/xsum",
    "how_to": "gem/wikilingua_en",
    "german": "gem/mlsum_de",
    "quoref": "natural_instructions/subtask002_quoref_answer_generation",
    "drop": "natural_instructions/subtask028_drop_answer_generation",
    "ropes": "natural_instructions/subtask061_ropes_answer_generation",
    "cosmos": "natural_instructions/subtask024_cosmosqa_answer_generation",
    "spoken": "disfl_qa",
    "facts": "qa_wikidata",
    "whether": "strategyqa",
    "problems": "elementary_math_qa/question_only",
    "words": "gem/common_gen",
    "mysteries": "minute_mysteries_qa/freetext",
}
SHARES = {"summary": 1500, "translation": 1500, "qa": 1500, "rag": 1500, "math": 1500, "chat": 2500, "code": 1200}
STORIES = (
    "Write a short story with these words: {}.",
    "Compose a poem about {}.",
    "Write a blog post that mentions {}.",
    "Describe a scene with {} in vivid detail.",
    "Write a dialogue between two friends about {}.",
    "Draft a professional email about {}.",
)
TOPICS = (
    "Explain {} to a beginner.",
    "What is the importance of {}?",
    "Give me five facts about {}.",
    "Pretend you are an expert on {}. What would you tell a student first?",
    "Compare {} with something similar, in a table.",
    "Write an outline of an essay on {}.",
)
MOST = 2200  # characters of a prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the packages lie")
    parser.add_argument("out", type=Path)
    parser.add_argument("--exclude", type=Path, help="Spec-Bench's question.jsonl, or another with 'turns'")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    known = shingles_of_questions(args.exclude) if args.exclude else set()
    kept: list[dict[str, str]] = []
    for category, prompts in gather(args.folder, rng).items():
        fresh = [p for p in dict.fromkeys(prompts) if 12 <= len(p) <= MOST and not shingles(p) & known]
        rng.shuffle(fresh)
        kept += [{"category": category, "prompt": p} for p in fresh[: SHARES[category]]]
    rng.shuffle(kept)
    args.out.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in kept), encoding="utf-8")
    print(f"{args.out}: {len(kept)} prompts, {dict(Counter(row['category'] for row in kept))}")


def gather(folder: Path, rng: random.Random) -> dict[str, list[str]]:
    """Prompts by category, more than are needed."""
    tasks = dict(bigbench(next(folder.glob("bigbench-*.tar.gz"))))
    math = [f"{text[0].upper()}{text[1:]}" for text in tasks["problems"]]
    with zipfile.ZipFile(next(folder.glob("evals-*.whl"))) as wheel:
        for name in ("algebra_word_problems", "multistep-word-problems", "tricky-word-problems", "math_for_5th-grader"):
            math += [asked(row) for row in rows(wheel, f"evals/registry/data/{name}/samples.jsonl")]
    with zipfile.ZipFile(next(folder.glob("inspect_evals-*.whl"))) as wheel:
        writing = [row["query"] for row in rows(wheel, "inspect_evals/writingbench/benchmark_all.jsonl")]
    topics = [subject for text in tasks["facts"] for subject in re.findall(r" of (.+) is$", text)]
    stories = [rng.choice(STORIES).format(", ".join(text.split())) for text in tasks["words"]]
    essays = [rng.choice(TOPICS).format(topic) for topic in rng.sample(topics, 1500)]
    replies = [f"{part(text, 'Context', 'Question')}\n\nHow would you reply to this?" for text in tasks["cosmos"][:600]]
    sentences = [s for text in tasks["german"] for s in islice(long_sentences(text), 2)]
    passages = [text for name in ("quoref", "drop", "ropes") for text in tasks[name]]
    questions = [text.split("context:")[0].strip() for text in tasks["spoken"]]
    return {
        "summary": [f"Summarize: {text}" for text in tasks["xsum"] + tasks["how_to"]],
        "translation": [f"Translate German to English: {s}" for s in sentences],
        "qa": [*rng.sample(questions, 700), *rng.sample(tasks["facts"], 400), *tasks["whether"][:600]],
        "rag": [re.sub(r"(Background Paragraph|Passage|Story|Question): ", "", text) for text in passages],
        "math": math,
        "chat": [*stories, *essays, *replies, *tasks["mysteries"], *(q for q in writing if q.isascii())],
        "code": list(code(Path(sysconfig.get_paths()["stdlib"]))),
    }


def bigbench(archive: Path) -> Iterator[tuple[str, list[str]]]:
    names = {BIGBENCH.format(path): name for name, path in TASKS.items()}
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name in names and (file := tar.extractfile(member)):
                yield names[member.name], [example["input"].strip() for example in json.load(file)["examples"]]


def rows(wheel: zipfile.ZipFile, name: str) -> list[Any]:
    return [json.loads(line) for line in wheel.read(name).decode().splitlines() if line.strip()]


def asked(row: dict[str, Any]) -> str:
    """What the user says in an OpenAI evals sample."""
    turns = row["input"]
    return str(turns if isinstance(turns, str) else turns[-1]["content"])


def part(text: str, start: str, end: str) -> str:
    return text.split(f"{start}:", 1)[-1].split(f"{end}:", 1)[0].strip()


def long_sentences(text: str) -> Iterator[str]:
    return (s for s in re.split(r"(?<=[.!?]) ", text) if 50 <= len(s) <= 260 and "\n" not in s)


def code(stdlib: Path) -> Iterator[str]:
    """To write, explain and test functions of Python's own library."""
    for path in sorted(stdlib.glob("*.py")):
        source = path.read_text(encoding="utf-8", errors="ignore")
        for i, node in enumerate(ast.walk(ast.parse(source))):
            about = ast.get_docstring(node) if isinstance(node, ast.FunctionDef) else None
            if not isinstance(node, ast.FunctionDef) or not about:
                continue
            body, summary = ast.get_source_segment(source, node) or "", about.split("\n\n")[0].replace("\n", " ")
            signature = f"{node.name}({ast.unparse(node.args)})"
            yield (
                f"Write a Python function `{signature}`. {summary}",
                f"Explain what this Python function does:\n\n```python\n{body}\n```",
                f"Write unit tests for this function:\n\n```python\n{body}\n```",
            )[i % 3]


def shingles(text: str) -> set[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    return {tuple(words[i : i + 8]) for i in range(len(words) - 7)}


def shingles_of_questions(path: Path) -> set[tuple[str, ...]]:
    with path.open(encoding="utf-8") as lines:
        return {s for line in lines for turn in json.loads(line)["turns"] for s in shingles(turn)}


if __name__ == "__main__":
    main()
