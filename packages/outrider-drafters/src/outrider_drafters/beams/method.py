"""Beam search as a decode method: the request's rows in the cache are the tree of its beams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outrider.config import SpeculationParams
from outrider.config.sources import source_record
from outrider.drafters.api import Outcome
from outrider.engine.decode_method import DecodeMethod, EngineParts
from outrider.engine.request import Origin, Request, StepOutput
from outrider.engine.request_state import Ranked
from outrider.engine.runner import ScheduledRequest, TargetOutput
from outrider.engine.schedule import ScheduledTokens
from outrider.verify.distribution import TargetRows
from outrider.verify.draft import EMPTY
from outrider_drafters.beams.branches import ScheduledBranches, rows_at_once
from outrider_drafters.beams.drafting import BeamDraft, width_ahead
from outrider_drafters.beams.lengths import BeamDraftLength
from outrider_drafters.beams.scheduled import BeamSteps, ScheduledBeams
from outrider_drafters.beams.search import BeamSearch, Hypothesis, Node, union
from outrider_drafters.beams.states import BeamStates
from outrider_drafters.beams.views import BeamViews, verdict_of


def beam_search(request: Request, leader: Request | None = None) -> None:
    """Make ``request`` a search for the ``n`` best outputs, or the next output of its ``leader``'s search."""
    if leader is None:
        request.method = BeamMethod(request)
    else:
        assert isinstance(leader.method, BeamMethod)
        leader.method.outputs.append(request)
        request.method = FoundByLeader()


class FoundByLeader(DecodeMethod):
    """Method of a search's further outputs, whose requests never run."""

    def begin(self, request: Request, parts: EngineParts) -> bool:
        return False

    def schedule(self, part: ScheduledTokens[Request]) -> None:
        raise AssertionError("it never runs")

    def decide(self, scheduled: ScheduledRequest, output: TargetOutput) -> None:
        raise AssertionError("it never runs")

    def commit(self, scheduled: ScheduledRequest, output: TargetOutput, decision: None) -> list[StepOutput]:
        raise AssertionError("it never runs")


