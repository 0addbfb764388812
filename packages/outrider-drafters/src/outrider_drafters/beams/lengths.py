"""The number of draft levels after the beams of a search, from measured costs and gains of drafts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from outrider.engine.request import Request
from outrider.engine.stats import RequestStats
from outrider.verify.draft import Draft
from outrider_drafters.beams.scheduled import BeamSteps
from outrider_drafters.beams.search import Node

LONGEST = 6  # most levels of drafts, where the length is "auto"
_DECAY = 0.85  # weight of earlier drafts in the running means
_PRIOR = 0.5  # prior probability that a draft holds all beams of the next step
_FIRST_PROBE = 8  # runs between trials where drafts do not pay; doubled after each trial


class BeamDraftLength:
    """The draft length of one search."""

    def __init__(self, pass_seconds: Callable[[int, int], float], stats: RequestStats) -> None:
        """``pass_seconds``: seconds of a run, by rows and context. ``stats``: the search's."""
        self._pass_seconds, self._stats = pass_seconds, stats
        self._level_s: float | None = None  # recent seconds per level of drafts
        self._drafts_made = 0
        self._held, self._tried = 2 * _PRIOR, 2.0  # recent steps with all beams in drafts, and all steps
        self._runs_without_draft, self._probe_after = 0, _FIRST_PROBE

    def levels(self, beams: int, nodes_of_level: int, context: int) -> int:
        """Levels of drafts that maximise steps per second; where that is 0, one level at times as a trial.

        ``nodes_of_level``: draft nodes of one depth, of all ``beams`` together.
        """
        held = self._held / self._tried
        best, fastest = 0, 1 / self._pass_seconds(beams, context)
        steps, chance = 1.0, 1.0
        for levels in range(1, LONGEST + 1):
            chance *= held
            steps += chance
            rows = beams + levels * nodes_of_level
            speed = steps / (self._pass_seconds(rows, context) + levels * (self._level_s or 0.0))
            if speed > fastest:
                best, fastest = levels, speed
        if best == 0 and self._runs_without_draft >= self._probe_after:
            self._probe_after *= 2
            return 1
        return best

    def note_draft(self, drafts: Sequence[Draft], seconds: float) -> None:
        """Record that drafts took ``seconds``; the first do not count, as sources read the prompt for them."""
        self._stats.draft_s += seconds
        levels = max((1 + max(draft.depths) for draft in drafts if draft), default=0)
        if levels and self._drafts_made:
            now, before = seconds / levels, self._level_s
            self._level_s = now if before is None else _DECAY * before + (1 - _DECAY) * now
        self._drafts_made += 1

    def count(self, request: Request, nodes: Sequence[Node], steps: BeamSteps) -> None:
        """Record one pass: the scored draft nodes, and the steps advanced."""
        stats = self._stats
        if steps.count:
            request.times.count(stats)
            stats.target_runs += 1
            stats.beam_steps += steps.count
            self._learn(nodes, steps.count)
        if nodes:
            stats.num_drafts += 1
            stats.num_draft_tokens += len(nodes)
            stats.num_accepted_draft_tokens += steps.accepted
            stats.drafted_by.update(Counter(node.source for node in nodes))
            stats.accepted_by.update(Counter(node.source for node in nodes if node.candidates is not None))

    def _learn(self, drafted: Sequence[Node], steps: int) -> None:
        """Learn from a pass that scored ``drafted`` and advanced ``steps`` steps, one of which needs no draft."""
        if drafted:
            won = steps - 1
            levels = 1 + max(node.depth for node in drafted) - min(node.depth for node in drafted)
            self._held = _DECAY * self._held + won
            self._tried = _DECAY * self._tried + won + (won < levels)
            self._runs_without_draft = 0
        else:
            self._runs_without_draft += 1
