"""Replicas of a model share earlier responses for drafting. Losing a response costs speed, never output.

::

    replica r0   learned  ──►  hub (ingress)  ──►  r1, r2, ...   each learns it for the same domain and tenant

Three bounds hold: on a replica's unreported responses, on the hub's undelivered ones, and on a message.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from outrider.drafters.text.suffix import SuffixDrafter
from outrider.llm import LLM
from outrider_fleet.messages.wire import Message

MAX_TOKENS = 8192  # of learned responses in one report; older ones are dropped
MAX_DOMAINS = 256  # whose sizes are reported, the largest first
MAX_BLOCKS = 4096  # of the cache that are reported

Learned = tuple[str, str, Sequence[int]]  # domain, tenant, tokens


class PendingReport:
    """The latest responses, at most ``MAX_TOKENS`` of them together."""

    def __init__(self, most: int = MAX_TOKENS) -> None:
        self._most, self._held = most, deque[Learned]()
        self._tokens = self.dropped = 0

    def add(self, learned: Learned) -> None:
        if len(learned[2]) > self._most:
            self.dropped += 1
            return
        self._held.append(learned)
        self._tokens += len(learned[2])
        while self._tokens > self._most:
            self._tokens -= len(self._held.popleft()[2])
            self.dropped += 1

    def take(self) -> list[Learned]:
        """All that is held, which is then forgotten."""
        taken: list[Learned] = []
        while self._held:
            taken.append(self._held.popleft())
            self._tokens -= len(taken[-1][2])
        return taken


class DraftSharing:
    """The part of a replica that learns from the others and tells them."""

    def __init__(self, llm: LLM, call: Callable[[Callable[[], None]], None], *, shares: bool) -> None:
        """``call``: does something on the engine's thread, which alone may touch draft sources."""
        self._llm, self._call, self._pending, self._count = llm, call, PendingReport(), 0
        built = llm.drafters.get("suffix") if "suffix" in llm.speculation.combination.names else None
        self._suffix = built if isinstance(built, SuffixDrafter) else None
        if self._suffix is not None and shares:
            self._suffix.on_response = lambda *learned: self._pending.add(learned)

    def report(self) -> Message:
        """For a status: responses learned since the last one, bytes known of each domain, and the cache's blocks."""
        sizes = {} if self._suffix is None else self._suffix.responses.sizes()
        largest = sorted(sizes, key=lambda domain: -sizes[domain])[:MAX_DOMAINS]
        held = [digest.hex() for digest in self._llm.engine.cache.held_digests()[:MAX_BLOCKS]]
        knows = {domain: sizes[domain] for domain in largest}
        return {"learned": self._pending.take(), "knows": knows, "holds": held}

    def learn(self, message: Message) -> None:
        """Take in a report's ``learned``; nothing of it is told to others again."""
        suffix = self._suffix
        if suffix is None:
            return
        for domain, tenant, tokens in message["learned"]:
            self._count += 1
            name = f"peer-{self._count}"
            self._call(lambda n=name, d=domain, t=tenant, r=tuple(tokens): suffix.learn(n, d, t, r))  # type: ignore[misc]


class Hub:
    """Passes responses that one replica learned to all others that are connected."""

    def __init__(self) -> None:
        self._boxes: dict[str, PendingReport] = {}
        self.passed_on = 0  # responses

    def join(self, name: str) -> None:
        self._boxes.setdefault(name, PendingReport())

    def leave(self, name: str) -> None:
        self._boxes.pop(name, None)

    def swap(self, name: str, learned: Sequence[Learned]) -> list[Learned]:
        """Deliver a replica's new responses, and take the ones that the others have delivered meanwhile."""
        self.join(name)
        for other, box in self._boxes.items():
            if other != name:
                for one in learned:
                    box.add((one[0], one[1], one[2]))
        taken = self._boxes[name].take()
        self.passed_on += len(taken)
        return taken
