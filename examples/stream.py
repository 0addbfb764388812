"""Tokens as they come, accepted draft tokens in brackets, and how to stop early."""

from outrider import LLM, SamplingParams

MESSAGES = [{"role": "user", "content": "Count from one to thirty in words."}]

with LLM("smollm2-135m-instruct") as llm:
    for count, step in enumerate(llm.stream(MESSAGES, SamplingParams(max_tokens=200)), start=1):
        print(f"[{step.text}]" if step.origin == "accepted" else step.text, end="", flush=True)
        if count == 40:
            break  # aborts the request; what it gave stays in llm.last
    print(f"\nstopped after {count} tokens")
