"""Text that the caller expects, such as a file about to be edited (docs/algorithms/prediction.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.drafters.api import Drafter, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.merge import combine
from outrider.verify.draft import EMPTY, Draft

MAX_MATCH = 16  # longer matches predict no better
SURE = 2  # matching tokens after which the output counts as following the prediction
UNSURE = 4  # draft tokens after a mismatch
LOST = 8  # output tokens off the prediction after which drafting stops
FOUND = 4  # matching tokens that resume drafting: two match by chance

_FOLLOWED, _GUESSED = 0.95, 0.4  # a draft token's probability while output and prediction agree, and after a mismatch


class Alignment:
    """The place in the prediction that the output has reached, updated token by token.

    ::

        prediction   def area ( w , h ) :
        output       def surface               continues at "(", as if "surface" had replaced "area"
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self.prediction = prediction
        self.at = 0  # index in the prediction of the expected next token
        self.match = SURE  # tokens before ``at`` that match the output's end; the first draft needs no match
        self.astray = 0  # output tokens since the output last followed the prediction
        self._ends: dict[int, list[int]] = {}  # token -> the places after its occurrences
        for i, token in enumerate(prediction):
            self._ends.setdefault(token, []).append(i + 1)

    def follow(self, output: Sequence[int], new: int) -> None:
        """Take the last ``new`` tokens of the output into account."""
        for length in range(len(output) - new + 1, len(output) + 1):
            token = output[length - 1]
            if self.at < len(self.prediction) and self.prediction[self.at] == token:
                self.at, self.match = self.at + 1, min(self.match + 1, MAX_MATCH)
            else:
                self._realign(output[max(0, length - MAX_MATCH) : length])
            self.astray = 0 if self.match >= (FOUND if self.lost else SURE) else self.astray + 1

    @property
    def lost(self) -> bool:
        """Whether the output no longer follows the prediction."""
        return self.astray > LOST

    def _realign(self, tail: Sequence[int]) -> None:
        """Go to the longest match of the output's end; ties go to the place nearest to a one-token replacement."""
        expected = min(self.at + 1, len(self.prediction))
        self.at, self.match = expected, 0
        for end in self._ends.get(tail[-1], ()):
            match, most = 1, min(end, len(tail))
            while match < most and self.prediction[end - match - 1] == tail[-match - 1]:
                match += 1
            if (match, -abs(end - expected)) > (self.match, -abs(self.at - expected)):
                self.at, self.match = end, match


@dataclass
class _PredictionState:
    alignment: Alignment
    seen: int = 0  # output tokens that the alignment has followed


def build(context: DrafterContext) -> Drafter:
    """The source ``prediction``."""
    return PredictionDrafter()


class PredictionDrafter(SingleRequestDrafter):
    """Copies draft tokens from ``SpeculationParams.prediction``.

    While output and prediction agree, it drafts the whole budget. After a mismatch it drafts ``UNSURE`` tokens, as if
    one token had been replaced. If the verifier takes trees, further branches assume an inserted and an omitted token.
    """

    def __init__(self) -> None:
        self._states: dict[str, _PredictionState] = {}

    def start(self, request: RequestView) -> None:
        prediction = request.speculation.prediction
        if prediction is None:
            return
        if isinstance(prediction, str):
            raise TypeError("prediction is text, but this engine knows only tokens: give token ids, or use LLM")
        self._states[request.id] = _PredictionState(Alignment(tuple(prediction)))

    def finish(self, request_id: str) -> None:
        self._states.pop(request_id, None)

    def draft(self, request: RequestView, budget: int) -> Draft:
        state = self._states.get(request.id)
        if state is None or budget < 1:
            return EMPTY
        output = request.tokens[request.prompt_length :]
        alignment = state.alignment
        alignment.follow(output, len(output) - state.seen)
        state.seen = len(output)
        if alignment.lost:
            return EMPTY
        budget = min(budget, request.depth_limit) if alignment.match else budget
        if alignment.match >= SURE:
            return self._copy(alignment, 0, budget, _FOLLOWED)
        guesses = [self._copy(alignment, 0, min(budget, UNSURE), _GUESSED)]
        if request.draws().takes_trees and alignment.match == 0:  # -1: a token was inserted, 1: one was omitted
            guesses += [self._copy(alignment, shift, min(budget, UNSURE), _GUESSED / 2) for shift in (-1, 1)]
        return combine(guesses, budget)

    def _copy(self, alignment: Alignment, shift: int, count: int, score: float) -> Draft:
        start = alignment.at + shift
        tokens = alignment.prediction[start : start + count] if start >= 0 else ()
        return Draft.chain(tokens, source="prediction", scores=[score] * len(tokens)) if tokens else EMPTY
