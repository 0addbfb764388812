"""The loop of ``speculate``: guess ahead, call ``f`` for every guessed prefix, keep the guesses that ``f`` confirms."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

from outrider_lab.speculation.calls import Calls, PrefixCall
from outrider_lab.speculation.judge import Guess, Judge
from outrider_lab.speculation.laws import Law, Point, Prefix, law_of


@dataclass
class Walk:
    """One run of ``speculate``. ``values`` are final; ``_ahead`` are guesses of the following values.

    ::

        values        a b c                       calls   f(abc)  f(abcd)  f(abcde)
        _ahead              d e                            the first decides on d; if it is refused,
                                                           the others are dropped

    In a pool a call of ``f`` begins with its guess, so that ``f`` runs in parallel with ``g`` and with other calls.
    """

    calls: Calls
    judge: Judge
    g: Callable[[Prefix], Any] | None
    length: int
    draft_length: int
    start: Prefix = ()
    stop: Callable[[Prefix], bool] | None = None
    exact_values: bool = False  # ``f`` and ``g`` return values themselves
    values: list[Any] = field(default_factory=list)
    origins: list[str] = field(default_factory=list)  # of each value: "accepted", "recovered" or "direct"
    rounds: int = 0  # calls of f that waited for an earlier result
    g_calls: int = 0
    g_seconds: float = 0.0
    tested: int = 0
    _ahead: deque[Guess] = field(default_factory=deque)
    _asked: deque[PrefixCall] = field(default_factory=deque)
    _unguessed: int = -1  # the position without a guess of g

    def run(self) -> Generator[PrefixCall, Any, None]:
        """Yield calls whose results are needed; the caller sends each result back."""
        done = False
        while not done and len(self.values) < self.length:
            if self.calls.eager or not self._asked:
                self._fill()
            call = self._asked.popleft()
            returned = yield call
            self.rounds = call.round
            self._decide(call.prefix, self._law(returned, "f", call.prefix))
            done = self.stop is not None and self.stop((*self.start, *self.values))
        self.close()

    def close(self) -> None:
        """Drop every unused call."""
        self.calls.drop(list(self._asked))
        self._asked.clear()

    def _fill(self) -> None:
        """Call ``f`` for the prefixes of up to ``draft_length`` guesses, never beyond the last value."""
        room = min(self.draft_length + 1, self.length - len(self.values))
        while len(self._asked) < room:
            if len(self._asked) > len(self._ahead) and not self._guess():
                return
            ahead = (guess.value for guess, _ in zip(self._ahead, self._asked, strict=False))
            self._asked.append(self.calls.start((*self.start, *self.values, *ahead), self.rounds + 1))

    def _guess(self) -> bool:
        """Add a guess after the others; False if ``g`` has none."""
        if self.g is None or self.draft_length == 0:
            return False
        prefix = (*self.start, *self.values, *(guess.value for guess in self._ahead))
        if len(prefix) == self._unguessed:
            return False
        began = time.perf_counter()
        returned = self.g(prefix)
        self.g_calls += 1
        if returned is not None:
            self._ahead.append(self.judge.guess(self._law(returned, "g", prefix), prefix))
        else:
            self._unguessed = len(prefix)
        self.g_seconds += time.perf_counter() - began
        return returned is not None

    def _decide(self, prefix: Prefix, p: Law) -> None:
        # No guess is needed after the last drafted prefix. If values depend on g, it is made nevertheless, so that
        # values do not depend on the number of guesses made at once.
        if not self._ahead and self.judge.needs_guess(p):
            self._guess()
        guess = self._ahead.popleft() if self._ahead else None
        value, accepted = self.judge.decide(p, guess, prefix)
        self.values.append(value)
        self.origins.append("direct" if guess is None else "accepted" if accepted else "recovered")
        self.tested += guess is not None
        if guess is not None and not accepted:
            self.close()
            self._ahead.clear()
            self._unguessed = -1

    def _law(self, returned: Any, who: str, prefix: Prefix) -> Law:
        return Point(returned) if self.exact_values else law_of(returned, who, len(prefix))
