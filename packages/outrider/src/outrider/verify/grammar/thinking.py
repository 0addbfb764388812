"""A form that begins only behind a thinking section."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.errors import InvalidRequestError
from outrider.tokenizer.tokenizer import Tokenizer
from outrider.verify.constraint import Constraint


class ThinkingConstraint:
    """Anything but the end of text within the section, and the form behind it.

    Where the section ends is read from the output itself, each time: so the rows of a draft that holds its end have
    the masks that they would have without a draft.

    ::

        output    <think>  a    b   </think>  {    "a"     a draft's nodes   b    </think>  {
        mask         any   any  any   form    form form    behind them       any    form    form
    """

    def __init__(
        self,
        form: Constraint,
        markers: tuple[int, int],
        eos: Iterable[int],
        vocab_size: int,
        *,
        inside: bool,
        before_close: Sequence[int] = (),
    ) -> None:
        """Args:
        form: of the text behind the section.
        markers: the tokens that begin and end it.
        inside: the prompt has opened it; else the output may begin with one, and need not.
        before_close: tokens that stand before the marker of the end; without them it is none.
        """
        self._form, self._inside = form, inside
        self._open, self._close = markers
        self._before_close = list(before_close)
        self._eos = frozenset(eos)
        self._anything = np.ones(vocab_size, np.bool_)
        self._anything[[token for token in self._eos if token < vocab_size]] = False

    def mask(self, output: Sequence[int]) -> NDArray[np.bool_] | None:
        """See ``Constraint.mask``: bool [vocab_size]."""
        tokens = list(output)
        if not self._inside and tokens[:1] != [self._open]:
            mask = self._form.mask(tokens)
            if not tokens and mask is not None:
                mask = mask.copy()
                mask[self._open] = True
            return mask
        end = self._end(tokens)
        if not self._eos.isdisjoint(tokens[:end]):
            return None
        return self._anything if end == len(tokens) else self._form.mask(tokens[end + 1 :])

    def _end(self, tokens: list[int]) -> int:
        """The place of the section's end; the number of tokens if they hold none."""
        before = self._before_close
        places = (place for place, token in enumerate(tokens) if token == self._close)
        return next((p for p in places if tokens[max(0, p - len(before)) : p] == before), len(tokens))


def behind_thinking(
    form: Constraint, markers: tuple[str, str], prompt: Sequence[int], tokenizer: Tokenizer, eos: Sequence[int]
) -> Constraint:
    """``form`` for the text behind a thinking section, which the prompt's end may have opened or closed.

    The second marker may be several tokens, of which the last is a control token. Raises InvalidRequestError if the
    markers are no tokens of the vocabulary.
    """
    opening, ids = tokenizer.vocabulary.get(markers[0]), _ids(tokenizer, markers[1])
    if opening is None or not ids:
        shown = " and ".join(map(repr, markers))
        raise InvalidRequestError(f"thinking={shown} are no tokens of this model: leave it out", param="thinking")
    last = next((token for token in reversed(prompt) if tokenizer.token_text(token).strip()), None)
    *before, closing = ids
    if last == closing and not before:
        return form
    inside, size = last == opening, tokenizer.vocab_size
    return ThinkingConstraint(form, (opening, closing), eos, size, inside=inside, before_close=before)


def _ids(tokenizer: Tokenizer, marker: str) -> list[int]:
    """The tokens of a marker; none if it is no token, and does not end with a control token either."""
    if marker in tokenizer.vocabulary:
        return [tokenizer.vocabulary[marker]]
    ids = tokenizer.encode(marker, add_special_tokens=False)
    return ids if ids and ids[-1] in tokenizer.special_ids else []
