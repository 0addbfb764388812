"""How many levels are drafted behind the beams of a search, from what drafts took and won."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from outrider.engine.request import Request
from outrider.engine.stats import RequestStats
from outrider.verify.draft import Draft
from outrider_drafters.beams.scheduled import BeamSteps
from outrider_drafters.beams.search import Node

LONGEST = 6  # draft nodes behind a beam, at most, where the length is "auto"
_DECAY = 0.85  # of what is remembered of earlier drafts
_PRIOR = 0.5  # how often a draft is expected to hold all beams of the next step, before anything is known
_FIRST_PROBE = 8  # runs between tries where drafts do not pay; twice as many after each


class BeamDraftLength:
    """Of one search."""

    def __init__(self, pass_seconds: Callable[[int, int], float], stats: RequestStats) -> None:
        """``pass_seconds``: of a run, by its rows and the context. ``stats``: the search's."""
        self._pass_seconds, self._stats = pass_seconds, stats
        self._level_s: float | None = None  # seconds that a level of drafts takes, lately
        self._drafts_made = 0
        self._held, self._tried = 2 * _PRIOR, 2.0  # drafted steps whose beams were all in the drafts, and all, lately
        self._runs_without_draft, self._probe_after = 0, _FIRST_PROBE

    def levels(self, beams: int, nodes_of_level: int, context: int) -> int:
        """Levels of drafts that make the most steps a second; where that is none, one level now and then.

        ``nodes_of_level``: draft nodes of one depth, behind all ``beams`` together.
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
        """Drafts took ``seconds``; the first ones, for which sources read the prompt, are no measure."""
        self._stats.draft_s += seconds
        levels = max((1 + max(draft.depths) for draft in drafts if draft), default=0)
        if levels and self._drafts_made:
            now, before = seconds / levels, self._level_s
            self._level_s = now if before is None else _DECAY * before + (1 - _DECAY) * now
        self._drafts_made += 1

    def count(self, request: Request, nodes: Sequence[Node], steps: BeamSteps) -> None:
        """Record one pass: the draft nodes that were scored, and how far it brought the search."""
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
        """A pass scored draft nodes, and brought the search on by ``steps``, of which one needs no draft."""
        if drafted:
            won = steps - 1
            levels = 1 + max(node.depth for node in drafted) - min(node.depth for node in drafted)
            self._held = _DECAY * self._held + won
            self._tried = _DECAY * self._tried + won + (won < levels)
            self._runs_without_draft = 0
        else:
            self._runs_without_draft += 1
