"""Many prompts together, each with sampling options and a draft source of its own."""

from outrider import LLM, SamplingParams, SpeculationParams

PROMPTS = ["One, two, three,", "Monday, Tuesday,", "Red, orange, yellow,"]

with LLM("smollm2-135m-instruct") as llm:
    outputs = llm.generate(
        PROMPTS,
        [SamplingParams(max_tokens=n) for n in (8, 12, 16)],
        speculation=[SpeculationParams(draft=name) for name in ("suffix", "lookup", "none")],
        progress=True,
    )
    for prompt, output in zip(PROMPTS, outputs, strict=True):
        print(repr(prompt + output.text), f"{len(output.token_ids)} tokens in {output.stats.target_runs} passes")
