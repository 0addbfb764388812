"""A draft source of your own: outrider generate --draft examples.own_source:Echo --raw -p "one two three, one two"

It may be wrong, slow or broken: that costs speed, never a token of the output.
"""

from outrider.drafters import EMPTY, Draft, RequestView, SingleRequestDrafter


class Echo(SingleRequestDrafter):
    """Goes on as the text did after the last token's previous occurrence."""

    def draft(self, request: RequestView, budget: int) -> Draft:
        *before, last = request.tokens
        if last not in before:
            return EMPTY
        after = len(before) - before[::-1].index(last)
        return Draft.chain(request.tokens[after : after + budget], source="echo")
