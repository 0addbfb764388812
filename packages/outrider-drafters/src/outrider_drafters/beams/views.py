"""Views of a search's beams for draft sources: each beam as a request."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from outrider.config import SpeculationParams
from outrider.config.sources import source_record
from outrider.drafters.api import Drafter
from outrider.drafters.model.model import ModelDrafter
from outrider.engine.drafting.isolation import check_draft
from outrider.engine.drafting.rounds import Drafting
from outrider.engine.request import Request
from outrider.verify.draft import Draft, Verdict
from outrider_drafters.beams.drafting import BeamDraft, DraftBeams
from outrider_drafters.beams.lengths import LONGEST
from outrider_drafters.beams.search import BeamSearch, Node


@dataclass
class BeamView(Request):
    """A request with a beam's tokens, for draft sources."""

    node: Node = field(kw_only=True)


class BeamViews:
    """Text sources draft for each live beam, through a view that is a separate request. A draft model drafts for all
    beams together, through one view of the search.

    A view follows its beam from step to step. Where a beam splits, the second one gets a new view, whose text the
    sources read again.
    """

    def __init__(self, drafting: Drafting, request: Request, speculation: SpeculationParams) -> None:
        """``request``: the search's. ``speculation``: the caller's options."""
        self._drafting, self._request, self._speculation = drafting, request, speculation
        self._views: list[BeamView] = []
        self._search_view: BeamView | None = None  # for the source that drafts for all beams
        self._ahead: DraftBeams | None = None  # of that source
        self._made = 0
        self.together_failed = False
        """Whether the source that drafts for all beams together was switched off."""

    def propose(self, search: BeamSearch, granted: int, together: str | None) -> tuple[list[BeamDraft], float]:
        """Drafts after the live beams, of at most ``granted`` nodes, and the seconds spent.

        ``together``: the source that drafts for all beams, if any.
        """
        began = time.perf_counter()
        if together is None:
            drafts = self._propose_to_each(search, granted)
        else:
            drafts = self._propose_to_all(search, granted, together)
        return drafts, time.perf_counter() - began

    def _propose_to_all(self, search: BeamSearch, granted: int, source: str) -> list[BeamDraft]:
        view = self._search_view = self._search_view or self._view(search.root, source)
        drafts: list[BeamDraft] = []

        def call(drafter: Drafter) -> None:
            if not isinstance(drafter, ModelDrafter):
                raise TypeError("it has no draft model to search with")
            if drafter.model.cache.states is not None:
                raise TypeError("a draft model with recurrent layers drafts chains, and beams are a tree")
            self._ahead = self._ahead or DraftBeams(drafter.model, view, source)
            proposed = self._ahead.propose(search, granted)
            self._check(proposed, search, granted)
            drafts.extend(proposed)

        self._drafting.isolated.ask(source, view, call)
        self._request.stats.draft_error = view.stats.draft_error
        self.together_failed = bool(view.drafts.disabled_sources)
        return drafts

    def _check(self, proposed: Sequence[BeamDraft], search: BeamSearch, budget: int) -> None:
        """Raise ValueError unless the target can score the drafts."""
        live = search.live()
        if any(tip not in live for tip, _ in proposed):
            raise ValueError("it drafted behind a beam that does not go on")
        if (total := sum(len(draft) for _, draft in proposed)) > budget:
            raise ValueError(f"it proposed {total} tokens where {budget} were allowed")
        for _, draft in proposed:
            check_draft(draft, budget, self._request, self._drafting.vocab_size)

    def _propose_to_each(self, search: BeamSearch, granted: int) -> list[BeamDraft]:
        tips = search.live()
        each = granted // len(tips)
        if each == 0:
            return []
        held = {id(view.node): view for view in self._views}
        views = self._views = [held.get(id(tip)) or self._view(tip) for tip in tips]
        drafts = self._drafting.propose(views, [each] * len(views), [1] * len(views))
        for view in views:
            self._request.stats.draft_error = self._request.stats.draft_error or view.stats.draft_error
        return [(tip, draft) for tip, draft in zip(tips, drafts, strict=True) if draft]

    def follow(self, live: Sequence[Node]) -> Iterator[tuple[BeamView, Node | None]]:
        """Every view with the live node that its beam reached, None if an earlier view has it.

        Call ``move`` for each before the next.
        """
        views, self._views = self._views, []
        self._unclaimed = list(live)
        for view in views:
            yield view, next((node for node in self._unclaimed if _descends(node, view.node)), None)

    def move(self, view: BeamView, node: Node | None) -> None:
        """Let a view follow its beam to ``node``; None drops the view."""
        if node is None:
            self._forget(view)
            return
        self._unclaimed.remove(node)
        view.node, view.stats.completion_tokens = node, node.depth
        self._views.append(view)

    def finish(self) -> None:
        """Drop all views after the end or preemption of the search."""
        for view in self._views:
            self._forget(view)
        if self._search_view is not None:
            self._forget(self._search_view)
        self._views, self._search_view, self._ahead = [], None, None

    def learn(self, tokens: Sequence[int]) -> None:
        """Let sources learn from the best output: ``tokens``, including the prompt."""
        view = self._view(Node(self._request.prompt[-1]))
        view.tokens = list(tokens)
        self._drafting.finish(view)

    def _view(self, tip: Node, source: str | None = None) -> BeamView:
        """A beam for text sources, or the whole search for ``source``."""
        self._made += 1
        request = self._request
        view = BeamView(
            id=f"{request.id}/beam{self._made}",
            prompt=request.prompt,
            params=request.params,
            speculation=_for_beams(self._speculation, source),
            stop_ids=request.stop_ids,
            constraint=request.constraint,
            input=request.input,
            cache_salt=request.cache_salt,
            tenant=request.tenant,
            node=tip,
        )
        view.max_seq_len = request.max_seq_len
        view.tokens += tip.tokens()
        view.stats.completion_tokens = tip.depth
        self._drafting.start(view)
        return view

    def _forget(self, view: BeamView) -> None:
        """End a view without letting sources learn from it: its beam was dropped, or has another view."""
        view.tokens = list(view.prompt)
        self._drafting.finish(view)


def _for_beams(speculation: SpeculationParams, source: str | None) -> SpeculationParams:
    """Options of drafts for beams: by ``source``, or by the sources of single beams; judged by the target's ranks."""
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


def verdict_of(draft: Draft, committed: Sequence[int]) -> Verdict:
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
