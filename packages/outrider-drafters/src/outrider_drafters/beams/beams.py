"""Beam searches in an engine: drafts for their beams, and what is kept of the tree after each step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.config import SpeculationParams
from outrider.config.sources import source_record
from outrider.drafters.api import BeamDraft, Outcome
from outrider.engine.drafting.rounds import Drafting
from outrider.engine.memory import CacheMemory
from outrider.engine.request import Request, StepOutput
from outrider.engine.runner import TargetOutput
from outrider.engine.scheduler import ScheduledTokens
from outrider.verify.distribution import TargetRows
from outrider.verify.draft import EMPTY, Draft, Verdict
from outrider_drafters.beams.request import LONGEST, BeamRequest
from outrider_drafters.beams.scheduled import BeamSteps, ScheduledBeams
from outrider_drafters.beams.search import Node


@dataclass
class _BeamView(Request):
    """A beam as draft sources see it: a request with the beam's tokens."""

    node: Node = field(kw_only=True)


class Beams:
    """Each live beam asks the request's text sources as a request of its own would: they see a view of it. A draft
    model is asked for all beams together, and sees a view of the search.

    A beam's view follows its beam from step to step. Where two beams came from one, the second has a view of its own:
    what sources keep of its text they read anew.
    """

    def __init__(self, drafting: Drafting, memory: CacheMemory, stop_ids: Sequence[int], vocab_size: int) -> None:
        """``stop_ids``: the model's end-of-text ids."""
        self._drafting, self._memory = drafting, memory
        self._stop_ids, self._vocab_size = stop_ids, vocab_size
        self._views: dict[str, list[_BeamView]] = {}
        self._searches: dict[str, _BeamView] = {}  # for sources that draft for all beams together
        self._made = 0

    def commit(self, scheduled: ScheduledBeams, output: TargetOutput, steps: BeamSteps) -> list[StepOutput]:
        """Keep the tree of the beams that go on. All tokens come at the end of the search, and are returned then."""
        request = scheduled.search
        kept = request.keep(scheduled.nodes)
        self._memory.keep_rows(request, request.prompt_length, kept)
        request.count([node for nodes in scheduled.drafted for node in nodes], steps.count, steps.accepted)
        self._observe(scheduled, output)
        if not request.search.done:
            return []
        emitted = request.finish()
        self._learn(request)
        return emitted

    def _propose(self, request: BeamRequest, granted: int) -> list[BeamDraft]:
        """What is proposed behind the live beams, of ``granted`` nodes at most."""
        began = time.perf_counter()
        drafts = (self._of_each if request.beam_source is None else self._of_all)(request, granted)
        request.note_draft([draft for _, draft in drafts], time.perf_counter() - began)
        return drafts

    def _of_all(self, request: BeamRequest, granted: int) -> list[BeamDraft]:
        """What the source proposes that drafts for all beams together."""
        assert request.beam_source is not None
        view = self._searches.get(request.id)
        if view is None:
            view = self._searches[request.id] = self._view(request, request.search.root, request.beam_source)
        drafts = self._drafting.propose_beams(request.beam_source, view, request.search, granted)
        request.stats.draft_error = view.stats.draft_error
        request.drafts_off = request.drafts_off or bool(view.switched_off)
        return drafts

    def _of_each(self, request: BeamRequest, granted: int) -> list[BeamDraft]:
        """What text sources propose to each beam."""
        tips = request.search.live()
        each = granted // len(tips)
        if each == 0:
            return []
        held = {id(view.node): view for view in self._views.get(request.id, ())}
        views = [held.get(id(tip)) or self._view(request, tip) for tip in tips]
        self._views[request.id] = views
        drafts = self._drafting.propose(views, [each] * len(views), [1] * len(views))
        for view in views:
            request.stats.draft_error = request.stats.draft_error or view.stats.draft_error
        return [(tip, draft) for tip, draft in zip(tips, drafts, strict=True) if draft]

    def schedule(self, part: ScheduledTokens[Request]) -> ScheduledBeams:
        """A search's part in a step, with drafts."""
        request = part.request
        assert isinstance(request, BeamRequest)
        drafts = self._propose(request, part.num_draft_tokens) if part.num_draft_tokens else []
        return ScheduledBeams(request, part.num_tokens, drafts)

    def _observe(self, scheduled: ScheduledBeams, output: TargetOutput) -> None:
        """The search has come on: views follow their beams, and draft sources learn what the target said."""
        request = scheduled.search
        views, self._views[request.id] = self._views.get(request.id, []), []
        if not views:
            return
        drafts = dict(scheduled.drafts)
        first = {node: output.first + i for i, node in enumerate(scheduled.scored)}
        unclaimed = request.search.live()
        for view in views:
            tip, draft = view.node, drafts.get(view.node, EMPTY)
            follower = next((node for node in unclaimed if _descends(node, tip)), None)
            path = [] if follower is None else follower.path(tip)
            if tip in first:
                rows = TargetRows(
                    output.logits,
                    view.params,
                    view.context,
                    draft,
                    stop_ids=self._stop_ids,
                    vocab_size=self._vocab_size,
                    constraint=view.constraint,
                    first=first[tip],
                    largest=output.largest,
                )
                committed = tuple(node.token for node in path)
                view.tokens += committed
                outcome = Outcome(view, draft, _verdict(draft, committed), committed, rows)
                self._drafting.observe(outcome, view)
            if follower is None or (path and tip not in first):
                self._forget(view)
                continue
            unclaimed.remove(follower)
            view.node, view.stats.completion_tokens = follower, follower.depth
            self._views[request.id].append(view)

    def finish(self, request: Request) -> None:
        """The request has ended or was preempted."""
        for view in self._views.pop(request.id, ()):
            self._forget(view)
        if request.id in self._searches:
            self._forget(self._searches.pop(request.id))

    def _learn(self, request: BeamRequest) -> None:
        """Show sources that learn from outputs the best one."""
        view = self._view(request, request.search.root)
        view.tokens = list(request.tokens)
        self._drafting.finish(view)

    def _view(self, request: BeamRequest, tip: Node, source: str | None = None) -> _BeamView:
        """A beam for text sources, or the whole search for ``source``."""
        self._made += 1
        view = _BeamView(
            id=f"{request.id}/beam{self._made}",
            prompt=request.prompt,
            params=request.params,
            speculation=_for_beams(request.source_speculation, source),
            stop_ids=request.stop_ids,
            constraint=request.constraint,
            encoder_input=request.encoder_input,
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            adapter=request.adapter,
            node=tip,
        )
        view.max_seq_len = request.max_seq_len
        view.tokens += tip.tokens()
        view.stats.completion_tokens = tip.depth
        self._drafting.start(view)
        return view

    def _forget(self, view: _BeamView) -> None:
        """End a view of which nobody should learn: the beam was given up, or goes on elsewhere."""
        view.tokens = list(view.prompt)
        self._drafting.finish(view)


