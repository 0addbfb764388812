"""Each request's own time: a limit on the seconds that it may lose to drafts, its own and those beside it.

**Bound.** For every request, at all times::

    seconds so far <= (1 + loss_share) * seconds so far without drafts + lent

reading its prompt included. Proof: ``left`` is the right side minus the left one, and begins at no less than 0. A
step's proposals and drafts are made only if together they take at most the least ``left`` of all requests in the step,
so each ``left`` is at least 0 even if nothing is accepted. Decoded tokens raise it by ``loss_share`` of the time that
they take without drafts, and each accepted token by the step that its request was saved. Its ceiling lowers it, but to
a number above 0. Not in it: what a draft model takes to read a prompt, which its domain lends (``net_loss``).

``net_loss`` limits the losses of sources, by class and domain, in shares of a pass. This limit is in whole passes:
where 16 decode together, all wait for the rows of one, and one that drafts nothing must not pay for the others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from outrider.engine.draft_length.settings import DraftLengthSettings
from outrider.engine.request import Request


@dataclass(slots=True)
class RequestTime:
    """What one request may lose."""

    left_s: float
    charged_s: float  # all charges when ``left_s`` was last brought up to date
    tokens: int  # decoded until then


class OwnTime:
    """The seconds that each request may still lose.

    Drafts are charged to all requests at once: a sum that each request's account is compared with when it is asked.
    """

    def __init__(self, settings: DraftLengthSettings) -> None:
        self._settings = settings
        self._of: dict[str, RequestTime] = {}
        self._lent: dict[str, float] = {}  # plain tokens, of requests that are new
        self._charged_s = 0.0  # to every request, since the beginning

    def lend(self, request_id: str, tokens: float) -> None:
        """Let a request lose the time of some plain tokens more, before its first step is asked for."""
        self._lent[request_id] = tokens

    def least_s(self, requests: Iterable[Request], plain_s: float) -> float:
        """The least that any of these requests that decode may lose; ``plain_s``: of a step without drafts."""
        share, most_s = self._settings.loss_share, self._settings.credit * plain_s
        least = most_s
        for request in requests:
            decoded = request.stats.completion_tokens
            if not decoded:
                continue  # it reads its prompt, of whose time this will be a share
            own = self._of.get(request.id)
            if own is None:
                first_s = min(self._settings.own_first * plain_s, share * request.stats.prefill_s)
                left_s = first_s + self._lent.pop(request.id, 0.0) * plain_s
                own = self._of[request.id] = RequestTime(left_s, self._charged_s, decoded)
            left_s = own.left_s + share * plain_s * (decoded - own.tokens) - (self._charged_s - own.charged_s)
            own.left_s = left_s = most_s if left_s > most_s else left_s
            own.charged_s, own.tokens = self._charged_s, decoded
            if left_s < least:
                least = left_s
        return least

    def charge(self, seconds: float) -> None:
        """Record what a step's drafts took from all requests in it."""
        self._charged_s += seconds

    def saved(self, request_id: str, accepted: int, plain_s: float) -> None:
        """Record the ``accepted`` tokens of a request's draft: each saved it a step of ``plain_s``."""
        own = self._of.get(request_id)
        if own is not None:
            own.left_s += accepted * plain_s
        else:  # behind its prompt's pass
            self._lent[request_id] = self._lent.get(request_id, 0.0) + accepted

    def finish(self, request_id: str) -> None:
        """Forget a request."""
        self._of.pop(request_id, None)
        self._lent.pop(request_id, None)
