"""An index of a set of texts that finds earlier occurrences of a text's last tokens (docs/algorithms/suffix.md)."""

from __future__ import annotations

from collections.abc import Sequence

from outrider.drafters.datastore import MAX_MATCH, Occurrence

LENGTHS = (4, 2, 1)  # lengths of indexed endings, the longest first
KEPT = 32  # occurrences of an ending that are always kept: the most recent ones

_END_BITS = 32
_END = (1 << _END_BITS) - 1


class SuffixIndex:
    """Finds the latest and longest occurrences of a text's last tokens in a set of texts.

    Posting lists map the 1, 2 and 4 tokens before a place to the places that they precede. Matches beyond 4 tokens
    are measured on the texts themselves. Learning a token takes constant time. A search reads O(``limit``)
    places. Unlike in a suffix automaton, a text can be forgotten.
    """

    def __init__(self) -> None:
        self._texts: dict[int, Sequence[int]] = {}
        # Hash of an ending -> its places, each text << 32 | end. Most endings occur once: a bare integer needs no
        # list, and the garbage collector does not traverse integers.
        self._places: dict[int, int | list[int]] = {}

    def extend(self, text: int, tokens: Sequence[int], start: int, stop: int) -> None:
        """Index the endings before the places ``start`` to ``stop - 1`` of text number ``text``.

        Place ``i`` is before ``tokens[i]``. The tokens are kept by reference, and more may be appended to them.
        """
        self._texts[text] = tokens
        for end in range(max(start, 1), stop):
            place = text << _END_BITS | end
            for length in LENGTHS:
                if length <= end:
                    self._add(hash(tuple(tokens[end - length : end])), place)

    def forget(self, text: int, stop: int) -> None:
        """Undo ``extend(text, tokens, 0, stop)``."""
        tokens = self._texts.pop(text)
        for end in range(1, stop):
            for length in LENGTHS:
                if length <= end:
                    self._remove(hash(tuple(tokens[end - length : end])), text << _END_BITS | end)

    def find(self, tail: Sequence[int], limit: int, lengths: Sequence[int] = LENGTHS) -> list[Occurrence]:
        """Up to ``limit`` occurrences of the longest indexed endings of ``tail``, latest first for each length.

        ``tail``: the last ``MAX_MATCH`` tokens of a text, or all tokens of a shorter text. ``lengths``: of the endings
        to look up, out of ``LENGTHS``.
        """
        found: list[Occurrence] = []
        seen: set[int] = set()
        n = len(tail)
        for length in lengths:
            places = self._places.get(hash(tuple(tail[n - length :])), ()) if length <= n else ()
            for place in (places,) if isinstance(places, int) else reversed(places):
                if place in seen:
                    continue
                seen.add(place)
                text, end = place >> _END_BITS, place & _END
                tokens = self._texts[text]
                match, most = length, min(end, n, MAX_MATCH)
                while match < most and tokens[end - match - 1] == tail[n - match - 1]:
                    match += 1
                found.append(Occurrence(text, tokens, end, match))
                if len(found) == limit:
                    return found
        return found

    def __len__(self) -> int:
        """The number of indexed endings."""
        return len(self._places)

    def _add(self, key: int, place: int) -> None:
        places = self._places.get(key)
        if places is None:
            self._places[key] = place
        elif isinstance(places, int):
            self._places[key] = [places, place]
        else:
            places.append(place)
            if len(places) > 2 * KEPT:
                del places[:KEPT]

    def _remove(self, key: int, place: int) -> None:
        places = self._places.get(key)
        if places == place:
            del self._places[key]
        elif isinstance(places, list) and place in places:  # ``_add`` may have dropped it
            places.remove(place)
            if len(places) == 1:
                self._places[key] = places[0]
