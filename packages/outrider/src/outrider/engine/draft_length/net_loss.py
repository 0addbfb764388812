"""Earn before spending: what drafting may lose in a request, in its class and in its domain.

*Decoded time* is what plain decoding takes for the tokens so far. The *net loss* is what proposals and scored rows took
beyond what accepted tokens saved, so that a request takes ``decoded time + net loss``.

**Bound.** At all times ``net loss <= initial + loss_share * decoded time``. Proof: ``left_s`` is the right side less
the left one, and begins at ``initial >= 0``. A step drafts only what costs at most ``left_s`` even if nothing is
accepted, which leaves ``left_s >= 0``. All else raises it (accepted tokens, decoded time), but for the ceiling on
earnings, which keeps it above 0. By induction ``left_s >= 0`` after every step.

A domain and a class of requests begin with ``credit`` plain steps, a request with one, and a class or request with a
share of the earnings of the domain or class around it too, but with no more than that has left. Each cost is charged
to all three.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from outrider.engine.draft_length.acceptance import Measured, SourceAcceptance, nothing_measured
from outrider.engine.draft_length.settings import DraftLengthSettings
from outrider.engine.request import Request

CAPACITY = 16 << 20  # bytes of all domains together
_ENTRY_BYTES = 400  # of a source's acceptance, or of an account, about
_MAX_CLASSES = 64  # of requests, for each source


@dataclass(frozen=True)
class RequestClass:
    """Requests that are known to be alike before their first token."""

    greedy: bool
    structured: bool  # whether a grammar limits the output
    prompt_size: int  # grows by 1 where the prompt is four times as long

    @classmethod
    def of(cls, request: Request) -> RequestClass:
        size = len(request.prompt).bit_length() // 2
        return cls(request.params.greedy, request.constraint is not None, size)


@dataclass(slots=True)
class Account:
    """What one source may lose in a request, a class of requests or a domain."""

    settings: DraftLengthSettings
    left_s: float  # seconds that may be lost from here on
    earned_s: float = 0.0  # seconds that it has gained lately, all in all

    def record(self, decoded_s: float, loss_s: float, step_s: float) -> None:
        """A step has decoded tokens that plainly take ``decoded_s``, and lost ``loss_s``, below 0 if it gained.

        Neither account grows beyond ``max_earned`` plain steps of ``step_s``.
        """
        most = self.settings.max_earned * step_s
        self.left_s = min(most, self.left_s + self.settings.loss_share * decoded_s - loss_s)
        self.earned_s = min(most, max(0.0, self.earned_s - loss_s))

    def within(self, step_s: float) -> Account:
        """A new account whose costs are charged to this one too."""
        return Account(self.settings, max(0.0, min(self.left_s, step_s + self.settings.lent * self.earned_s)))


@dataclass
class DomainStats:
    """What the requests of one domain have taught; a ``Store`` of ``utils.partitioned_store``.

    Kept apart, because draft lengths leak information about texts.
    """

    settings: DraftLengthSettings
    measured: Measured = nothing_measured
    _sources: dict[str, tuple[SourceAcceptance, Account]] = field(default_factory=dict)
    _classes: OrderedDict[tuple[RequestClass, str], Account] = field(default_factory=OrderedDict)

    def source(self, name: str, kind: RequestClass, step_s: float) -> tuple[SourceAcceptance, tuple[Account, ...]]:
        """How often a source's tokens are accepted; its accounts in a new request, its class and the domain."""
        if name not in self._sources:
            self._sources[name] = (
                SourceAcceptance(self.settings, self.measured(name)),
                Account(self.settings, self.settings.credit * step_s),
            )
        acceptance, domain = self._sources[name]
        own = self._classes.pop((kind, name), None) or domain.within(self.settings.credit * step_s)
        self._classes[kind, name] = own
        if len(self._classes) > _MAX_CLASSES:
            self._classes.popitem(last=False)
        return acceptance, (own.within(step_s), own, domain)

    @property
    def size(self) -> int:
        return _ENTRY_BYTES * (2 * len(self._sources) + len(self._classes))

    def evict(self) -> None:
        self._sources.clear()
        self._classes.clear()
