"""What requests of one kind have in common: the first steps of a request begin with what others like it taught.

A kind is known before the first token and costs next to nothing to tell. Which features it is made of was chosen by
measurement (docs/algorithms/adaptive.md). Kinds are part of what one domain has learned, and never cross to another.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

from outrider.engine.adaptive.log_odds import Correction
from outrider.engine.adaptive.settings import DEFAULT_SETTINGS, AdaptiveSettings
from outrider.engine.request import Request


@dataclass(frozen=True)
class Kind:
    """How requests are told apart."""

    greedy: bool
    structured: bool  # whether a grammar limits the output
    prompt_size: int  # grows by 1 where the prompt is four times as long

    @classmethod
    def of(cls, request: Request) -> Kind:
        size = len(request.prompt).bit_length() // 2
        return cls(request.params.greedy, request.constraint is not None, size)


@dataclass
class RequestRecord:
    """How much better or worse than the common estimate each drafter does for one request."""

    kind: Kind | None
    corrections: dict[str, Correction] = field(default_factory=dict)  # by drafter
    began: dict[str, Correction] = field(default_factory=dict)  # those of its kind, as they were then
    most_variance: dict[str, float] = field(default_factory=dict)  # of its corrections, which they began with


class Kinds:
    """By kind and drafter: what requests had at their end, on average. The least recently used are forgotten."""

    def __init__(self, settings: AdaptiveSettings = DEFAULT_SETTINGS) -> None:
        self._settings = settings
        self._means: OrderedDict[tuple[Kind, str], Correction] = OrderedDict()

    def __len__(self) -> int:
        return len(self._means)

    def clear(self) -> None:
        self._means.clear()

    def begin(self, record: RequestRecord, source: str) -> Correction:
        """The correction that a request begins with, which is that of its kind, less certain by what sets requests
        of a kind apart."""
        s = self._settings
        known = None if record.kind is None else self._means.get((record.kind, source))
        mean, variance = (0.0, s.kind_variance) if known is None else (known.mean, known.variance)
        record.began[source] = Correction(variance, mean)
        most = record.most_variance[source] = variance + s.request_variance
        own = record.corrections[source] = Correction.starting_at(mean, most)
        return own

    def end(self, record: RequestRecord) -> None:
        """Learn from a request that is over: a kind moves by its share in what was uncertain when the request began."""
        if record.kind is None:
            return
        s = self._settings
        for source, began in record.began.items():
            key, end = (record.kind, source), record.corrections[source]
            before = record.most_variance[source]
            share = began.variance / before
            known = self._means.get(key)
            if known is None:
                known = self._means[key] = Correction(s.kind_variance)
            known.move_to(known.mean + share * (end.mean - began.mean))
            learned = share * share * max(0.0, before - end.variance)
            known.variance = max(s.least_variance, known.variance - learned)
            self._means.move_to_end(key)
        while len(self._means) > s.max_kinds:
            self._means.popitem(last=False)
