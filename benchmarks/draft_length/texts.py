"""Requests as token ids: prompts and plain answers of real runs, by kind of text.

Outputs do not depend on drafts, so a recording serves every source and every policy (``whole``).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.whole_requests import Task, answer, tasks


@dataclass(frozen=True)
class Text:
    """One request and its plain answer."""

    kind: str
    greedy: bool
    prompt: tuple[int, ...]
    output: tuple[int, ...]


def record(args: argparse.Namespace) -> None:
    """Answer every kind's prompts without drafts, up to the longest length, several at once."""
    from outrider import LLM

    found: list[Text] = []
    with LLM(args.model, draft="none", max_batch_size=args.at_once) as llm:
        for kind, prompts in tasks(args, llm).items():
            for begin in range(0, len(prompts), args.at_once):
                found += _answered(llm, kind, prompts[begin : begin + args.at_once], max(args.lengths))
    save(args.recording, found)


def _answered(llm: object, kind: str, wave: Sequence[Task], length: int) -> list[Text]:
    greedy = [not task.options.get("temperature", 0.0) for task in wave]
    outputs = answer(llm, wave, length, "recorded")  # type: ignore[arg-type]
    return [
        Text(kind, each, tuple(output.prompt_token_ids), tuple(output.token_ids))
        for each, output in zip(greedy, outputs, strict=True)
    ]


def save(path: Path, texts: Sequence[Text]) -> None:
    """Write texts: tokens of all prompts and answers one after another, and their lengths."""
    np.savez_compressed(
        path,
        kinds=np.array([text.kind for text in texts]),
        greedy=np.array([text.greedy for text in texts]),
        sizes=np.array([(len(text.prompt), len(text.output)) for text in texts], np.uint32),
        tokens=np.array([token for text in texts for token in (*text.prompt, *text.output)], np.uint32),
    )


def load(path: Path) -> list[Text]:
    """Read what ``save`` wrote."""
    with np.load(path) as file:
        kinds, greedy, sizes, tokens = (file[name].tolist() for name in ("kinds", "greedy", "sizes", "tokens"))
    texts, at = list[Text](), 0
    for kind, own, (prompt, output) in zip(kinds, greedy, sizes, strict=True):
        middle, end = at + prompt, at + prompt + output
        texts.append(Text(kind, own, tuple(tokens[at:middle]), tuple(tokens[middle:end])))
        at = end
    return texts
