"""The caches of target and draft models: allocation to requests."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from outrider.cache.hybrid import HybridCache
from outrider.cache.protocol import KVCache
from outrider.cache.sessions import SessionStore
from outrider.cache.sessions.moving import Sessions
from outrider.cache.sessions.segments import SEGMENT
from outrider.engine.read_plan import ReadPlan
from outrider.engine.request import Request

_AHEAD = 64  # tokens of a common beginning that are worth waiting for, as the request that reads them is slower by them


class CacheMemory:
    """Gives requests their slots and rows in the target's cache, and alone sets ``num_computed_tokens``.

    A draft model's cache is filled lazily and never holds more tokens of a request than the target's, so admission
    takes the minimum of their free rows.
    """

    def __init__(
        self,
        target: KVCache,
        draft_caches: Callable[[], Sequence[KVCache]],
        message_ends: Collection[int] = (),
        sessions: SessionStore | None = None,
    ) -> None:
        """
        Args:
            draft_caches: the current caches of draft models, which are loaded on first use.
            message_ends: tokens that end a message; recurrent states are copied after them.
            sessions: where rows are kept that outlive their memory.
        """
        self.target, self._draft_caches = target, draft_caches
        self.hybrid = target if isinstance(target, HybridCache) else None
        self._message_ends = frozenset(message_ends)
        self._placed: dict[int, Request] = {}  # by slot
        self._arriving: dict[int, Request] = {}  # requests whose saved rows are on their way, by slot
        self.use_sessions(sessions)

    def use_sessions(self, sessions: SessionStore | None) -> None:
        """Keep rows there from now on; no request is running."""
        self._sessions = None if sessions is None else Sessions(sessions, self.target)

    def caches(self) -> list[KVCache]:
        """The target's cache, then the draft models'."""
        return [self.target, *self._draft_caches()]

    def free_kv_tokens(self) -> int:
        """The free rows for new and running requests: the minimum over all caches."""
        return min(cache.free_tokens() for cache in self.caches())

    def has_to_wait(self, request: Request) -> bool:
        """Whether another request is reading what this one begins with, and will leave it in the cache.

        Others need not wait with it: it waits for no room.
        """
        first = request.prefix_leader
        if first is not None and first.slot is not None and first.num_computed_tokens < len(first.prompt) - 1:
            return True
        return self._may_reuse(request) and self._is_being_read(request)

    def admit(self, request: Request) -> bool:
        """Give a request that has not to wait a slot and its cached prefix, if there is room; returns whether."""
        first = request.prefix_leader
        if first is not None and first.slot is not None:
            self._publish(first, first.slot)  # its whole prompt, not full blocks alone
        if not self.target.can_allocate() or self.free_kv_tokens() == 0:
            return False
        beams = request.params.beam_width
        if self.hybrid is not None and not self.hybrid.can_branch(beams):
            return False
        if first is not None and not first.prompt_report.wants_logprobs:
            request.prompt_report.logprobs = first.prompt_report.logprobs
        reusable = request.prefix_keys if self._may_reuse(request) else ()
        if reusable:
            for slot, other in self._reading(request):
                if _begin_alike(other, request, min(other.num_computed_tokens, _AHEAD)):
                    self._publish(other, slot)  # all that it has read, not whole blocks alone
        request.slot = slot = self.target.allocate(reusable, request.prefix_salt)
        self._placed[slot] = request
        request.num_computed_tokens, request.read_plan = self.target.length(slot), None
        if self.hybrid is not None and beams:
            self.hybrid.branch(slot, beams)
        if self._sessions is not None and reusable and self._sessions.begin(slot, reusable, request.prefix_salt):
            request.is_arriving, self._arriving[slot] = True, request
        else:
            self._begin(request, slot)
        return True

    def _is_being_read(self, request: Request) -> bool:
        """Whether another request of the tenant will soon have computed a beginning that both have in common.

        Only then is waiting free: the two would take turns in reading the same tokens. Tenants do not wait for each
        other, as one that waits too long takes another's place.
        """
        for _, other in self._reading(request):
            computed = other.num_computed_tokens
            shared = computed + (1 if computed and self.hybrid is not None else _AHEAD)  # states are kept at ends alone
            if shared < min(len(other.tokens), len(request.tokens)) and _begin_alike(other, request, shared):
                return True
        return False

    def _reading(self, request: Request) -> list[tuple[int, Request]]:
        """By slot, the requests of its tenant that read their prompts, and whose rows it may use."""
        if not self.target.prefix_reuse:
            return []
        key = request.tenant, request.prefix_salt
        return [
            (slot, other) for slot, other in self._placed.items()
            if (other.tenant, other.prefix_salt) == key and other.num_pending_tokens > 1
            and not other.prompt_report.wants_embedding
        ]  # fmt: skip

    @staticmethod
    def _may_reuse(request: Request) -> bool:
        """Whether cached rows will do, which have neither logits nor hidden states."""
        report = request.prompt_report
        return not (report.wants_logprobs or report.wants_embedding)

    def _begin(self, request: Request, slot: int) -> None:
        """The rows that were computed before are there: others can be."""
        request.num_computed_tokens = start = self.target.length(slot)
        if self.hybrid is not None:
            request.read_plan = ReadPlan(request.tokens, start, self._message_ends, self.hybrid.states.pending)
        request.admitted()

    def begin_step(self) -> list[Request]:
        """A step begins; returns admitted requests whose saved rows have come since the last one."""
        if self._sessions is None:
            return []
        self._sessions.begin_step()
        arrived: list[Request] = []
        for slot in self._sessions.ended():
            request = self._arriving.pop(slot)
            request.is_arriving = False
            self._begin(request, slot)
            arrived.append(request)
        return arrived

    def wait_for_rows(self, seconds: float) -> None:
        """Wait until saved rows have come, if any are on their way."""
        if self._sessions is not None:
            self._sessions.wait(seconds)

    def reserve(self, request: Request, num_tokens: int) -> bool:
        """Reserve ``num_tokens`` rows for a step; returns whether they were free."""
        assert request.slot is not None
        if not self.target.can_extend(request.slot, num_tokens):
            return False
        self.target.extend(request.slot, num_tokens)
        return True

    def keep(self, request: Request, num_tokens: int) -> None:
        """Record that the next ``num_tokens`` tokens of a prompt have been read."""
        assert request.slot is not None
        self._computed(request, request.num_computed_tokens + num_tokens)

    def keep_path(self, request: Request, base: int, path: Sequence[int]) -> None:
        """Keep the rows ``base + path[i]`` of an accepted path, and drop those of refused nodes.

        ``base``: tokens of the request before the step that committed the path; all of them have been read.
        """
        assert request.slot is not None
        self.target.keep_path(request.slot, base, path)
        self._computed(request, min(base + len(path), len(request.tokens) - 1))

    def keep_rows(self, request: Request, base: int, rows: Sequence[int]) -> None:
        """Keep the rows before ``base``, and ``base + i`` for each i of ``rows`` (ascending), made contiguous."""
        assert request.slot is not None
        still = next((i for i, row in enumerate(rows) if row != i), len(rows))  # the first ``still`` rows stay in place
        self.target.keep_path(request.slot, base + still, [row - still for row in rows[still:]])
        self._computed(request, base + len(rows))

    def clear(self, request: Request) -> None:
        """Empty a request's slot, whose rows may hold NaN, so that it is read again from the start."""
        assert request.slot is not None
        self.target.zero(request.slot)
        self.target.truncate_to(request.slot, 0)
        request.num_computed_tokens = 0
        if self._sessions is not None:
            self._sessions.forget(request.slot)

    def evict(self, request: Request) -> None:
        """Release a request's rows; rows of verified tokens stay in the prefix cache until their memory is needed."""
        assert request.slot is not None
        if self._sessions is not None and self._arriving.pop(request.slot, None) is not None:
            request.is_arriving = False
            self._sessions.forget(request.slot)
            self._publish(request, request.slot)
        elif request.error is not None:
            self.target.zero(request.slot)
            if self._sessions is not None:
                self._sessions.forget(request.slot)
        else:
            self._publish(request, request.slot)
            self._save_state(request, request.slot)
            self._save_session(request, request.slot, ended=True)
        self.target.free(request.slot)
        del self._placed[request.slot]
        request.slot, request.num_computed_tokens = None, 0

    def _computed(self, request: Request, count: int) -> None:
        """Set the number of cached tokens; publishes them after each whole block."""
        block = self.target.pool.block
        more_blocks = count // block > request.num_computed_tokens // block
        more_segments = count // SEGMENT > request.num_computed_tokens // SEGMENT
        request.num_computed_tokens = count
        if request.slot is None:
            return
        if more_blocks:
            self._publish(request, request.slot)
        if more_segments or (self._sessions is not None and self._sessions.is_behind(request.slot)):
            self._save_session(request, request.slot)
        plan = request.read_plan
        if plan is not None and self.hybrid is not None and plan.is_due(self.hybrid.states.settled(request.slot)):
            self._save_state(request, request.slot)

    def _publish(self, request: Request, slot: int) -> None:
        """Put the rows of verified tokens into the prefix cache, for later requests."""
        if request.prompt_report.wants_embedding:  # a text to embed is rarely a prefix of another
            return
        self.target.publish_prefix(slot, request.prefix_keys[: request.num_computed_tokens], request.prefix_salt)

    def _save_session(self, request: Request, slot: int, *, ended: bool = False) -> None:
        """Keep the rows of verified tokens beyond their memory."""
        if self._sessions is None or request.prompt_report.wants_embedding or request.is_alone:
            return
        tokens = request.prefix_keys[: request.num_computed_tokens]
        self._sessions.save(slot, tokens, request.prefix_salt, ended=ended)

    def _save_state(self, request: Request, slot: int) -> None:
        """Copy the recurrent state for later requests, unless the last copy is of the same length."""
        plan = request.read_plan
        if plan is None or self.hybrid is None or request.prompt_report.wants_embedding:
            return
        settled = self.hybrid.states.settled(slot)
        if settled != plan.saved:
            plan.saved = settled
            tokens = request.prefix_keys[: request.num_computed_tokens]
            self.hybrid.save_state(slot, tokens, request.prefix_salt, plan.worth(settled))
            if self._sessions is not None and not request.is_alone:
                self._sessions.save_state(slot, tokens, request.prefix_salt)


def _begin_alike(one: Request, other: Request, count: int) -> bool:
    """Whether the first ``count`` tokens of two requests share rows of the cache; never without any."""
    return count > 0 and one.prefix_keys[:count] == other.prefix_keys[:count]
