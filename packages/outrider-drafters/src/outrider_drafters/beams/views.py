"""The beams of a search as draft sources see them: each as a request of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from outrider.config import SpeculationParams
from outrider.config.sources import source_record
from outrider.drafters.api import Drafter
from outrider.drafters.model.model import ModelDrafter
from outrider.engine.drafting.rounds import Drafting
from outrider.engine.drafting.validation import check_draft
from outrider.engine.request import Request
from outrider.verify.draft import Draft, Verdict
from outrider_drafters.beams.drafting import BeamDraft, DraftBeams
from outrider_drafters.beams.lengths import LONGEST
from outrider_drafters.beams.search import BeamSearch, Node


@dataclass
class BeamView(Request):
    """A beam as draft sources see it: a request with the beam's tokens."""

    node: Node = field(kw_only=True)


class BeamViews:
    """Each live beam asks the request's text sources as a request of its own would: they see a view of it. A draft
    model is asked for all beams together, and sees a view of the search.

    A beam's view follows its beam from step to step. Where two beams came from one, the second has a view of its own:
    what sources keep of its text they read anew.
    """

    def __init__(self, drafting: Drafting, request: Request, speculation: SpeculationParams) -> None:
        """``request``: the search's; ``speculation``: of its caller."""
        self._drafting, self._request, self._speculation = drafting, request, speculation
        self._views: list[BeamView] = []
        self._search_view: BeamView | None = None  # for the source that drafts for all beams together
        self._ahead: DraftBeams | None = None  # of that source
        self._made = 0
        self.together_failed = False
        """Whether the source that drafts for all beams together was switched off."""

    def propose(self, search: BeamSearch, granted: int, together: str | None) -> tuple[list[BeamDraft], float]:
        """Drafts behind the live beams, of ``granted`` nodes at most, and the seconds that they took.

        ``together``: the source that drafts for all beams together, if one does.
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
        """Every view, and the live node that its beam has come to, unless an earlier view has claimed it.

        ``move`` is to be called of each before the next.
        """
        views, self._views = self._views, []
        self._unclaimed = list(live)
        for view in views:
            yield view, next((node for node in self._unclaimed if _descends(node, view.node)), None)

    def move(self, view: BeamView, node: Node | None) -> None:
        """Let a view follow its beam to ``node``; None: it is given up."""
        if node is None:
            self._forget(view)
            return
        self._unclaimed.remove(node)
        view.node, view.stats.completion_tokens = node, node.depth
        self._views.append(view)

    def finish(self) -> None:
        """The search has ended or was preempted."""
        for view in self._views:
            self._forget(view)
        if self._search_view is not None:
            self._forget(self._search_view)
        self._views, self._search_view, self._ahead = [], None, None

    def learn(self, tokens: Sequence[int]) -> None:
        """Show sources that learn from outputs the best one: ``tokens``, the prompt included."""
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
