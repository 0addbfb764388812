"""Drafts from occurrences of the last tokens in the request, earlier responses and a datastore (``suffix_tree``)."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from outrider.drafters.api import Drafter, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.datastore import MAX_MATCH, Datastore
from outrider.drafters.shared_answers import SharedAnswers
from outrider.drafters.text.counts import sampled_chain
from outrider.drafters.text.edited_copy import EditedCopy, Expected
from outrider.drafters.text.occurrences import TYPE, Tokens, occurrences
from outrider.drafters.text.responses import TOKEN_BYTES, Responses
from outrider.drafters.text.suffix_native import NativeTrees
from outrider.drafters.text.suffix_tree import (
    COPIED,
    EDITED,
    OTHER_LIMIT,
    OWN,
    OWN_LIMIT,
    SHARED,
    STORED,
    Candidate,
    Continuation,
    continuations,
    grow,
    predict,
)
from outrider.native.library import library
from outrider.utils.partitioned_store import Handle, PartitionedStore
from outrider.verify.draft import Draft

CAPACITY = 1 << 22  # bytes of earlier responses
_REUSED = 4  # matching tokens from which a response counts as used


@dataclass
class _SuffixState:
    request: RequestView
    earlier: Handle[Responses]
    own: Tokens  # the request's
    copy: EditedCopy  # of them
    stored: Datastore | None


def build(context: DrafterContext) -> Drafter:
    """The source ``suffix``."""
    return SuffixDrafter(context.vocab_size, datastore=context.datastore)


class SuffixDrafter(SingleRequestDrafter):
    """Drafts trees from the request's own tokens, earlier responses with the same cache salt, and a datastore."""

    def __init__(
        self, vocab_size: int, capacity: int = CAPACITY, datastore: Datastore | SharedAnswers | None = None
    ) -> None:
        """``capacity``: bytes of earlier responses kept over all domains; 0 keeps none."""
        self._vocab_size, self.datastore = vocab_size, datastore
        if isinstance(datastore, SharedAnswers):
            datastore.load()
        self._states: dict[str, _SuffixState] = {}
        native = library()
        self._trees = None if native is None else NativeTrees(native)
        self.responses = PartitionedStore(Responses, capacity)
        self.on_response: Callable[[str, str, Sequence[int]], None] | None = None
        """Called with each learned response: its domain, its tenant, its tokens."""

    def learn(self, name: str, domain: str, tenant: str, response: Sequence[int]) -> None:
        """Learn a response of another engine; ``name`` must differ from every request id."""
        if self.responses.fits(len(response) * TOKEN_BYTES):
            earlier = self.responses.open(domain, tenant)
            earlier.store.add(name, response)
            self.responses.close(earlier)

    def start(self, request: RequestView) -> None:
        earlier = self.responses.open(request.cache_salt, request.tenant)
        own = array(TYPE)
        copy = EditedCopy(own, request.prompt_length)
        stored = self.datastore.store if isinstance(self.datastore, SharedAnswers) else self.datastore
        self._states[request.id] = _SuffixState(request, earlier, own, copy, stored)

    def finish(self, request_id: str) -> None:
        state = self._states.pop(request_id, None)
        if state is not None:
            request = state.request
            response = request.tokens[request.prompt_length :]
            if self.responses.fits(len(response) * TOKEN_BYTES):  # a larger one would evict all responses
                state.earlier.store.add(request_id, response)
                if self.on_response is not None:
                    self.on_response(request.cache_salt, request.tenant, response)
            self.responses.close(state.earlier)
        if isinstance(self.datastore, SharedAnswers):
            self.datastore.begin()  # not before: the first token of a first start is no later for it

    def draft(self, request: RequestView, budget: int) -> Draft:
        state = self._states[request.id]
        own, earlier = state.own, state.earlier.store
        own.extend(request.tokens[len(own) :])
        state.copy.follow()
        copies = state.copy.expected(budget)
        depth = request.depth_limit
        if request.speculation.counts_as_q:
            return self._sampled_chain(request, self._places(state, copies), min(budget, depth))
        branching = request.draws().takes_trees
        if self._trees is None:
            return grow(self._places(state, copies), own, budget, depth, branching=branching)
        draft, used = self._trees.grow(own, copies, earlier.text, state.stored, budget, depth, branching=branching)
        earlier.used(used)
        return draft

    def _places(self, state: _SuffixState, copies: Sequence[Expected]) -> list[Continuation]:
        """The places that the text may go on from."""
        own, earlier, tail = state.own, state.earlier.store, state.own[-MAX_MATCH:]
        root, known = list[Continuation](), set[int]()
        for tokens, end, match, edited in copies:
            root.append(Continuation(EDITED if edited else COPIED, tokens, end, min(match, MAX_MATCH)))
            if not edited:
                known.add(end)
        root += continuations(own, (place for place in occurrences(own, tail, OWN_LIMIT) if place[0] not in known), OWN)
        shared = earlier.find(tail, OTHER_LIMIT)
        earlier.used(end for end, match in shared if match >= _REUSED)
        root += continuations(earlier.text, shared, SHARED)
        if state.stored is not None:
            found = state.stored.find(tail, OTHER_LIMIT)
            root += [Continuation(STORED, place.tokens, place.end, place.match) for place in found]
        return root

    def _sampled_chain(self, request: RequestView, root: Sequence[Continuation], budget: int) -> Draft:
        """A chain drawn from the candidates' shares, its ``q``."""
        own = self._states[request.id].own
        options: Mapping[int, Candidate] = {}

        def after(drafted: Sequence[int]) -> dict[int, float]:
            nonlocal options
            options = predict(options[drafted[-1]].continuations() if drafted else root, drafted, own)
            return {token: option.share for token, option in options.items()}

        return sampled_chain("suffix", request.draws(), after, budget, self._vocab_size)