class BeamMethod(DecodeMethod):
    """Searches for the ``n`` best outputs.

    ::

        rows     [ prompt ... last | A  B  a1  b1  b2 ]     the last token of the prompt is the tree's root
        rest                        root ── A ── a1         pending: those at the end that have no row yet
                                      └──── B ── b1, b2

    The request's ``tokens`` are the prompt until the search is over.
    """

    search: BeamSearch

    def __init__(self, request: Request) -> None:
        self.outputs: list[Request] = [request]
        self.rest: list[Node] = []  # the tree's nodes, in order of rows, parents first
        self._states: BeamStates | None = None  # of a model with recurrent states, while the request has a slot
        self._drafts_off = False
        self._together: str | None = None  # the source that drafts for all beams together

    def begin(self, request: Request, parts: EngineParts) -> bool:
        self._parts, self._speculation = parts, request.speculation
        self._views = BeamViews(parts.drafting, request, self._speculation)
        self._length = BeamDraftLength(parts.pass_seconds, request.stats)
        names = self._speculation.combination.names
        self._together = next((name for name in names if source_record(name).beams == "together"), None)
        request.speculation, request.adaptive = SpeculationParams(draft="none"), False  # drafts are made for beams
        longest = min(request.params.max_tokens, request.max_seq_len - len(request.prompt))
        self.search = BeamSearch(Node(request.prompt[-1]), request.params, request.stop_ids, longest)
        return True

    def num_rows(self, request: Request) -> int:
        return len(request.prompt) + len(self.rest)

    def draft_limit(self, request: Request) -> int:
        """Draft nodes worth proposing for all beams together."""
        if self._drafts_off or self._speculation.draft == "none":
            return 0
        length, tips = self._speculation.spec_length, self.search.live()
        each = len(tips)
        if self._together is not None:
            each = width_ahead(request.params.beam_width, request.params.num_beam_groups)
        if not isinstance(length, int):
            length = self._length.levels(len(tips), each, request.num_computed_tokens)
        left = request.params.max_tokens - tips[0].depth - 1
        room = request.max_seq_len - len(request.prompt) - len(self.rest) - 1
        return max(0, min(min(length, left) * each, room))

    def chunk(self, request: Request, most: int) -> int:
        """With recurrent states, the prompt and the tree are read apart, a chain of rows with room for drafts."""
        hybrid, plan = self._parts.memory.hybrid, request.read_plan
        if hybrid is None or plan is None:
            return most
        first = request.num_computed_tokens - len(request.prompt)
        if first < 0:
            return min(most, -first)
        longest = max(1, hybrid.states.pending - plan.max_drafts)
        return rows_at_once(self.rest[first : first + most], longest)

    def schedule(self, part: ScheduledTokens[Request]) -> ScheduledBeams:
        drafts: list[BeamDraft] = []
        if part.num_draft_tokens:
            drafts, seconds = self._views.propose(self.search, part.num_draft_tokens, self._together)
            self._drafts_off = self._drafts_off or self._views.together_failed
            self._length.note_draft([draft for _, draft in drafts], seconds)
        request, hybrid = part.request, self._parts.memory.hybrid
        if hybrid is None:
            return ScheduledBeams(request, self.search, self.rest, part.num_tokens, drafts)
        assert request.slot is not None
        assert request.read_plan is not None
        self._states = self._states or BeamStates(hybrid, request.slot, self.search.root)
        most = request.read_plan.max_drafts  # after one beam
        drafts = [(tip, draft.only(range(min(len(draft), most)))) for tip, draft in drafts]
        return ScheduledBranches(request, self.search, self.rest, part.num_tokens, drafts, self._states)

    def decide(self, scheduled: ScheduledRequest, output: TargetOutput) -> BeamSteps:
        """Advance the search as far as the scored rows reach."""
        assert isinstance(scheduled, ScheduledBeams)
        return scheduled.advance(output, self._parts.vocab_size, self._parts.stop_ids)

    def commit(self, scheduled: ScheduledRequest, output: TargetOutput, decision: BeamSteps | None) -> list[StepOutput]:
        """Keep the live beams' tree. All tokens are returned at the end of the search."""
        assert isinstance(scheduled, ScheduledBeams)
        request, parts = scheduled.request, self._parts
        if decision is None:
            parts.memory.keep(request, scheduled.num_tokens)
        else:
            parts.memory.keep_rows(request, request.prompt_length, self._keep(scheduled.nodes))
        if isinstance(scheduled, ScheduledBranches):
            self._follow(scheduled)
        if decision is None:
            return []
        self._length.count(request, [node for nodes in scheduled.drafted for node in nodes], decision)
        self._observe(scheduled, output)
        emitted: list[StepOutput] = []
        if self.search.done:
            emitted = self._write_outputs()
            self._views.learn(request.tokens)
        parts.stats.count(scheduled.draft, decision.accepted)
        return emitted

    def start_over(self, request: Request) -> None:
        self._drafts_off = True
        self._states = None
        self._keep(())

    def fail(self, request: Request) -> None:
        for one in self.outputs:
            one.error = request.error

    def finish(self, request: Request) -> None:
        self._views.finish()
        if self._states is not None:  # when the tree is read again, each beam's rows follow one another
            self._states = None
            self._keep(())

    def _keep(self, present: Sequence[Node]) -> list[int]:
        """Keep the tree of the live beams; return the indices kept of ``present``, the cached nodes in order of rows.

        Nodes without a row are pending, after the others.
        """
        wanted = union(self.search.live())
        needed = set(wanted)
        kept = [i for i, node in enumerate(present) if node in needed]
        held = {present[i] for i in kept}
        self.rest = [*(present[i] for i in kept), *(node for node in wanted if node not in held)]
        for node in (self.search.root, *present):  # forgets drafts that no beam reached
            node.children = {token: child for token, child in node.children.items() if child in needed}
        return kept

    def _follow(self, scheduled: ScheduledBranches) -> None:
        """Each live beam goes on from the state of its last row."""
        request = scheduled.request
        held = request.num_computed_tokens - len(request.prompt)
        scheduled.ran()
        if self._states is not None and held >= 0 and not self.search.done:
            self._states.follow(self.search.live(), set(self.rest[:held]))

    def _observe(self, scheduled: ScheduledBeams, output: TargetOutput) -> None:
        """After a step: draft sources learn the target's candidates, and views follow their beams."""
        drafts = dict(scheduled.drafts)
        first = {node: output.first + i for i, node in enumerate(scheduled.scored)}
        for view, follower in self._views.follow(self.search.live()):
            tip, draft = view.node, drafts.get(view.node, EMPTY)
            path = [] if follower is None else follower.path(tip)
            if tip in first:
                rows = TargetRows(
                    output.logits,
                    view.params,
                    view.context,
                    draft,
                    stop_ids=self._parts.stop_ids,
                    vocab_size=self._parts.vocab_size,
                    constraint=view.constraint,
                    first=first[tip],
                    largest=output.largest,
                )
                committed = tuple(node.token for node in path)
                view.tokens += committed
                outcome = Outcome(view, draft, verdict_of(draft, committed), committed, rows)
                self._parts.drafting.observe(outcome, view)
            self._views.move(view, None if path and tip not in first else follower)

    def _write_outputs(self) -> list[StepOutput]:
        """The tokens of all outputs, best first, once the search is over. Missing outputs are empty."""
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
    if request.finish_reason is None:  # the context is full, or the output is missing
        request.finish_reason = "stop" if found is None else "length"
        if steps:
            steps[-1] = replace(steps[-1], finish_reason=request.finish_reason)
    missing = Ranked(float("-inf"), float("-inf"))
    request.ranked = missing if found is None else Ranked(found.score, found.sum_logprobs)
    return steps
