"""A draft source of your own. It may be wrong or slow: that costs speed, never a token of the output."""

from outrider import LLM, Draft, RequestView, SamplingParams, SpeculationParams
from outrider.drafters import EMPTY, SingleRequestDrafter


class AfterSameToken(SingleRequestDrafter):
    """Goes on as the text did after the last token's previous occurrence."""

    def draft(self, request: RequestView, budget: int) -> Draft:
        *before, last = request.tokens
        if last not in before:
            return EMPTY
        after = len(before) - before[::-1].index(last)
        return Draft.chain(request.tokens[after : after + budget], source="after-same-token")


if __name__ == "__main__":
    with LLM("smollm2-135m-instruct", draft="__main__:AfterSameToken") as llm:
        messages = [{"role": "user", "content": "Count from one to twenty, five times."}]
        params = SamplingParams(max_tokens=64)
        drafted = llm.chat(messages, params)
        plain = llm.chat(messages, params, speculation=SpeculationParams(draft="none"))
        print("The same tokens:", drafted.token_ids == plain.token_ids)
        print(f"{drafted.stats.num_accepted_draft_tokens} of {drafted.stats.num_draft_tokens} draft tokens accepted")
