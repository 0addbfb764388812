"""Requests as they were drafted for: what each source proposed at every position of an output, and what was right.

Outputs do not depend on drafts, so one recording serves every length policy. It is made through the engine: a policy
asks for whole drafts, notes them and scores none, so that every position of the output is the beginning of a step.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from outrider.engine.draft_length.policy import DraftLength, ProposalCost
from outrider.engine.request import Request
from outrider.verify.draft import EMPTY, Draft

RIGHT, WRONG = 7, 1000
"""In a recorded draft: the token of a right node, and the least of the others, which differ."""
DEPTH = 16


@dataclass(frozen=True)
class Recording:
    """One request, and what one source proposed at each position of its output."""

    category: str
    prompt_tokens: int
    greedy: bool
    source: str
    drafts: tuple[Draft, ...]  # by position: tokens are RIGHT on the path of the output, and no other node is
    seconds: tuple[float, float]  # of a proposal, and of each of its levels; medians over the source's recordings
    pass_seconds: float  # of one row of the target, where that was recorded

    def __len__(self) -> int:
        return len(self.drafts)


class Recorder(DraftLength):
    """Notes each proposal and what it took; has none of it scored."""

    def __init__(self) -> None:
        self.drafts: dict[tuple[str, int], Draft] = {}  # by request and position in its output
        self.costs: list[ProposalCost] = []

    def select(
        self, requests: Sequence[Request], drafts: Sequence[Draft], num_tokens: Sequence[int], budgets: Sequence[int]
    ) -> list[Draft]:
        for request, draft in zip(requests, drafts, strict=True):
            self.drafts[request.id, request.stats.completion_tokens] = draft
        return [EMPTY] * len(drafts)

    def observe_proposals(self, request: Request, costs: Mapping[str, ProposalCost]) -> None:
        self.costs.extend(costs.values())


def right_nodes(draft: Draft, output: Sequence[int], at: int) -> list[bool]:
    """Of each node whether it is on the path of the output that goes on at ``at``."""
    right: list[bool] = []
    for token, parent, depth in zip(draft.tokens, draft.parents, draft.depths, strict=True):
        on_path = parent < 0 or right[parent]
        right.append(on_path and at + depth < len(output) and token == output[at + depth])
    return right


def proposal_seconds(costs: Sequence[ProposalCost]) -> tuple[float, float]:
    """What a proposal takes, and each of its levels: of sources that grow level by level, nothing but these."""
    empty = [cost.seconds for cost in costs if cost.levels == 0]
    base = statistics.median(empty) if empty else 0.0
    levels = [max(0.0, cost.seconds - base) / cost.levels for cost in costs if cost.levels]
    return base, statistics.median(levels) if levels else 0.0


def save(path: Path, arrays: Mapping[str, Any]) -> None:
    np.savez_compressed(path, **arrays)


def pack(
    outputs: Sequence[Sequence[int]], drafts: Mapping[str, Sequence[Draft]], meta: Mapping[str, Any]
) -> dict[str, Any]:
    """Arrays of all recordings: by source the drafts of all positions of all requests, one after another."""
    arrays: dict[str, Any] = dict(meta) | {"lengths": np.array([len(output) for output in outputs], np.uint16)}
    for source, own in drafts.items():
        right: list[bool] = []
        at = iter(own)
        for output in outputs:
            for position in range(1, len(output)):  # the first token comes with the prompt
                right += right_nodes(next(at), output, position)
        nodes = [
            (parent, score) for d in own for parent, score in zip(d.parents, d.scores or [-1] * len(d), strict=True)
        ]
        arrays[f"{source}.sizes"] = np.array([len(draft) for draft in own], np.uint8)
        arrays[f"{source}.parents"] = np.array([parent for parent, _ in nodes], np.int8)
        arrays[f"{source}.scores"] = np.array([255 if s < 0 else round(254 * min(1.0, s)) for _, s in nodes], np.uint8)
        arrays[f"{source}.right"] = np.packbits(right)
    return arrays


def load(path: Path) -> list[Recording]:
    """All recordings of a file, request by request and source by source."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    out: list[Recording] = []
    for source in map(str, arrays["sources"]):
        drafts = iter(_drafts(arrays, source))
        base, level = map(float, arrays[f"{source}.seconds"])
        for i, length in enumerate(arrays["lengths"]):
            own = tuple(next(drafts) for _ in range(int(length) - 1))
            category, prompt = str(arrays["categories"][i]), int(arrays["prompts"][i])
            greedy = bool(arrays["greedy"][i])
            out.append(Recording(category, prompt, greedy, source, own, (base, level), float(arrays["pass_seconds"])))
    return out


def _drafts(arrays: Mapping[str, Any], source: str) -> list[Draft]:
    parents, scores = arrays[f"{source}.parents"].tolist(), arrays[f"{source}.scores"].tolist()
    right = np.unpackbits(arrays[f"{source}.right"]).tolist()
    out, start = list[Draft](), 0
    for size in arrays[f"{source}.sizes"].tolist():
        if not size:
            out.append(EMPTY)
            continue
        own = slice(start, start + size)
        tokens = tuple(RIGHT if ok else WRONG + node for node, ok in enumerate(right[own]))
        said = None if scores[start] == 255 else tuple(score / 254 for score in scores[own])
        out.append(Draft(tokens, tuple(parents[own]), None, source, said))
        start += size
    return out
