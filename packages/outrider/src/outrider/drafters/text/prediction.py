"""Text that the caller expects, such as a file about to be edited (docs/algorithms/prediction.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.drafters.api import Drafter, RequestView, SingleRequestDrafter
from outrider.drafters.context import DrafterContext
from outrider.drafters.merge import combine
from outrider.verify.draft import EMPTY, Draft

MAX_MATCH = 16  # longer agreements do not choose better
SURE = 2  # tokens that agree where the output is taken to follow the prediction
UNSURE = 4  # draft tokens of a guess where it goes on
LOST = 8  # tokens without that after which nothing is drafted
FOUND = 4  # tokens that then must agree: two do by chance

_FOLLOWED, _GUESSED = 0.95, 0.4  # scores: how likely a token is while output and prediction agree, and after a mismatch


class Alignment:
    """Where in the prediction the output is, one token after another.

    ::

        prediction   def area ( w , h ) :
        output       def surface               goes on at "(", as if one token had been replaced by another
    """

    def __init__(self, prediction: Sequence[int]) -> None:
        self.prediction = prediction
        self.at = 0  # the prediction goes on here
        self.match = SURE  # tokens before that agree with the output; at the start it is trusted
        self.astray = 0  # tokens of the output since it followed the prediction
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
        """Whether the output has gone its own way."""
        return self.astray > LOST

    def _realign(self, tail: Sequence[int]) -> None:
        """Go to the longest agreement with the output's end; of equals, nearest to where one token was replaced."""
        expected = min(self.at + 1, len(self.prediction))
        self.at, self.match = expected, 0
        for end in self._ends.get(tail[-1], ()):
            match, most = 1, min(end, len(tail))
            while match < most and self.prediction[end - match - 1] == tail[-match - 1]:
                match += 1
            if (match, -abs(end - expected)) > (self.match, -abs(self.at - expected)):
                self.at, self.match = end, match


@dataclass
class _State:
    alignment: Alignment
    seen: int = 0  # tokens of the output


def build(context: DrafterContext) -> Drafter:
    """The source ``prediction``."""
    return PredictionDrafter()


class PredictionDrafter(SingleRequestDrafter):
    """Drafts what ``SpeculationParams.prediction`` says comes next.

    While output and prediction agree, as much as may be drafted. After a mismatch little, until they agree again: as
    if a token had been replaced, or inserted, or left out, side by side where the verifier takes trees.
    """

    def __init__(self) -> None:
        self._states: dict[str, _State] = {}

    def start(self, request: RequestView) -> None:
        prediction = request.speculation.prediction
        if prediction is None:
            return
        if isinstance(prediction, str):
            raise TypeError("prediction is text, but this engine knows only tokens: give token ids, or use LLM")
        self._states[request.id] = _State(Alignment(tuple(prediction)))

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
        if request.draws().takes_trees and alignment.match == 0:  # replaced, or inserted, or left out
            guesses += [self._copy(alignment, shift, min(budget, UNSURE), _GUESSED / 2) for shift in (-1, 1)]
        return combine(guesses, budget)

    def _copy(self, alignment: Alignment, shift: int, count: int, score: float) -> Draft:
        start = alignment.at + shift
        tokens = alignment.prediction[start : start + count] if start >= 0 else ()
        return Draft.chain(tokens, source="prediction", scores=[score] * len(tokens)) if tokens else EMPTY
