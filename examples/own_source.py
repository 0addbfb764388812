"""A draft source of your own: outrider generate --draft examples.own_source:Echo -p "one two three, one two"

It may be wrong, slow or broken: that costs speed, never a token of the output.
"""

from collections.abc import Sequence

from outrider.core.draft import EMPTY, Draft
from outrider.drafters.api import Outcome, RequestView


class Echo:
    """Goes on as the text did after the last token's previous occurrence."""

    def start(self, request: RequestView) -> None:
        """A request begins; keep what you need of it under ``request.id``."""

    def propose(self, requests: Sequence[RequestView], budgets: Sequence[int]) -> list[Draft]:
        """A draft for each request, of at most so many tokens: a chain here, or a tree with parent links."""
        return [self.echo(request, budget) for request, budget in zip(requests, budgets, strict=True)]

    def observe(self, outcomes: Sequence[Outcome]) -> None:
        """What was committed, and what the target said at every node."""

    def finish(self, request_id: str) -> None:
        """The request is over, or gives up its place for a while: forget it."""

    def echo(self, request: RequestView, budget: int) -> Draft:
        *before, last = request.tokens
        if last not in before:
            return EMPTY
        after = len(before) - before[::-1].index(last)
        return Draft.chain(request.tokens[after : after + budget], source="echo")
