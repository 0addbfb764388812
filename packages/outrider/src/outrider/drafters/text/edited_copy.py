"""The place of the prompt that an output copies, kept across changes, and the changes made so far.

::

    prompt   def area ( w , h ) : return w * h
                      ^ the copy goes on here
    output   def surface                           "area" was replaced, and is expected to be replaced again
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outrider.drafters.datastore import MAX_MATCH
from outrider.drafters.text.occurrences import Tokens, copied

ESTABLISHED = MAX_MATCH  # equal tokens that make an output a copy; quotations of 8 hardly ever go on after a change
FIRM = 3  # equal tokens after a change that end it
NEAR = 4  # tokens that a change may leave out before fewer equal tokens count
WINDOW = 256  # tokens that it may leave out at all
FRESH = 3  # changed tokens after which a replacement is hardly ever over
LOST = 12  # changed tokens after which nothing is guessed
LONGEST = 12  # tokens of a change that is remembered
_OCCURRENCES = 8  # of a token, compared after a change
_REPLACED = (1, 0, 3, 2)  # tokens of the prompt that a change replaces, the likeliest first


@dataclass(slots=True)
class Change:
    """Tokens that the output had in place of the prompt's."""

    old: Sequence[int]
    new: Sequence[int]
    made: int = 1  # places where it was made
    skipped: int = 0  # places where it was not


class Expected(NamedTuple):
    """A text whose token at ``end`` may come next."""

    tokens: Sequence[int]
    end: int
    match: int  # tokens since the last change that agree
    edited: bool  # whether earlier changes were made in it


class EditedCopy:
    """Follows a request's output while it copies the prompt."""

    def __init__(self, tokens: Tokens, stop: int) -> None:
        """``tokens``: the request's, which grow; ``stop``: the length of its prompt."""
        self._tokens, self._stop = tokens, stop
        self._seen = 0  # tokens taken into account
        self._at = -1  # index in the prompt of the expected next token; -1: nothing is copied
        self._match = 0  # tokens before ``_at`` that equal the output's end, since the last change
        self._began = -1  # index in the output of the first changed token, during a change
        self._anchor = 0  # index in the prompt of the token expected there
        self._changes: dict[int, Change] = {}  # by the first token that they replace, or precede

    def follow(self) -> None:
        """Take new tokens into account."""
        tokens = self._tokens
        i = max(self._seen, self._stop)
        while i < len(tokens):
            last = len(tokens)
            if self._at >= 0:
                self._step(i)
                last = i + 1 if self._at < 0 or self._began >= 0 else i
            found = copied(tokens, i, last, self._stop) if last > i else None
            if found is not None:
                i, place = found
                self._establish(place)
            elif self._at < 0:
                break
            i += 1
        self._seen = len(tokens)

    def expected(self, count: int) -> list[Expected]:
        """The texts that may go on, of at least ``count`` tokens where the prompt has as many.

        Nothing that the output's last tokens say already: no place that agrees for ``ESTABLISHED`` tokens.
        """
        tokens, at, changed = self._tokens, self._at, len(self._tokens) - self._began
        if at < 0:
            return []
        if self._began >= 0 and not self._match:
            replaced = _REPLACED if changed <= FRESH else (0,) if changed <= LOST else ()
            places = [self._anchor + old for old in replaced]
            found = [Expected(tokens, place, 0, False) for place in places if place < self._stop]
            again = self._under_way(count)
            return [*found, Expected(again, 0, changed, True)] if again else found
        found = [Expected(tokens, at, self._match, False)] if self._match < ESTABLISHED else []
        edited = self._edited(at, count)
        return [*found, Expected(edited, 0, self._match, True)] if edited != tokens[at : at + count].tolist() else found

    def _establish(self, place: int) -> None:
        """Begin to copy, or go on elsewhere, where the output's end agrees for long."""
        if self._match < ESTABLISHED:
            self._at, self._match, self._began = place, ESTABLISHED, -1

    def _step(self, i: int) -> None:
        tokens = self._tokens
        agrees = self._at < self._stop and tokens[i] == tokens[self._at]
        if self._began < 0:
            if agrees:
                change = self._change_at(self._at)
                if change is not None:
                    change.skipped += 1
                self._at, self._match = self._at + 1, self._match + 1
                return
            self._began, self._anchor, self._match = i, self._at, 0
        elif agrees and self._match:
            self._at, self._match = self._at + 1, self._match + 1
        else:
            self._realign(i)
        if self._match >= FIRM:
            self._remember(i)

    def _realign(self, i: int) -> None:
        """Go to the longest match of the changed tokens behind the place of the change; ties go to the nearest."""
        tokens, end = self._tokens, min(self._anchor + WINDOW, self._stop)
        self._at, self._match = self._anchor, 0
        place = self._anchor
        for _ in range(_OCCURRENCES):
            try:
                place = tokens.index(tokens[i], place, end) + 1
            except ValueError:
                return
            match, most = 1, min(place - self._anchor, i + 1 - self._began)
            while match < most and tokens[place - match - 1] == tokens[i - match]:
                match += 1
            if match > self._match and (match >= FIRM or place - match - self._anchor <= NEAR):
                self._at, self._match = place, match

    def _remember(self, i: int) -> None:
        """End a change."""
        key = self._tokens[self._anchor]
        old = self._tokens[self._anchor : self._at - self._match]
        new = self._tokens[self._began : i + 1 - self._match]
        self._began = -1
        if max(len(old), len(new)) <= LONGEST:
            known = self._changes.get(key)
            if known is not None and (known.old, known.new) == (old, new):
                known.made += 1
            else:
                self._changes[key] = Change(old, new)

    def _change_at(self, place: int) -> Change | None:
        """The change that may be made at a place of the prompt."""
        change = self._changes.get(self._tokens[place])
        same = change is not None and self._tokens[place : place + len(change.old)] == change.old
        return change if same else None

    def _edited(self, place: int, count: int) -> list[int]:
        """The prompt from a place on, with the changes that were made more often than not."""
        out: list[int] = []
        while len(out) < count and place < self._stop:
            change = self._change_at(place)
            if change is not None and change.made > change.skipped:
                place = self._make(change, place, out)
            else:
                out.append(self._tokens[place])
                place += 1
        return out

    def _make(self, change: Change, place: int, out: list[int]) -> int:
        """Append a change, and the token that an insertion precedes; returns the place behind them."""
        out += change.new
        if not change.old:
            out.append(self._tokens[place])
        return place + max(1, len(change.old))

    def _under_way(self, count: int) -> list[int]:
        """During a change that was made before: its further tokens, and the prompt behind it."""
        change, done = self._change_at(self._anchor), self._tokens[self._began :]
        if self._anchor >= self._stop or change is None or change.new[: len(done)] != done:
            return []
        out: list[int] = []
        place = self._make(change, self._anchor, out)
        return [*out[len(done) :], *self._edited(place, count)]
