"""A beam search on its way through the engine: a request whose rows in the cache are the tree of its beams."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.config import SpeculationParams
from outrider.config.sources import source_record
from outrider.engine.request import Origin, Request, StepOutput
from outrider.errors import OutriderError
from outrider.verify.distribution import Context
from outrider.verify.draft import Draft
from outrider_drafters.beams.drafting import width_ahead
from outrider_drafters.beams.search import BeamSearch, Hypothesis, Node, union

LONGEST = 6  # draft nodes behind a beam, at most, where the length is "auto"
_DECAY = 0.85  # of what is remembered of earlier drafts
_PRIOR = 0.5  # how often a draft is expected to hold all beams of the next step, before anything is known
_FIRST_PROBE = 8  # runs between tries where drafts do not pay; twice as many after each


@dataclass
class RankedBeam(Request):
    """One of the further outputs of a beam search, which its leader (``after``) finds; it never runs itself."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert isinstance(self.after, BeamRequest)
        self.after.outputs.append(self)
        self.after = None  # it shares no prompt to wait for


@dataclass
class BeamRequest(Request):
    """Searches for the ``n`` best outputs.

    ::

        rows     [ prompt ... last | A  B  a1  b1  b2 ]     the last token of the prompt is the tree's root
        rest                        root ── A ── a1         pending: those at the end that have no row yet
                                      └──── B ── b1, b2

    Its ``tokens`` are the prompt until the search is over.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.outputs: list[Request] = [self]
        self.rest: list[Node] = []  # of the tree, in order of their rows, parents first
        self.drafts_off = False
        self.beam_source: str | None = None  # that drafts for all beams together
        self._level_s: float | None = None  # seconds that a level of drafts takes, lately
        self._drafts_made = 0
        self._held, self._tried = 2 * _PRIOR, 2.0  # drafted steps whose beams were all in the drafts, and all, lately
        self._runs_without_draft, self._probe_after = 0, _FIRST_PROBE

    def begin(self, pass_seconds: Callable[[int, int], float]) -> None:
        """The request is queued. ``pass_seconds``: of a run, by its rows and the context."""
        self._pass_seconds = pass_seconds
        self.source_speculation, self.adaptive = self.speculation, False
        names = self.speculation.combination.names
        self.beam_source = next((name for name in names if source_record(name).beams == "together"), None)
        self.speculation = SpeculationParams(draft="none")  # drafts are made for beams
        longest = min(self.params.max_tokens, self.max_seq_len - len(self.prompt))
        self.search = BeamSearch(Node(self.prompt[-1]), self.params, self.stop_ids, longest)

    @property
    def num_pending_tokens(self) -> int:
        return len(self.prompt) + len(self.rest) - self.num_computed_tokens

    @property
    def draft_limit(self) -> int:
        """Draft nodes worth proposing for all beams together."""
        if self.drafts_off or self.source_speculation.draft == "none":
            return 0
        length, tips = self.source_speculation.spec_length, self.search.live()
        levels = length if isinstance(length, int) else self._levels_that_pay()
        left = self.params.max_tokens - tips[0].depth - 1
        room = self.max_seq_len - len(self.prompt) - len(self.rest) - 1
        return max(0, min(min(levels, left) * self._nodes_of_level, room))

    @property
    def _nodes_of_level(self) -> int:
        """Draft nodes of one depth, behind all beams together."""
        if self.beam_source is None:
            return len(self.search.live())
        return width_ahead(self.params.beam_width, self.params.num_beam_groups)

    def _levels_that_pay(self) -> int:
        """Levels of drafts that make the most steps a second; where that is none, one level now and then."""
        beams, context = len(self.search.live()), self.num_computed_tokens
        held = self._held / self._tried
        best, fastest = 0, 1 / self._pass_seconds(beams, context)
        steps, chance = 1.0, 1.0
        for levels in range(1, LONGEST + 1):
            chance *= held
            steps += chance
            rows = beams + levels * self._nodes_of_level
            speed = steps / (self._pass_seconds(rows, context) + levels * (self._level_s or 0.0))
            if speed > fastest:
                best, fastest = levels, speed
        if best == 0 and self._runs_without_draft >= self._probe_after:
            self._probe_after *= 2
            return 1
        return best

    def note_draft(self, drafts: Sequence[Draft], seconds: float) -> None:
        """Drafts took so long; the first ones, for which sources read the prompt, are no measure."""
        self.stats.draft_s += seconds
        levels = max((1 + max(draft.depths) for draft in drafts if draft), default=0)
        if levels and self._drafts_made:
            now, before = seconds / levels, self._level_s
            self._level_s = now if before is None else _DECAY * before + (1 - _DECAY) * now
        self._drafts_made += 1

    def _learn(self, drafted: Sequence[Node], steps: int) -> None:
        """A run scored draft nodes, and brought the search on by ``steps``, of which one needs no draft."""
        if drafted:
            won = steps - 1
            levels = 1 + max(node.depth for node in drafted) - min(node.depth for node in drafted)
            self._held = _DECAY * self._held + won
            self._tried = _DECAY * self._tried + won + (won < levels)
            self._runs_without_draft = 0
        else:
            self._runs_without_draft += 1

    def context_of(self, node: Node) -> Context:
        """What a node's continuations follow."""
        return Context(self.prompt, node.tokens())

    def keep(self, present: Sequence[Node]) -> list[int]:
        """Keep the tree of the live beams; which of the nodes ``present`` in the cache, in order of rows, that is.

        Nodes without a row are pending, behind those that have one.
        """
        wanted = union(self.search.live())
        needed = set(wanted)
        kept = [i for i, node in enumerate(present) if node in needed]
        held = {present[i] for i in kept}
        self.rest = [*(present[i] for i in kept), *(node for node in wanted if node not in held)]
        for node in (self.search.root, *present):  # drafts that no beam came to are forgotten
            node.children = {token: child for token, child in node.children.items() if child in needed}
        return kept

    def fail(self, error: OutriderError) -> None:
        for request in self.outputs:
            request.error = error

    def start_over(self) -> None:
        """Read the tree again, without drafts; its rows in the cache are gone."""
        self.drafts_off = True
        self.keep(())

    def count(self, nodes: Sequence[Node], steps: int, accepted: int) -> None:
        """Count a run that scored the drafted ``nodes``, of which beams came to some, in so many ``steps``."""
        now, stats = time.perf_counter(), self.stats
        if self.first_token is None and steps:
            self.first_token = now
            stats.prefill_s = now - (self.started or now)
        if steps:
            stats.target_runs += 1
            stats.beam_steps += steps
            stats.decode_s = now - (self.first_token or now)
            self._learn(nodes, steps)
        if nodes:
            stats.num_drafts += 1
            stats.num_draft_tokens += len(nodes)
            stats.num_accepted_draft_tokens += accepted
            stats.drafted_by.update(Counter(node.source for node in nodes))
            stats.accepted_by.update(Counter(node.source for node in nodes if node.candidates is not None))

    def finish(self) -> list[StepOutput]:
        """The tokens of all outputs, best first, once the search is over. Outputs that were not found are empty."""
        found: list[Hypothesis | None] = [*self.search.ranked()]
        missing = len(self.outputs) - len(found)
        steps: list[StepOutput] = []
        for request, one in zip(self.outputs, [*found, *[None] * missing], strict=False):
            steps += _write(request, one)
        return steps


def _write(request: Request, found: Hypothesis | None) -> list[StepOutput]:
    """One output of a search as if it had been generated token by token."""
    steps: list[StepOutput] = []
    for node in [] if found is None else found.node.path():
        text = request.append(node.token)
        origin: Origin = "accepted" if node.source else "target"
        source = node.source or "none"
        steps.append(StepOutput(request.id, node.token, text, origin, source, None, request.finish_reason))
    if request.finish_reason is None:  # the context is full, or there is no such output
        request.finish_reason = "stop" if found is None else "length"
        if steps:
            steps[-1] = replace(steps[-1], finish_reason=request.finish_reason)
    request.score = float("-inf") if found is None else found.score
    request.sum_logprobs = float("-inf") if found is None else found.sum_logprobs
    return steps