def _for_beams(speculation: SpeculationParams, source: str | None) -> SpeculationParams:
    """What drafts for beams: ``source``, or those that draft for each; with drafts that the target's ranks judge."""
    combination = speculation.combination
    groups = ["+".join(name for name in group if source_record(name).beams == "each") for group in combination.groups]
    length = speculation.spec_length
    return SpeculationParams(
        draft=source or ("/" if combination.best else ",").join(filter(None, groups)) or "none",
        spec_length=LONGEST if length == "auto" else length,
        tree=speculation.tree,
        tree_nodes=speculation.tree_nodes,
        prediction=speculation.prediction,
    )


def _descends(node: Node, above: Node) -> bool:
    while node.depth > above.depth and node.parent is not None:
        node = node.parent
    return node is above


def _verdict(draft: Draft, committed: Sequence[int]) -> Verdict:
    """The part of a draft that a beam followed, and the token after it."""
    path: list[int] = []
    for token in committed:
        node = next(
            (
                i
                for i in range(len(draft))
                if draft.tokens[i] == token and draft.parents[i] == (path[-1] if path else -1)
            ),
            None,
        )
        if node is None:
            break
        path.append(node)
    token = committed[len(path)] if len(committed) > len(path) else (committed[-1] if committed else -1)
    return Verdict(tuple(path), token)
