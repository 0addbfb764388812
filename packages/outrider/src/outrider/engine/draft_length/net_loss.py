"""Earn before spending: the limit on the time that drafting may lose in a request, in its class and in its domain.

The unit is a plain token: the time that a token takes without drafts, in the step at hand. Alone that is a pass, and
together with others a share of one. So what is won with many requests at once is not spent on one, nor lost to it.

The *net loss* of a step is the time of its proposals and scored rows, less the time that its accepted tokens saved.
So a request takes ``tokens + net loss``.

**Bound.** At all times ``net loss <= initial + loss_share * tokens``. Proof: ``left`` is the right side minus the left
side, and begins at ``initial >= 0``. The cost of a step's draft is at most ``left``, so ``left >= 0`` even if nothing
is accepted. Accepted tokens and decoded ones raise it. Its ceiling lowers it, but to a number above 0. By induction
``left >= 0`` after every step.

A domain begins with ``first`` tokens (``credit`` where acceptance was measured), and a class with as many, but with no
more than its domain has left. A request begins with ``own_first`` and is lent the share ``lent`` of what its class and
domain have left, but no more than the share ``ahead`` of the tokens that it may have. Each cost is charged to all
three. A class and a request hold at most ``credit`` tokens, and a domain, which pays for reading prompts, ``credit /
lent``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from outrider.engine.draft_length.acceptance import Measured, SourceAcceptance, nothing_measured
from outrider.engine.draft_length.settings import DraftLengthSettings
from outrider.engine.request import Request

CAPACITY = 16 << 20  # bytes of all domains together
_ACCEPTANCE_BYTES = 1200  # of a source's acceptance, about
_ACCOUNT_BYTES = 200
_REMEMBERED = 32  # proposals of which the mean worth is known
_GUESSED = 2  # proposals that a guess of their worth stands for
_MAX_CLASSES = 64  # accounts of classes that a domain keeps


@dataclass(frozen=True)
class RequestClass:
    """Properties of a request, known before its first token, by which gains and losses are kept apart."""

    greedy: bool
    structured: bool  # whether a grammar limits the output
    prompt_size: int  # grows by 1 if the prompt is four times as long

    @classmethod
    def of(cls, request: Request) -> RequestClass:
        size = len(request.prompt).bit_length() // 2
        return cls(request.params.greedy, request.constraint is not None, size)


@dataclass(slots=True)
class Account:
    """The time that one source may still lose in a request, a class of requests or a domain."""

    settings: DraftLengthSettings
    left: float  # plain tokens
    most: float  # that it holds

    def record(self, tokens: float, loss: float) -> None:
        """Record one step.

        Args:
            tokens: that were decoded.
            loss: plain tokens lost to drafting; negative for a gain.
        """
        self.left = min(self.most, self.left + self.settings.loss_share * tokens - loss)


@dataclass(slots=True)
class Worth:
    """The plain tokens that asking a source saves on average, less what its rows take."""

    mean: float
    seen: float  # proposals that the mean stands for

    def observe(self, tokens: float) -> None:
        """Learn from a proposal."""
        self.seen = min(_REMEMBERED, self.seen + 1.0)
        self.mean += (tokens - self.mean) / self.seen


@dataclass(frozen=True)
class Loan:
    """What a source of a new request begins with."""

    acceptance: SourceAcceptance  # of the domain
    accounts: tuple[Account, ...]  # of the request, its class and its domain
    lent: float  # plain tokens, of the request's account
    worth: Worth  # of the class


@dataclass
class DomainStats:
    """The acceptance and the accounts of the sources in one domain; a ``Store`` of ``utils.partitioned_store``.

    Domains are kept apart because draft lengths leak information about texts.
    """

    settings: DraftLengthSettings
    measured: Measured = nothing_measured
    _sources: dict[str, tuple[SourceAcceptance, Account]] = field(default_factory=dict)
    _classes: OrderedDict[tuple[RequestClass, str], tuple[Account, Worth]] = field(default_factory=OrderedDict)

    def source(self, name: str, kind: RequestClass, share: float, length: float = math.inf) -> Loan:
        """What a new request of class ``kind`` begins with.

        Args:
            share: the source's part in what all sources of the request may lose.
            length: tokens that it may have at most.
        """
        settings = self.settings
        credit, lent = settings.credit, settings.lent
        if name not in self._sources:
            acceptance = SourceAcceptance(settings, self.measured(name))
            first = credit if acceptance.measured else settings.first
            self._sources[name] = acceptance, Account(settings, first * share, most=credit / lent)
        acceptance, domain = self._sources[name]
        first, ahead = (credit, math.inf) if acceptance.measured else (settings.first, settings.ahead * length)
        if (kind, name) in self._classes:
            own, worth = self._classes.pop((kind, name))
        else:
            own = Account(settings, min(domain.left, first * share), most=credit)
            worth = Worth(settings.unknown_score, _GUESSED)
        self._classes[kind, name] = own, worth
        if len(self._classes) > _MAX_CLASSES:
            self._classes.popitem(last=False)
        loan = min(lent * max(0.0, min(own.left, domain.left)), share * ahead)
        request = Account(settings, loan + share * settings.own_first, credit)
        return Loan(acceptance, (request, own, domain), loan, worth)

    @property
    def size(self) -> int:
        return _ACCEPTANCE_BYTES * len(self._sources) + _ACCOUNT_BYTES * (len(self._sources) + len(self._classes))

    def evict(self) -> None:
        self._sources.clear()
        self._classes.clear()
