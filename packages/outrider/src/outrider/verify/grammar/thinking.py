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
        self, form: Constraint, markers: tuple[int, int], eos: Iterable[int], vocab_size: int, *, inside: bool
    ) -> None:
        """Args:
        form: of the text behind the section.
        markers: the tokens that begin and end it.
        inside: the prompt has opened it; else the output may begin with one, and need not.
        """
        self._form, self._inside = form, inside
        self._open, self._close = markers
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
        end = tokens.index(self._close) if self._close in tokens else len(tokens)
        if not self._eos.isdisjoint(tokens[:end]):
            return None
        return self._anything if end == len(tokens) else self._form.mask(tokens[end + 1 :])


def behind_thinking(
    form: Constraint, markers: tuple[str, str], prompt: Sequence[int], tokenizer: Tokenizer, eos: Sequence[int]
) -> Constraint:
    """``form`` for the text behind a thinking section, which the prompt's end may have opened or closed.

    Raises InvalidRequestError if the markers are no tokens of the vocabulary.
    """
    opening, closing = (tokenizer.vocabulary.get(marker) for marker in markers)
    if opening is None or closing is None:
        shown = " and ".join(map(repr, markers))
        raise InvalidRequestError(f"thinking={shown} are no tokens of this model: leave it out", param="thinking")
    last = next((token for token in reversed(prompt) if tokenizer.token_text(token).strip()), None)
    if last == closing:
        return form
    return ThinkingConstraint(form, (opening, closing), eos, tokenizer.vocab_size, inside=last == opening)
